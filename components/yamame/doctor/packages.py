"""Whether Python and the packages fit each other. None of them is imported."""

import platform
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata

from yamame.system.installed import checkout, is_installed, version_of

try:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
except ImportError:
    sys.exit(
        "doctor: packaging: is needed to compare versions and is not installed; run: pip install packaging"
    )

SHOWN = ("yamame", "torch", "torchrl", "tensordict", "numpy", "hydra-core", "mlflow")


def conflicts(package: str = "yamame", *extras: str) -> Iterator[str]:
    """What a package misses, a line each: what it needs, what that needs, and so on.

    Args:
        package: One that is installed; yamame may be a checkout.
        extras: Those of its optional dependencies that are wanted.

    >>> next(conflicts("no-such-package"))
    'no-such-package: must be installed, run: pip install no-such-package'
    """
    waiting = [(package, frozenset(extras))]
    known = set(waiting)
    for owner, wanted in waiting:
        try:
            python, requirements = _needs_of(owner)
        except metadata.PackageNotFoundError:
            yield f"{owner}: must be installed, run: pip install {owner}"
            continue
        if not SpecifierSet(python).contains(platform.python_version(), prereleases=True):
            yield f"python: must be {python} for {owner}, got {platform.python_version()}"
        for text in requirements:
            needed = Requirement(text)
            if needed.marker and not any(
                needed.marker.evaluate({"extra": name}) for name in wanted or ("",)
            ):
                continue
            entry = needed.name, frozenset(needed.extras)
            if (problem := _conflict(needed, owner)) is not None:
                yield problem
            elif entry not in known:
                known.add(entry)
                waiting.append(entry)


def _needs_of(package: str) -> tuple[str, list[str]]:
    """The versions of Python that a package takes, and its requirements; of a checkout, from its
    pyproject.toml.

    Raises:
        PackageNotFoundError: It is not there.
    """
    root = checkout()
    if package != "yamame" or root is None or is_installed():
        python = str(metadata.metadata(package).json.get("requires_python", ""))
        return python, metadata.requires(package) or []
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    requirements = list(project["dependencies"])
    for extra, texts in project["optional-dependencies"].items():
        requirements += [f"{text}; extra == '{extra}'" for text in texts]
    return project["requires-python"], requirements


def _conflict(needed: Requirement, owner: str) -> str | None:
    """Why a requirement does not hold."""
    version = version_of(needed.name)
    if version != "none" and needed.specifier.contains(version, prereleases=True):
        return None
    wanted = needed.specifier or "installed"
    remedy = f"pip install '{needed.name}{needed.specifier}'"
    return f"{needed.name}: must be {wanted} for {owner}, got {version}; run: {remedy}"


def as_text() -> str:
    """The versions that matter most, in a line."""
    return ", ".join(
        [f"python {platform.python_version()}", *(f"{n} {version_of(n)}" for n in SHOWN)]
    )


def require_packages(package: str = "yamame", *extras: str) -> None:
    """Ends the process with status 1 where something is missing, and says what, a line each."""
    if problems := [*conflicts(package, *extras)]:
        for problem in problems:
            print(f"problem: {problem}")
        raise SystemExit(1)
