"""Checks of the project: ``nox -s tests`` is the definition of tested, ``nox -s quick`` a quick
check.
"""

import os
import re
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["tests", "lint", "types"]
nox.options.reuse_existing_virtualenvs = True

LONG = (
    "base", "baselines", "collectors", "deploy", "envs", "files", "gpu_emulation", "distributed",
    "recipes", "report",
    "runs", "spaces", "tracking",
    "trajectory/adapters", "trajectory/segments",
    "agent/test_recorded.py", "agent/test_separate.py", "cli/test_app.py", "cli/test_console.py",
    "cli/test_front.py", "cli/test_jobs.py", "cli/test_local_jobs.py",
    "data/test_sources.py", "doctor/test_trial.py", "evaluation/test_diagnosis.py",
    "evaluation/test_held_out.py",
    "evaluation/test_intervals.py", "evaluation/test_needed_memory.py",
    "evaluation/test_task_intervals.py",
    "losses/test_continuous.py", "losses/test_redq_bandit.py", "losses/test_redq_learning.py",
    "replay/disk/test_storage.py",
    "test_ablations.py", "test_benchmark.py", "test_examples.py", "test_first_gpu_run.py",
    "test_overlap.py", "test_side_by_side.py",
    "execution/test_recorder.py", "test_tutorials.py",
    "test_house.py", "testing/test_trajectory.py", "timestep/test_cnn.py",
    "training/test_recorded_updates.py", "trajectory/test_compiled.py",
    "trajectory/test_recall.py", "trajectory/test_registry.py",
    "test_docs.py::test_the_python_of_a_how_to_runs",
    "test_docs.py::test_the_settings_that_how_tos_name_are_there",
    "test_docs.py::test_the_settings_of_gymnasium_environments_are_there",
    "test_pages.py::test_the_commands_of_a_page_compose", "test_thumbnails.py",
    "test_readme.py::test_the_script_of_the_readme_runs",
    "test_readme.py::test_the_script_that_trains_from_python_runs",
)  # fmt: skip
"""Tests that take seconds: they play, learn or start processes. ``quick`` leaves them out."""

EXTRAS = (
    "tests/deploy", "tests/data", "tests/trajectory/adapters/test_hf.py",
    "tests/recipes/test_hf.py",
    "tests/recipes/test_api.py", "tests/test_conf.py", "tests/envs/adapters/test_robotics.py",
)  # fmt: skip
"""Tests of what other libraries do here, which skip where these are missing."""

CLUSTER = (
    "tests/collectors", "tests/recipes/test_cluster.py", "tests/recipes/test_sweeps.py",
    "tests/cli/test_slurm.py",
)  # fmt: skip
"""Tests of actors of Ray, and of jobs of sweeps in other processes."""
JAX = (
    "tests/envs/jax_games", "tests/recipes/test_jax.py",
    "tests/test_docs.py::test_the_python_of_a_how_to_runs[own_jax_game]",
)  # fmt: skip
"""Tests of games written in JAX."""

DEFAULT = "not slow and not gpu and not cluster and not page and not server"
"""What is tested unless somebody asks for more."""

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
VERSION = re.search(r'__version__ = "(.*)"', Path("components/yamame/__init__.py").read_text())[1]


def pinned(*names: str) -> list[str]:
    """The requirements of these tools as the ``dev`` extra pins them."""
    extra = PROJECT["optional-dependencies"]["dev"]
    return [requirement for requirement in extra if requirement.split("==")[0] in names]


@nox.session(venv_backend="none")
def quick(session: nox.Session) -> None:
    """Lint, and all tests but the long ones: about a minute, in the environment that is active."""
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    left_out = [f"--{'deselect' if '::' in name else 'ignore'}=tests/{name}" for name in LONG]
    chosen = session.posargs or ["tests", "components", *left_out]
    session.run("pytest", "-q", "-n", "auto", "-m", DEFAULT, *chosen)


@nox.session
def tests(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("pytest", "-n", "auto", "-m", DEFAULT, *session.posargs)


@nox.session
def newest(session: nox.Session) -> None:
    """All tests with the newest versions that the bounds admit, of torch and of what trains."""
    session.install("--upgrade", "--upgrade-strategy", "eager", "-e", ".[dev]")
    session.run("pytest", "-n", "auto", "-m", DEFAULT, *session.posargs)


@nox.session
def public(session: nox.Session) -> None:
    """Check workflows, forms and the citation by their schemas, the packages by PyPI's rules."""
    session.install("check-jsonschema>=0.39", "build", "twine", "uv")
    session.run("uv", "lock", "--check")
    github = Path(".github")
    for schema, files in {
        "github-workflows": sorted(github.glob("workflows/*.yml")),
        "github-issue-forms": [
            github / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "feature")
        ],
        "github-issue-config": [github / "ISSUE_TEMPLATE" / "config.yml"],
        "citation-file-format": [Path("CITATION.cff")],
    }.items():
        session.run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files))
    dist = session.create_tmp()
    session.run("python", "-m", "build", "--outdir", dist)
    session.run("twine", "check", "--strict", *map(str, Path(dist).glob("yamame-*")))


@nox.session
def base(session: nox.Session) -> None:
    """Trains where the base dependencies are all that is installed."""
    session.install("-e", ".")
    session.run("python", "tests/base/program.py")


@nox.session
def deploy(session: nox.Session) -> None:
    """Load agents from the wheel with the base dependencies alone, and act."""
    dist = session.create_tmp()
    session.install("build")
    session.run("python", "-m", "build", "--wheel", "--outdir", dist)
    session.install("--force-reinstall", "--no-deps", *map(str, Path(dist).glob("*.whl")))
    session.install("--find-links", dist, f"yamame=={VERSION}")
    program = Path("tests/base/acting.py").resolve()
    session.chdir(dist)  # away from the checkout
    session.run("python", str(program), env={"PYTHONPATH": None})


@nox.session
def suites(session: nox.Session) -> None:
    session.install("-e", ".[dev,suites]")
    session.run(
        "python",
        "-W",
        "ignore",
        "-c",
        "import ale_py, crafter, metaworld, minigrid, mujoco, popgym",
    )
    files = ("tests/envs/suites", "tests/envs/test_contract.py", "tests/recipes/test_every_env.py")
    session.run("pytest", "-m", DEFAULT, *(session.posargs or files))


@nox.session
def extras(session: nox.Session) -> None:
    """Run tests that need further libraries: ONNX, data files, Hugging Face models, robots."""
    session.install("-e", ".[dev,onnx,data,hf,robotics,sweep]")
    session.run(
        "python", "-W", "ignore", "-c", "import onnxruntime, onnxscript, h5py, minari, transformers"
    )
    session.run(
        "python",
        "-W",
        "ignore",
        "-c",
        "import gymnasium_robotics, mujoco, submitit, optuna",
    )
    session.run("pytest", "-m", DEFAULT, *(session.posargs or EXTRAS))


@nox.session
@nox.parametrize("extras", ["gymnax,xland,craftax", "arcade"])
def jax(session: nox.Session, extras: str) -> None:
    """Games written in JAX, in one environment for each set of packages that exclude others."""
    session.install("-e", f".[dev,{extras}]")
    modules = {"gymnax": "gymnax", "xland": "xminigrid", "craftax": "craftax"}
    names = [modules.get(extra, "popgym_arcade") for extra in extras.split(",")]
    session.run("python", "-W", "ignore", "-c", f"import jax, {', '.join(names)}")
    # Laws of these libraries are an error where they cannot be tested, and are not skipped.
    needed = {"YAMAME_TEST_LIBRARIES": ",".join(names)}
    session.run("pytest", "-m", DEFAULT, *(session.posargs or JAX), env=needed)
    session.run(
        "python", "tests/gpu_emulation/program.py", "laws", "tests/gpu_emulation/laws_of_jax.py"
    )


@nox.session
def cluster(session: nox.Session) -> None:
    """Actors of Ray that are killed, and sweeps in other processes."""
    session.install("-e", ".[dev,ray,sweep]")
    session.run(
        "pytest",
        "-m",
        "cluster",
        *(session.posargs or CLUSTER),
    )


@nox.session
def server(session: nox.Session) -> None:
    """Track runs and a sweep on MLflow's server and PostgreSQL; restart both. About six minutes."""
    if not shutil.which("initdb") and not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        (session.error if os.environ.get("CI") == "true" else session.skip)(
            "no PostgreSQL is installed, run: apt-get install postgresql"
        )
    session.install("-e", ".[dev]", "psycopg2-binary>=2.9")
    session.run("pytest", "-m", "server", "-s", *(session.posargs or ("tests/server",)))


@nox.session
def lint(session: nox.Session) -> None:
    session.install(*pinned("ruff"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    # mypy reads the types of installed packages; those of the tests save an installation.
    python = Path(session.virtualenv.location).parent / "tests" / "bin" / "python"
    if python.exists():
        session.install(*pinned("mypy"))
        session.run("mypy", "--python-executable", str(python))
    else:
        session.install("-e", ".[dev]")
        session.run("mypy")


@nox.session
def wheel(session: nox.Session) -> None:
    dist = session.create_tmp()
    session.install("build")
    session.run("python", "-m", "build", "--wheel", "--outdir", dist)
    session.install("--find-links", dist, f"yamame[train]=={VERSION}")
    session.chdir(dist)
    session.run(
        "python", "-c", "import yamame; assert (yamame.conf_dir() / 'train.yaml').is_file()"
    )
    session.run("python", "-m", "yamame.recipes.train", "--help", silent=True)


@nox.session
def docs(session: nox.Session) -> None:
    """Builds the site into ``site``; whatever MkDocs warns of is an error."""
    session.install(*PROJECT["optional-dependencies"]["docs"])
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def page(session: nox.Session) -> None:
    """Open a report of tiny runs in the system's Chromium; screenshots: ``.nox/page/tmp``."""
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        (session.error if os.environ.get("CI") == "true" else session.skip)(
            "no Chromium is installed"
        )
    session.install("-e", ".[dev]", "playwright>=1.50")
    shots = session.create_tmp()
    session.run(
        "pytest", "-m", "page", "tests/recipes/test_page.py", env={"YAMAME_SCREENSHOTS": shots}
    )


@nox.session
def examples(session: nox.Session) -> None:
    """Runs the examples and the tutorials from top to bottom."""
    session.install("-e", ".[dev]")
    session.run(
        "pytest",
        "-n",
        "auto",
        *(session.posargs or ("tests/test_examples.py", "tests/test_tutorials.py")),
    )


@nox.session
def bench(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("python", "tools/benchmark.py", *session.posargs)
