"""The project's checks: ``nox`` runs them all, ``nox -s tests`` is the definition of tested."""

from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["tests", "lint", "types"]
nox.options.reuse_existing_virtualenvs = True

PROJECT = nox.project.load_toml("pyproject.toml")["project"]


def pinned(*names: str) -> list[str]:
    """The requirements of these tools as the ``dev`` extra pins them."""
    extra = PROJECT["optional-dependencies"]["dev"]
    return [requirement for requirement in extra if requirement.split("==")[0] in names]


@nox.session
def tests(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("pytest", "-m", "not slow and not gpu", *session.posargs)


@nox.session
def suites(session: nox.Session) -> None:
    session.install("-e", ".[dev,suites]")
    session.run("python", "-W", "ignore", "-c", "import ale_py, crafter, metaworld, minigrid, mujoco, popgym")
    files = ("tests/envs/suites", "tests/envs/test_contract.py", "tests/recipes/test_every_env.py")
    session.run("pytest", "-m", "not slow and not gpu", *(session.posargs or files))


@nox.session
def lint(session: nox.Session) -> None:
    session.install(*pinned("ruff"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    # mypy reads the types of installed packages; those of the tests are good enough and save an installation.
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
    functions = sorted(str(path.relative_to("components")) for path in Path("components").rglob("*.[ch]"))
    session.install("--find-links", dist, f"yamame[train]=={PROJECT['version']}")
    session.chdir(dist)
    session.run("python", "-c", "import yamame; assert (yamame.conf_dir() / 'train.yaml').is_file()")
    session.run("python", "-m", "yamame.recipes.train", "--help", silent=True)
    held = f"all((Path(yamame.__file__).parents[1] / name).is_file() for name in {functions})"
    session.run("python", "-c", f"from pathlib import Path; import yamame; assert {held}")


@nox.session
def bench(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("python", "tools/benchmark.py", *session.posargs)
