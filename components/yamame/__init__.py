"""Yamame: in-context reinforcement learning from composable TorchRL components."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yamame.deploy import load as load

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`yamame.load`, which is imported when it is asked for: ``import yamame`` alone stays light."""
    if name == "load":
        from yamame.deploy import load

        return load
    raise AttributeError(f"module 'yamame' has no attribute {name!r}")


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
