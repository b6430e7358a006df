"""Measured laws of the house: which files a part needs beside it, what is imported, what is read of
errors, how deep a training step lies.
"""

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "components" / "yamame"


EMULATED = "tests/gpu_emulation/emulated_cuda/device.cpp"
"""A tool of the tests: a CUDA device for builds of PyTorch that have none."""


def foreign_files(root: Path, names: list[str]) -> list[str]:
    """Files in C, and files that load libraries by hand, but for one."""
    loader = "cty" + "pes"
    suffixes = (".c", ".h", ".cc", ".cpp", ".cu")
    in_c = [name for name in names if Path(name).suffix in suffixes and name != EMULATED]
    return in_c + [
        name for name in names if name.endswith(".py") and loader in (root / name).read_text()
    ]


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs git")
def test_nothing_is_written_in_c_or_loads_it():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = [name for name in listed.splitlines() if (ROOT / name).is_file()]
    assert {"recipes/train.py", EMULATED} <= set(names)
    assert foreign_files(ROOT, names) == []


def test_a_planted_kernel_is_found(tmp_path):
    (tmp_path / "a.c").touch()
    (tmp_path / "b.py").write_text("import cty" + "pes")
    (tmp_path / "c.py").write_text("import math")
    beside = EMULATED.replace("device", "other")
    assert foreign_files(tmp_path, ["a.c", "b.py", "c.py", EMULATED, beside]) == [
        "a.c",
        beside,
        "b.py",
    ]


# What a part needs beside it.


def defining_file(package: Path, module: str, name: str) -> Path | None:
    """The file in which a name that is imported from a module is defined; None if the module is not
    of the package.
    """
    path = package.parent.joinpath(*module.split("."))
    if module.split(".")[0] != package.name:
        return None
    if path.with_suffix(".py").is_file():
        return path.with_suffix(".py")
    if (path / f"{name}.py").is_file():
        return path / f"{name}.py"
    for node in ast.walk(ast.parse((path / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return defining_file(package, node.module or "", alias.name)
    return path / "__init__.py"


def closure(package: Path, start: Path) -> set[Path]:
    """A file and all files of the package that must be copied with it; imports for type checkers do
    not count.
    """
    known: set[Path] = set()
    waiting = [start]
    while waiting:
        file = waiting.pop()
        known.add(file)
        nodes: list[ast.AST] = [ast.parse(file.read_text())]
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            nodes += ast.iter_child_nodes(node)
            imported = []
            if isinstance(node, ast.ImportFrom):
                imported = [(node.module or "", alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                imported = [
                    alias.name.rpartition(".")[::2] for alias in node.names if "." in alias.name
                ]
            needed = {defining_file(package, module, name) for module, name in imported}
            waiting += needed - known - set(waiting) - {None}
    return known


PARTS = [
    ("yamame.trajectory", "TransformerEncoder", 10),
    ("yamame.trajectory", "GRUEncoder", 6),
    ("yamame.timestep", "MLPTimestepEncoder", 4),
    ("yamame.transforms", "ContextTransform", 5),
]


@pytest.mark.parametrize(("module", "name", "most_files"), PARTS)
def test_a_part_can_be_copied_with_few_files(module, name, most_files):
    start = defining_file(PACKAGE, module, name)
    assert f"class {name}" in start.read_text()
    files = closure(PACKAGE, start)
    assert len(files) <= most_files, sorted(str(file.relative_to(PACKAGE)) for file in files)


def test_a_closure_follows_imports_through_packages_and_within_functions(tmp_path):
    package = tmp_path / "house"
    (package / "room").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "room" / "__init__.py").write_text("from house.room.deep import f as f, g as g\n")
    (package / "room" / "deep.py").write_text("import torch\nimport house.last\n")
    (package / "room" / "unused.py").touch()
    (package / "last.py").write_text("def f():\n    from house.room import inner\n")
    (package / "room" / "inner.py").write_text("if TYPE_CHECKING:\n    import house.room.unused\n")
    start = package / "start.py"
    start.write_text("from house.room import g\n")
    found = {str(file.relative_to(package)) for file in closure(package, start)}
    assert found == {"start.py", "room/deep.py", "last.py", "room/inner.py"}


IMPORTS = """
import sys
import yamame
print(*sys.modules)
from yamame.collectors import SyncCollector
print(*sys.modules)
from yamame.evaluation import mean_interval
mean_interval(sys.modules["torch"].arange(20.0))
yamame.load
print(*sys.modules)
"""


def test_what_is_imported_loads_little():
    command = [sys.executable, "-c", IMPORTS]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bare, collector, acting = (set(line.split()) for line in told.splitlines())
    assert "yamame" in bare
    assert "torch" not in bare
    ours = {module for module in collector if module.split(".")[0] == "yamame"}
    assert "yamame.collectors" in ours
    assert len(ours) <= 25, ours
    assert {"yamame.deploy", "scipy.special"} <= acting
    assert not {"hydra", "omegaconf", "mlflow", "gymnasium", "pandas"} & acting
    assert "scipy.stats" not in acting  # slow to import


def test_the_early_command_line_loads_no_data_frames():
    program = "import sys, yamame.cli.front; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "yamame.cli.front" in loaded
    assert not {"pandas", "torch", "yamame.report"} & set(loaded)


# Code reads fields of errors, not their texts.

EDITS = {
    "endswith",
    "find",
    "index",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rpartition",
    "split",
    "splitlines",
    "startswith",
    "strip",
}
SEARCHES = {"findall", "finditer", "fullmatch", "match", "search", "sub", "subn"}
TEXTS = {"first_line", "one_line", "repr", "str"}
"""Functions that return the text of an error."""
MAY_READ_TEXTS = {
    "components/yamame/system/messages.py": "one_line and first_line make texts that are displayed",
    "components/yamame/cli/explain.py": "Hydra's errors have no field for the key that is wrong",
}
"""Files that may read texts, with the reason."""


def reads_of_texts(tree: ast.AST) -> list[int]:
    """Lines that compare, search or edit the text of a caught error, or read its ``args``."""
    found: set[int] = set()
    for scope in ast.walk(tree):
        errors: set[str] = set()
        if isinstance(scope, ast.ExceptHandler) and scope.name is not None:
            errors = {scope.name}
        elif isinstance(scope, ast.FunctionDef):
            # A helper that gets the error as an argument.
            for argument in [*scope.args.args, *scope.args.kwonlyargs]:
                kind = ast.unparse(argument.annotation) if argument.annotation else ""
                if "Error" in kind or "Exception" in kind:
                    errors.add(argument.arg)
        if errors:
            found.update(_reads_in(scope, errors))
    return sorted(found)


def _reads_in(scope: ast.AST, errors: set[str]) -> Iterator[int]:
    texts: set[str] = set()  # variables that hold the text of an error

    def is_error(node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in errors

    def is_text(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in texts
        if isinstance(node, ast.JoinedStr):
            return any(is_error(inner) for inner in ast.walk(node))
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        return is_call and node.func.id in TEXTS and any(map(is_error, node.args))

    nodes = list(ast.walk(scope))
    for node in nodes:
        if isinstance(node, ast.Assign) and is_text(node.value):
            texts.update(target.id for target in node.targets if isinstance(target, ast.Name))
    for node in nodes:
        used: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            used = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript) or (
            isinstance(node, ast.Attribute) and node.attr in EDITS
        ):
            used = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # Of the module re, or of a compiled expression.
            used = node.args if node.func.attr in SEARCHES | {"split"} else []
        is_args = isinstance(node, ast.Attribute) and node.attr == "args" and is_error(node.value)
        if is_args or any(map(is_text, used)):
            yield node.lineno


def test_no_code_reads_the_text_of_another_error():
    found = []
    for folder in ("components", "recipes"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            if name not in MAY_READ_TEXTS:
                found += [f"{name}:{line}" for line in reads_of_texts(ast.parse(file.read_text()))]
    assert found == []


@pytest.mark.parametrize("name", MAY_READ_TEXTS)
def test_a_file_that_may_read_texts_does(name):
    assert reads_of_texts(ast.parse((ROOT / name).read_text()))


CAUGHT = "try:\n    f()\nexcept ValueError as error:\n    "


@pytest.mark.parametrize(
    "text",
    [
        CAUGHT + "if 'locked' in str(error): g()",
        CAUGHT + "if str(error) == 'locked': g()",
        CAUGHT + "raise UsageError(str(error).replace('a', 'b')) from error",
        CAUGHT + "raise UsageError(f'{error}'.removeprefix('a')) from error",
        CAUGHT + "raise UsageError(str(error).partition(':')[2])",
        CAUGHT + "text = str(error)\n    g(text.startswith('a'))",
        CAUGHT + "text = one_line(error)\n    g(text.split(': '))",
        CAUGHT + "g(re.search('locked', str(error)))",
        CAUGHT + "g(LOCKED.search(str(error)))",
        CAUGHT + "g(error.args[0])",
        CAUGHT + "g(str(error)[:100])",
        "def is_locked(error: sqlite3.Error):\n    return 'locked' in str(error)",
        "def g(error: Exception | None):\n    return error.args",
        "class C:\n    def f(self):\n        "
        + CAUGHT.replace("\n", "\n        ")
        + "g(error.args)",
    ],
)
def test_a_planted_read_of_a_text_is_found(text):
    assert len(reads_of_texts(ast.parse(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        CAUGHT + "print(f'{name}: {error}; it is set aside')",
        CAUGHT + "raise UsageError(one_line(error), key='data') from error",
        CAUGHT + "if error.errno == errno.ENOSPC: g(error.name in names)",
        CAUGHT + "g(isinstance(error, OSError), [first_line(error)], path.name.split('.'))",
        "def f(text: str):\n    return text.split()",
        "def f(args):\n    return args.args, str(args) == ''",
    ],
)
def test_what_displays_an_error_or_reads_its_fields_is_allowed(text):
    assert reads_of_texts(ast.parse(text)) == []


# What happens when `python recipes/train.py` runs.

PROGRAM = """
import json, runpy, sys
tool, log, *arguments = sys.argv[1:]
stacks = runpy.run_path(tool)["watch_recipe"](arguments)
with open(log, "w") as file:
    json.dump(stacks, file)
"""


@pytest.fixture(scope="module")
def run(run_forked, tmp_path_factory):
    """A short run of the recipe: the stacks that led to the watched functions, and whether a
    compiler was called.
    """
    folder = tmp_path_factory.mktemp("run")
    compiler, called, log = folder / "failing_compiler", folder / "called", folder / "stacks.json"
    compiler.write_text(f"#!/bin/sh\necho called >> '{called}'\nexit 1\n")
    compiler.chmod(0o755)
    recipe = [str(ROOT / "recipes" / "train.py"), "debug=tiny", "logger=none"]
    compilers = {"CC": str(compiler), "CXX": str(compiler)}
    tool = str(ROOT / "tools" / "gauge.py")
    done = run_forked(PROGRAM, tool, str(log), *recipe, cwd=folder, **compilers)
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = called.exists()
    assert subprocess.run([compiler], check=False).returncode == 1
    assert called.exists()  # had it been called, there would be a trace
    return json.loads(log.read_text()), compiled


@pytest.mark.parametrize(
    ("ending", "function", "most_frames", "most_files"),
    [
        ("losses/functional.py", "bootstrapped_targets", 9, 5),
        ("trajectory/kv_cache.py", "attend", 12, 7),
    ],
)
def test_the_heart_of_a_run_lies_few_calls_deep(run, ending, function, most_frames, most_files):
    frames = run[0][ending]
    assert frames[0] == ["recipes/train.py", "<module>"]
    assert frames[-1] == [f"components/yamame/{ending}", function]
    assert len(frames) <= most_frames, frames
    assert len({file for file, _ in frames}) <= most_files, frames


def test_a_run_calls_no_compiler(run):
    assert not run[1]
