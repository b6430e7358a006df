"""The layout of the repository: who may import whom, sizes of files and functions, what git may not
hide.
"""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = ("components", "envs", "recipes", "tools")
FOLDERS_WITHOUT_INIT = (*CODE, "conf", "tests")
LONGEST_FILE, LONGEST_FUNCTION = 500, 60
LONGEST_RECIPE, LONGEST_FIRST_RECIPE = 150, 70
FIRST_RECIPE = Path("recipes/train.py")
"""The recipe that is read first."""

TORCH = {"torch", "tensordict", "torchrl", "numpy"}
FLOORS = (
    {"files"},
    {"training"},
    {"collectors", "evaluation"},
    {"tracking"},
    {"deploy"},
    {"cli", "report"},
    {"runs"},
    {"doctor"},
)
"""Rooms of yamame above the components, lowest first: each may import what is below it, and
components none of them.
"""
DOORS = {
    "baselines": {"gymnasium", "sb3_contrib", "stable_baselines3"},
    "cli": {"cloudpickle", "hydra", "omegaconf", "pydantic", "pydantic_core", "yaml"},
    "collectors": {"ray"},
    "deploy": {"mlflow", "safetensors"},
    "data": {"h5py", "minari", "pyarrow"},
    "doctor": {"omegaconf", "packaging", "psutil"},
    "tracking": {"hydra", "omegaconf", "mlflow", "psutil"},
    "trajectory": {"transformers"},
    "evaluation": {"scipy"},
    "report": {"av", "jinja2", "matplotlib", "pandas", "PIL", "rich", "scipy"},
    "runs": {"hydra", "omegaconf", "rich", "yaml"},
}
"""What rooms may import beside torch's family."""
SHARED_WITH_ENVS = {
    "yamame.keys",
    "yamame.checks",
    "yamame.execution.capturing",
    "yamame.system.compiling",
    "yamame.system.messages",
    "yamame.system.user_code",
    "yamame.goals",
    "yamame.actions",
    "yamame.spaces",
    "yamame.transforms",
    "yamame.curriculum",
}
"""What environments may import of yamame: the format, what instructions and actions are, how spaces
are read, and who chooses tasks.
"""
GYMNASIUM = ("gymnasium", "cloudpickle")  # Gymnasium itself needs the latter
SHARED_WITH_COMPONENTS = {"yamame.files.paths", "yamame.files.schema"}
"""What components may import of the floors above: how files of others are opened and checked."""
GYMNASIUM_FILES = ("gymnasium_env.py", "registration.py")
HOSTS = {"adapters", "jax_games", "suites"}
"""Folders of yamame_envs that play environments of other libraries."""


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module a file imports, wherever in it; relative imports begin with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
            if node.level == 0:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_below(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def floor(room: str) -> int:
    """On which floor a room is; components are below the lowest."""
    return next((height for height, rooms in enumerate(FLOORS) if room in rooms), 0)


def is_allowed(file: Path, module: str) -> bool:
    """Whether a file, given by its path in the repository, may import a module."""
    root, name = file.parts[0], module.split(".")[0]
    if module.startswith(".") or name in (
        "tools",
        "components",
        "envs",
        "recipes",
        "conf",
        "tests",
    ):
        return False
    if name in sys.stdlib_module_names:
        return True
    if file.parts[:2] == ("components", "hydra_plugins"):  # launchers, which Hydra finds there
        return name in {"hydra", "omegaconf"} or is_below(module, {"yamame.cli"})
    if root == "components":
        room = file.parts[2]
        if room in ("__init__.py", "_moved"):  # it loads what people ask for, when they do
            return name == "yamame"
        if name != "yamame":
            return name in TORCH | DOORS.get(room, set())
        above = {
            f"yamame.{other}" for rooms in FLOORS[floor(room) :] for other in rooms if other != room
        }
        is_shared = module == "yamame.files" or is_below(module, SHARED_WITH_COMPONENTS)
        return is_shared or not is_below(module, {"yamame.recipes", *above})
    if root == "envs":
        hosts = len(file.parts) > 3 and file.parts[2] in HOSTS
        gymnasium = name in GYMNASIUM and (hosts or file.name in GYMNASIUM_FILES)
        shared = module == "yamame" or is_below(module, SHARED_WITH_ENVS)
        return name in TORCH or name == "yamame_envs" or shared or gymnasium
    if root == "recipes":
        siblings = {path.stem for path in (ROOT / "recipes").glob("*.py")}
        return name not in siblings and not is_below(module, {"yamame.recipes"})
    return True


def functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The name and number of lines of every function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def longest(file: Path) -> int:
    """The most lines that a file may have."""
    if file.parts[0] != "recipes":
        return LONGEST_FILE
    return LONGEST_FIRST_RECIPE if file == FIRST_RECIPE else LONGEST_RECIPE


def violations(root: Path, file: Path) -> list[str]:
    """What is wrong with one file of a repository."""
    text = (root / file).read_text()
    tree = ast.parse(text)
    found = [
        f"{file}: imports {module}" for module in imported(tree) if not is_allowed(file, module)
    ]
    if file.stem in sys.stdlib_module_names:
        found.append(f"{file}: is called like a module of the standard library")
    lines = text.count("\n")
    if lines > longest(file):
        found.append(f"{file}: {lines} lines")
    found += [
        f"{file}: {name} has {size} lines"
        for name, size in functions(tree)
        if size > LONGEST_FUNCTION
    ]
    return found


def code_files() -> list[Path]:
    return [
        path.relative_to(ROOT) for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))
    ]


def test_every_file_keeps_to_the_arrows_and_sizes():
    files = code_files()
    assert {"components", "envs"} <= {file.parts[0] for file in files}
    assert [problem for file in files for problem in violations(ROOT, file)] == []


PLANTED = [
    ("components/yamame/heads/a.py", "import mlflow"),
    ("components/yamame/heads/a.py", "from hydra.utils import instantiate"),
    ("components/yamame/heads/a.py", "import yamame_envs"),
    ("components/yamame/heads/a.py", "from yamame_envs import MazeRunner"),
    ("components/yamame/heads/a.py", "from yamame.runs import build"),
    ("components/yamame/heads/a.py", "from yamame.files import atomic_writer"),
    ("components/yamame/training/a.py", "from yamame.tracking import Tracker"),
    ("components/yamame/training/a.py", "import hydra"),
    ("components/yamame/collectors/a.py", "from yamame.evaluation import evaluate"),
    ("components/yamame/cli/a.py", "import mlflow"),
    ("components/yamame/report/a.py", "from yamame.cli.app import main"),
    ("components/yamame/report/a.py", "from mlflow.tracking import MlflowClient"),
    ("components/yamame/tracking/a.py", "from yamame.runs.build import build_env"),
    ("components/yamame/heads/a.py", "from yamame import runs"),
    ("components/yamame/__init__.py", "import torch"),
    ("components/yamame/heads/a.py", "from ..goals import view"),
    ("components/yamame/heads/a.py", "def f():\n    import scipy"),
    ("components/yamame/evaluation/a.py", "from arch.bootstrap import IIDBootstrap"),
    ("components/yamame/heads/a.py", "if TYPE_CHECKING:\n    import gymnasium"),
    ("components/yamame/runs/a.py", "import yamame_envs"),
    ("components/yamame/runs/a.py", "from yamame.recipes import train"),
    ("components/yamame/runs_more/a.py", "import mlflow"),
    ("components/hydra_plugins/a.py", "from yamame.runs import build"),
    ("envs/yamame_envs/a.py", "import gymnasium"),
    ("envs/yamame_envs/a.py", "from yamame import agent"),
    ("envs/yamame_envs/suites/a.py", "import crafter"),
    ("envs/yamame_envs/suites/a.py", "def f():\n    from metaworld import ML1"),
    ("envs/yamame_envs/suites.py", "import gymnasium"),
    ("envs/yamame_envs/a.py", "from yamame.goalsearch import a"),
    ("envs/yamame_envs/a.py", "from yamame.replay import pack"),
    ("components/yamame/heads/statistics.py", ""),
    ("recipes/a.py", "import tools.bench"),
    ("recipes/a.py", "from recipes.train import main"),
    ("recipes/a.py", "from yamame.recipes.train import main"),
    ("tools/a.py", "import tools.b"),
    ("components/yamame/heads/a.py", "\n" * (LONGEST_FILE + 1)),
    ("recipes/a.py", "\n" * (LONGEST_RECIPE + 1)),
    (str(FIRST_RECIPE), "\n" * (LONGEST_FIRST_RECIPE + 1)),
    ("components/yamame/heads/a.py", "def f():\n" + "    a = 1\n" * LONGEST_FUNCTION),
    (
        "components/yamame/heads/a.py",
        "class C:\n  async def f():\n" + "    a = 1\n" * LONGEST_FUNCTION,
    ),
]


@pytest.mark.parametrize(("name", "source"), PLANTED)
def test_a_planted_violation_is_found(tmp_path, name, source):
    file = Path(name)
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(source)
    assert len(violations(tmp_path, file)) >= 1


ALLOWED = [
    (
        "components/yamame/heads/a.py",
        "import math\nimport torch.nn as nn\nfrom yamame.goals import view",
    ),
    (
        "components/yamame/runs/a.py",
        "import hydra\nfrom yamame.cli import app\nimport yamame.runs.b",
    ),
    ("components/yamame/tracking/a.py", "from mlflow.tracking import MlflowClient"),
    (
        "components/yamame/collectors/a.py",
        "from yamame.training import Progress\nfrom yamame.agent import A",
    ),
    (
        "envs/yamame_envs/a.py",
        "from yamame.goals import view\nfrom yamame_envs.b import c\nimport torchrl",
    ),
    ("envs/yamame_envs/a.py", "from yamame.keys import CONTEXT\nfrom yamame.checks import require"),
    (
        "envs/yamame_envs/a.py",
        "from yamame.actions import A\nfrom yamame.transforms.context import B",
    ),
    ("envs/yamame_envs/registration.py", "import gymnasium as gym"),
    ("envs/yamame_envs/adapters/a.py", "from gymnasium import spaces"),
    ("recipes/a.py", "import hydra\nfrom yamame.training import Budget\nimport yamame_envs"),
    ("recipes/a.py", "\n" * LONGEST_RECIPE),
    ("components/yamame/heads/a.py", "def f():\n" + "    a = 1\n" * (LONGEST_FUNCTION - 1)),
]


@pytest.mark.parametrize(("name", "source"), ALLOWED)
def test_what_is_allowed_is_not_reported(tmp_path, name, source):
    file = Path(name)
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(source)
    assert violations(tmp_path, file) == []


def rooms_needed(package: Path) -> dict[str, set[str]]:
    """What every room of a package imports of its other rooms; a file at the top is a room of its
    own.
    """
    needed: dict[str, set[str]] = {}
    for file in package.rglob("*.py"):
        room = file.relative_to(package).parts[0].removesuffix(".py")
        parts = [module.split(".") for module in imported(ast.parse(file.read_text()))]
        others = {part[1] for part in parts if part[0] == package.name and len(part) > 1} - {room}
        needed.setdefault(room, set()).update(others)
    return {room: others & needed.keys() for room, others in needed.items() if room != "__init__"}


def test_rooms_do_not_need_each_other_in_circles():
    order = list(TopologicalSorter(rooms_needed(ROOT / "components" / "yamame")).static_order())
    assert order.index("goals") < order.index("replay") < order.index("runs")


def test_a_planted_circle_is_found(tmp_path):
    for room, other in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / "house" / room).mkdir(parents=True)
        (tmp_path / "house" / room / "part.py").write_text(
            f"def f():\n    from house.{other} import part\n"
        )
    with pytest.raises(CycleError):
        TopologicalSorter(rooms_needed(tmp_path / "house")).prepare()


def modules_needed(package: Path) -> dict[str, set[str]]:
    """Modules of a package that each of its modules imports, inside functions and for type checkers
    included.
    """
    files = {}
    for file in package.rglob("*.py"):
        parts = file.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file

    needed = {}
    for module, file in files.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                modules = names & files.keys()
                found |= modules if modules == names else modules | {str(node.module)}
        needed[module] = found & files.keys() - {module}
    return needed


@pytest.mark.parametrize("package", ["components/yamame", "envs/yamame_envs"])
def test_modules_do_not_import_each_other_in_circles(package):
    order = list(TopologicalSorter(modules_needed(ROOT / package)).static_order())
    assert len(order) > 40


@pytest.mark.parametrize(
    "text",
    [
        "from house.room.b import b",
        "from house.room import b",
        "def f():\n    import house.room.b",
        "if TYPE_CHECKING:\n    from house.room.b import b",
    ],
)
def test_a_planted_circle_within_a_room_is_found(tmp_path, text):
    room = tmp_path / "house" / "room"
    room.mkdir(parents=True)
    for name, content in {"__init__": "", "a": text, "b": "from house.room.a import a"}.items():
        (room / f"{name}.py").write_text(content)
    with pytest.raises(CycleError):
        TopologicalSorter(modules_needed(tmp_path / "house")).prepare()


def test_a_recipe_may_not_import_another_recipe_by_its_bare_name(tmp_path):
    for sibling in sorted(path.stem for path in (ROOT / "recipes").glob("*.py")):
        assert not is_allowed(Path("recipes/new.py"), sibling)


def test_the_folders_at_the_top_are_no_packages():
    assert [name for name in FOLDERS_WITHOUT_INIT if (ROOT / name / "__init__.py").exists()] == []


def test_what_the_quick_check_leaves_out_is_there():
    nodes = ast.parse((ROOT / "noxfile.py").read_text()).body
    (names,) = (
        ast.literal_eval(node.value)
        for node in nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LONG"
    )
    assert [name for name in names if not is_there(*name.split("::"))] == []
    assert not is_there("test_layout.py", "test_nothing")
    assert not is_there("test_nothing.py")


def is_there(name: str, test: str = "") -> bool:
    """Whether there is a file or folder of tests, and a test in it."""
    path = ROOT / "tests" / name
    return path.exists() and (not test or f"def {test}(" in path.read_text())


def hidden_by_git(folder: Path, ignore: str, names: list[str]) -> list[str]:
    """The names that a .gitignore hides in a fresh repository."""
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / ".gitignore").write_text(ignore)
    command = [
        "git",
        "-C",
        str(folder),
        "-c",
        "core.excludesFile=/dev/null",
        "check-ignore",
        "--no-index",
        *names,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_hides_nothing_of_the_source(tmp_path):
    ignore = (ROOT / ".gitignore").read_text()
    source = [str(file) for file in code_files()]
    source += [str(path.relative_to(ROOT)) for path in (ROOT / "conf").rglob("*.yaml")]
    source += ["conf/env/maze.yaml", "conf/run/a.yaml", "components/yamame/runs/a.py", "envs/a.py"]
    (tmp_path / "ours").mkdir()
    assert hidden_by_git(tmp_path / "ours", ignore, source) == []
    (tmp_path / "bad").mkdir()
    assert "conf/env/maze.yaml" in hidden_by_git(tmp_path / "bad", ignore + "\nenv/\n", source)
    (tmp_path / "outputs").mkdir()
    assert hidden_by_git(tmp_path / "outputs", ignore, ["runs/a/summary.json", "mlflow.db"]) != []
