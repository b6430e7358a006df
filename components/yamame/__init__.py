"""Yamame: in-context reinforcement learning from composable TorchRL components."""

from pathlib import Path

__version__ = "0.1.0"


def conf_dir() -> Path:
    """The directory of the YAML files: ``yamame/conf`` in a wheel, ``<repository>/conf`` in a checkout.

    Raises:
        FileNotFoundError: The package was installed without its configuration.

    >>> conf_dir().name
    'conf'
    """
    package = Path(__file__).resolve().parent
    candidates = (package / "conf", package.parents[1] / "conf")
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"conf_dir: one of {', '.join(map(str, candidates))} must exist")
