"""Print style figures of the package beside those of installed model packages.

    python tools/gauge.py                     # the package by room, and installed model packages
    python tools/gauge.py components recipes  # other folders
    python tools/gauge.py --frames            # calls between a recipe and its targets

Figures per folder:

* tokens per statement (reformatting hardly changes it),
* comments and comprehensions per 100 statements,
* tokens in all, without docstrings and comments,
* docstrings that begin with a relative pronoun, and import cycles, which should both be 0.

The figures describe style. None of them is a limit that a test enforces.
"""

import argparse
import ast
import importlib.util
import io
import os
import re
import runpy
import sys
import tempfile
import tokenize
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "components" / "yamame"
MODELS = ("stable_baselines3", "gymnasium", "torchrl.objectives", "hydra", "amago")
"""Packages whose style is a model. Those that are not installed are left out."""

LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
WATCHED = {
    "losses/functional.py": ("bootstrapped_targets", "training/learner.py"),
    "trajectory/kv_cache.py": ("attend", "collectors/sync.py"),
}
"""File and function whose first call is watched, and a file that must be among its callers."""
RELATIVE = re.compile(r"(What|That|Those|Of|Whether|Where|Who|Whom)\b")


@dataclass
class Figures:
    """Counts of one or more files."""

    tokens: int = 0
    statements: int = 0
    comments: int = 0
    comprehensions: int = 0
    docstrings: int = 0
    relative: list[str] = field(default_factory=list)

    def add(self, path: Path) -> None:
        """Count one file; a file that does not parse is left out."""
        source = path.read_text(encoding="utf-8", errors="replace")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return

        docstring_lines: set[int] = set()
        for node in ast.walk(tree):
            self.statements += isinstance(node, ast.stmt)
            self.comprehensions += isinstance(node, COMPREHENSIONS)
            if not isinstance(node, DOCUMENTED):
                continue
            docstring = ast.get_docstring(node)
            if docstring is None:
                continue
            # A docstring is a statement to the parser, but not to a reader.
            expression = node.body[0]
            docstring_lines.update(
                range(expression.lineno, (expression.end_lineno or expression.lineno) + 1)
            )
            self.statements -= 1
            self.docstrings += 1
            if RELATIVE.match(docstring):
                self.relative.append(f"{path}:{getattr(node, 'lineno', 1)}")

        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                self.comments += 1
            elif token.type not in LAYOUT and token.start[0] not in docstring_lines:
                self.tokens += 1

    def row(self, name: str) -> str:
        """Format the figures as a line of the table."""
        per_hundred = 100 / max(self.statements, 1)
        return (
            f"{name:28} {self.tokens / max(self.statements, 1):8.1f} "
            f"{self.comments * per_hundred:8.1f} "
            f"{self.comprehensions * per_hundred:8.1f} {self.tokens:9,} "
            f"{len(self.relative):5} of {self.docstrings:,}"
        )


def measure(files: list[Path]) -> Figures:
    """Count the files of one row."""
    figures = Figures()
    for file in files:
        figures.add(file)
    return figures


def import_cycles(package: Path) -> list[list[str]]:
    """Find groups of modules that import each other, imports inside functions and for type checkers
    included.
    """
    modules = {}
    for file in package.rglob("*.py"):
        parts = file.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file

    imports: dict[str, set[str]] = {}
    for module, file in modules.items():
        found = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                # `from package import name` imports a submodule if there is one of that name.
                for alias in node.names:
                    submodule = f"{node.module}.{alias.name}"
                    found.add(submodule if submodule in modules else node.module)
        imports[module] = (found & modules.keys()) - {module}
    return strongly_connected(imports)


def strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Find the components of more than one node (Tarjan, 1972).

    >>> strongly_connected({"a": {"b"}, "b": {"a"}, "c": {"a"}})
    [['a', 'b']]
    """
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for neighbour in sorted(graph[node]):
            if neighbour not in index:
                visit(neighbour)
                lowest[node] = min(lowest[node], lowest[neighbour])
            elif neighbour in stack:
                lowest[node] = min(lowest[node], index[neighbour])
        if lowest[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                components.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(components)


def installed(name: str) -> Path | None:
    """Return the folder of an installed package without importing the package itself."""
    top, _, rest = name.partition(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / rest.replace(".", "/")
    return folder if folder.is_dir() else None


def own_frames(frame: FrameType | None) -> list[tuple[str, str]]:
    """Return file and function of a frame's callers in the repository, outermost first."""
    frames = []
    while frame is not None:
        file = Path(os.path.realpath(frame.f_code.co_filename))
        is_own = file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / "tests")
        # Code without a file, as that of runpy, has a name in angle brackets.
        is_file = not frame.f_code.co_filename.startswith("<")
        if is_own and is_file and file != Path(__file__).resolve():
            frames.append((str(file.relative_to(ROOT)), frame.f_code.co_name))
        frame = frame.f_back
    return frames[::-1]


def watch_recipe(arguments: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Run a recipe in this process and return the frames that lead to each function of `WATCHED`.

    Args:
        arguments: Path of the recipe and its overrides.
    """
    sys.argv = arguments
    # Imports are not watched, which would take twice as long.
    runpy.run_path(arguments[0])
    functions = {name for name, _ in WATCHED.values()}
    stacks: dict[str, list[tuple[str, str]]] = {}

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or frame.f_code.co_name not in functions:
            return
        for ending, (name, caller) in WATCHED.items():
            is_watched = frame.f_code.co_name == name and frame.f_code.co_filename.endswith(ending)
            if ending in stacks or not is_watched:
                continue
            frames = own_frames(frame)
            if any(file.endswith(caller) for file, _ in frames):
                stacks[ending] = frames
        if len(stacks) == len(WATCHED):
            sys.setprofile(None)

    sys.setprofile(watch)
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    finally:
        sys.setprofile(None)
    return stacks


def print_frames() -> None:
    """Print the calls that lead from a recipe to its targets and to its KV cache."""
    recipe = str(ROOT / "recipes" / "train.py")
    with tempfile.TemporaryDirectory() as folder:
        stacks = watch_recipe([recipe, "debug=tiny", "logger=none", f"run.root={folder}"])
    for ending, frames in stacks.items():
        name, _ = WATCHED[ending]
        num_files = len({file for file, _ in frames})
        print(f"{name}: {len(frames)} frames in {num_files} files")
        for file, function in frames:
            print(f"    {file}: {function}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, help="measured instead of the package")
    parser.add_argument(
        "--relative", action="store_true", help="list docstrings that begin with a pronoun"
    )
    parser.add_argument(
        "--frames", action="store_true", help="print call stacks of a tiny run instead"
    )
    options = parser.parse_args()
    if options.frames:
        print_frames()
        return

    rows: dict[str, list[Path]] = {}
    if options.folders:
        for folder in options.folders:
            rows[str(folder)] = sorted(folder.rglob("*.py"))
    else:
        rows["yamame, top level"] = sorted(PACKAGE.glob("*.py"))
        for room in sorted(
            path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"
        ):
            rows[f"yamame.{room.name}"] = sorted(room.rglob("*.py"))
        for name in ("components/yamame", "envs/yamame_envs", "recipes", "tools", "tests"):
            rows[name] = sorted((ROOT / name).rglob("*.py"))
        for name in MODELS:
            folder = installed(name)
            if folder is not None:
                rows[name] = sorted(folder.rglob("*.py"))

    print(
        f"{'':28} {'tok/stmt':>8} {'comm/100':>8} {'comp/100':>8} {'tokens':>9} pronoun docstrings"
    )
    for name, files in rows.items():
        figures = measure(files)
        print(figures.row(name))
        if options.relative:
            print(*(f"    {place}" for place in figures.relative), sep="\n")

    for package in (PACKAGE, ROOT / "envs" / "yamame_envs"):
        cycles = import_cycles(package)
        print(f"import cycles of {package.name}: {len(cycles)}")
        for cycle in cycles:
            print("   ", ", ".join(cycle))


if __name__ == "__main__":
    main()
