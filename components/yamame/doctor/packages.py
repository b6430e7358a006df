"""Whether Python and the packages fit each other. None of them is imported."""

import platform
import sys
from collections.abc import Iterator
from importlib import metadata

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
        package: One that is installed.
        extras: Those of its optional dependencies that are wanted.

    >>> next(conflicts("no-such-package"))
    'no-such-package: must be installed, run: pip install no-such-package'
    """
    waiting = [(package, frozenset(extras))]
    known = set(waiting)
    for owner, wanted in waiting:
        try:
            python = str(metadata.metadata(owner).json.get("requires_python", ""))
        except metadata.PackageNotFoundError:
            yield f"{owner}: must be installed, run: pip install {owner}"
            continue
        if not SpecifierSet(python).contains(platform.python_version(), prereleases=True):
            yield f"python: must be {python} for {owner}, got {platform.python_version()}"
        for text in metadata.requires(owner) or ():
            needed = Requirement(text)
            if needed.marker and not any(needed.marker.evaluate({"extra": name}) for name in wanted or ("",)):
                continue
            entry = needed.name, frozenset(needed.extras)
            if (problem := _conflict(needed, owner)) is not None:
                yield problem
            elif entry not in known:
                known.add(entry)
                waiting.append(entry)


def _conflict(needed: Requirement, owner: str) -> str | None:
    """Why a requirement does not hold."""
    try:
        version = metadata.version(needed.name)
    except metadata.PackageNotFoundError:
        version = "none"
    else:
        if needed.specifier.contains(version, prereleases=True):
            return None
    wanted = needed.specifier or "installed"
    remedy = f"pip install '{needed.name}{needed.specifier}'"
    return f"{needed.name}: must be {wanted} for {owner}, got {version}; run: {remedy}"


def as_text() -> str:
    """The versions that matter most, in a line."""
    return ", ".join([f"python {platform.python_version()}", *(f"{n} {metadata.version(n)}" for n in SHOWN)])


def require_packages(package: str = "yamame", *extras: str) -> None:
    """Ends the process with status 1 where something is missing, and says what, a line each."""
    if problems := [*conflicts(package, *extras)]:
        for problem in problems:
            print(f"problem: {problem}")
        raise SystemExit(1)
