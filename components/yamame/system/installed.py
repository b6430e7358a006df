"""Folders and versions of this package, whether it is installed or imported from a checkout."""

import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path

DOCUMENTATION = "https://yamame-rl.github.io/yamame"
"""Address of the documentation, as in pyproject.toml."""


def documentation_page(name: str) -> str:
    """Return the address of a page.

    Args:
        name: Path of the page below ``docs``, without its suffix.

    >>> documentation_page("howto/resume")
    'https://yamame-rl.github.io/yamame/howto/resume.html'
    """
    return f"{DOCUMENTATION}/{name}.html"


def version_of(package: str) -> str:
    """Return the version of a package; "none" if it is unknown.

    >>> version_of("yamame").count("."), version_of("no-such-package")
    (2, 'none')
    """
    # A checkout need not be installed, and another version may be: the code that runs counts.
    if package != "yamame" and is_installed(package):
        return metadata.version(package)
    return str(getattr(sys.modules.get(package), "__version__", "none"))


def is_installed(package: str = "yamame") -> bool:
    """Return whether a package was installed, not merely found on the path."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def checkout() -> Path | None:
    """Return the repository that yamame is imported from; None for an installed wheel."""
    root = Path(__file__).resolve().parents[3]
    if (root / "envs" / "yamame_envs").is_dir():
        return root
    return None


def conf_dir() -> Path:
    """Return the directory of the YAML files.

    It is ``yamame/conf`` in a wheel, and ``<repository>/conf`` in a checkout.

    Raises:
        FileNotFoundError: The package was installed without its configuration.

    >>> conf_dir().name
    'conf'
    """
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "conf", package.parents[1] / "conf")
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"conf_dir: one of {', '.join(map(str, candidates))} must exist")


def recipes_dir() -> Path:
    """Return the directory of the recipes, beside that of the YAML files.

    >>> recipes_dir().name
    'recipes'
    """
    return conf_dir().parent / "recipes"


def recipe_command(name: str) -> str:
    """Return the command that starts a recipe from the present directory.

    It is the console script if the package is installed, or else the path of the file.

    Args:
        name: Name of a recipe, such as ``train``.
    """
    if is_installed() and shutil.which("yamame"):
        return f"yamame {name}"
    try:
        path = recipes_dir() / f"{name}.py"
    except FileNotFoundError:
        # The command is part of error messages, so it must not raise another error.
        return f"yamame {name}"
    if path == Path.cwd() / "recipes" / f"{name}.py":
        return f"python recipes/{name}.py"
    return f"python {shlex.quote(str(path))}"
