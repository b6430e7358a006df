"""Wheels of packages that a GPU machine without a network lacks, and their installation."""

import email
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".wheels"
PREINSTALLED = frozenset({
    "cloudpickle", "jinja2", "matplotlib", "numpy", "packaging", "pandas", "pillow", "psutil",
    "pytest", "pytest-timeout", "pytest-xdist", "pyyaml", "rich", "safetensors", "scipy", "torch",
    "triton", "typing-extensions", "zipp",
})  # fmt: skip
"""Packages expected on the GPU machine, because images with PyTorch have them."""
UNUSED = frozenset({"mlflow"})
"""Dependencies not needed on the GPU machine: no part logs to MLflow."""
Get = Callable[[str], tuple[str, list[str]]]
"""Function from a requirement, such as ``"orjson>=3"``, to a version and its requirements."""


def declared() -> list[Requirement]:
    """Return the requirements of the package and its extra ``train``, with their bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    return [
        requirement for requirement in map(Requirement, lines) if requirement.name not in UNUSED
    ]


def carried(get: Get, python: str) -> dict[str, str]:
    """Obtain every package that is not preinstalled, and the packages that it requires.

    Args:
        get: Obtains one package. It is called again for a package when a later requirement narrows
            its bounds.
        python: Version of Python on the GPU machine, for markers such as
            ``python_version < "3.13"``.

    Returns:
        Versions by canonical name.
    """
    target = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    environment = {**default_environment(), **target}
    versions: dict[str, str] = {}
    bounds: dict[str, SpecifierSet] = {}
    waiting = declared()
    while waiting:
        requirement = waiting.pop(0)
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate(environment)
        if name in PREINSTALLED or not applies:
            continue
        bounds[name] = bounds.get(name, SpecifierSet()) & requirement.specifier
        if name in versions and bounds[name].contains(versions[name]):
            continue
        versions[name], requirements = get(f"{name}{bounds[name]}")
        waiting.extend(map(Requirement, requirements))
    return versions


def prepare(python: str, platform: str, folder: Path = FOLDER) -> None:
    """Download the wheels for a version of Python and a platform, replacing earlier ones."""
    folder.mkdir(exist_ok=True)
    for wheel in folder.glob("*.whl"):
        wheel.unlink()

    def get(requirement: str) -> tuple[str, list[str]]:
        return download(requirement, folder, python, platform)

    for name, version in carried(get, python).items():
        print(f"{name} {version}")
    size = sum(path.stat().st_size for path in folder.glob("*.whl"))
    print(f"{size / 2**20:.1f} MB of wheels for Python {python} in {folder}")


def download(requirement: str, folder: Path, python: str, platform: str) -> tuple[str, list[str]]:
    """Download the newest wheel that fulfils a requirement; see `Get`."""
    target = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    target += [f"--platform={tag}" for tag in compatible(platform)]
    with tempfile.TemporaryDirectory() as place:
        done = pip("download", "--no-deps", "--dest", place, *target, requirement)
        if (
            done.returncode != 0
        ):  # perhaps only its source is published, which is fine for pure Python
            built = pip("wheel", "--no-deps", "--wheel-dir", place, requirement)
            if built.returncode != 0 or not list(Path(place).glob("*-none-any.whl")):
                sys.exit(
                    f"{requirement}: no wheel for Python {python} on "
                    f"{platform}.\n{done.stderr}{built.stderr}"
                )
        wheel = next(Path(place).glob("*.whl"))
        name, version, _, _ = parse_wheel_filename(wheel.name)
        for other in folder.glob("*.whl"):
            if parse_wheel_filename(other.name)[0] == name:
                other.unlink()
        shutil.move(wheel, folder / wheel.name)
    with zipfile.ZipFile(folder / wheel.name) as archive:
        path = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(archive.read(path))
    return str(version), about.get_all("Requires-Dist") or []


def compatible(platform: str) -> list[str]:
    """Return the tags of wheels that a platform accepts; pip compares them literally.

    >>> compatible("manylinux_2_17_x86_64")[:2], compatible("macosx_14_0_arm64")
    (['manylinux_2_17_x86_64', 'manylinux_2_16_x86_64'], ['macosx_14_0_arm64'])
    """
    if not platform.startswith("manylinux_2_"):
        return [platform]
    minor, machine = platform.removeprefix("manylinux_2_").split("_", 1)
    tags = [f"manylinux_2_{number}_{machine}" for number in range(int(minor), 4, -1)]
    for name, needed in (("2014", 17), ("2010", 12), ("1", 5)):
        if int(minor) >= needed:
            tags.append(f"manylinux{name}_{machine}")
    return tags


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pip."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def lacking() -> tuple[list[str], list[str]]:
    """Return the declared packages that are missing, and those with an unsuitable version."""
    missing, outside = [], []
    for requirement in declared():
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.append(canonicalize_name(requirement.name))
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            outside.append(f"{requirement.name} {version} is not {requirement.specifier}")
    return missing, outside


def prepared(folder: Path = FOLDER) -> dict[str, Path]:
    """Return the downloaded wheels, by name of the package."""
    return {parse_wheel_filename(path.name)[0]: path for path in sorted(folder.glob("*.whl"))}


def install_command(target: Path, folder: Path = FOLDER) -> list[str]:
    """Return the command that installs all downloaded wheels without a network."""
    options = [
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--no-cache-dir",
        "--target",
        str(target),
    ]
    return [sys.executable, "-m", "pip", "install", *options, *map(str, prepared(folder).values())]
