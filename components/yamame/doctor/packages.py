"""Versions of Python and of packages, checked against what packages require.

None of the packages is imported.
"""

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
    sys.exit("doctor: the package packaging must be installed, run: pip install packaging")

SHOWN = ("yamame", "torch", "torchrl", "tensordict", "numpy", "hydra-core", "mlflow")


def conflicts(package: str = "yamame", *extras: str) -> Iterator[str]:
    """Yield a line for each requirement of a package, and of its requirements, that does not hold.

    Args:
        package: Name of an installed package; yamame may be a checkout.
        extras: Optional dependencies that are needed.

    >>> list(conflicts("no-such-package"))
    ['no-such-package: must be installed, run: pip install no-such-package']
    """
    waiting = [(package, frozenset(extras))]
    known = set(waiting)
    while waiting:
        owner, wanted = waiting.pop(0)
        try:
            python, requirements = _requirements_of(owner)
        except metadata.PackageNotFoundError:
            yield f"{owner}: must be installed, run: pip install {owner}"
            continue
        if not SpecifierSet(python).contains(platform.python_version(), prereleases=True):
            yield f"python: must be {python} for {owner}, got {platform.python_version()}"

        for text in requirements:
            needed = Requirement(text)
            if not _applies(needed, wanted):
                continue
            version = version_of(needed.name)
            # Pre-releases count, because nightly builds of torch are installed on purpose.
            entry = (needed.name, frozenset(needed.extras))
            if version == "none" or not needed.specifier.contains(version, prereleases=True):
                specifier = str(needed.specifier)
                remedy = f"run: pip install '{needed.name}{specifier}'"
                condition = f"must be {specifier or 'installed'} for {owner}"
                yield f"{needed.name}: {condition}, got {version}; {remedy}"
            elif entry not in known:
                known.add(entry)
                waiting.append(entry)


def _applies(needed: Requirement, extras: frozenset[str]) -> bool:
    """Return whether a requirement applies to this machine and to one of the extras."""
    if needed.marker is None:
        return True
    # A marker that does not mention extras is evaluated with any value.
    return any(needed.marker.evaluate({"extra": name}) for name in extras or ("",))


def _requirements_of(package: str) -> tuple[str, list[str]]:
    """Return the versions of Python that a package supports, and its requirements.

    Raises:
        PackageNotFoundError: The package is not installed.
    """
    root = checkout()
    # A checkout has no metadata, but the same requirements stand in its pyproject.toml.
    if package != "yamame" or root is None or is_installed():
        python = str(metadata.metadata(package).json.get("requires_python", ""))
        return python, metadata.requires(package) or []

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    requirements = list(project["dependencies"])
    for extra, texts in project["optional-dependencies"].items():
        requirements += [f"{text}; extra == '{extra}'" for text in texts]
    return project["requires-python"], requirements


def describe_packages() -> str:
    """Describe the most important versions in one line."""
    versions = [f"{name} {version_of(name)}" for name in SHOWN]
    return ", ".join([f"python {platform.python_version()}", *versions])


def require_packages(package: str = "yamame", *extras: str) -> None:
    """Check the requirements of a package.

    Args:
        package, extras: As for `conflicts`.

    Raises:
        SystemExit: A requirement does not hold. A line for each is printed, and the status is 1.
    """
    problems = list(conflicts(package, *extras))
    for problem in problems:
        print(f"problem: {problem}")
    if problems:
        raise SystemExit(1)
