"""Yamame: in-context reinforcement learning from composable TorchRL components.

What stands here beside the packages of components is loaded when it is asked for.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yamame.deploy import load as load
    from yamame.runs.api import compose as compose
    from yamame.runs.api import evaluate as evaluate
    from yamame.runs.api import make_report as make_report
    from yamame.runs.api import train as train
    from yamame.runs.callbacks import Callback as Callback
    from yamame.runs.callbacks import EarlyStopping as EarlyStopping

__version__ = "0.2.0"


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


def recipes_dir() -> Path:
    """The directory of the recipes, beside that of the YAML files.

    >>> recipes_dir().name
    'recipes'
    """
    return conf_dir().parent / "recipes"


_LOADED_LATER = {
    "load": "yamame.deploy",
    **dict.fromkeys(("compose", "evaluate", "make_report", "train"), "yamame.runs.api"),
    **dict.fromkeys(("Callback", "EarlyStopping"), "yamame.runs.callbacks"),
}


def __getattr__(name: str) -> Any:
    if name in _LOADED_LATER:
        try:
            return getattr(importlib.import_module(_LOADED_LATER[name]), name)
        except ModuleNotFoundError as error:
            from yamame.failures import explain_missing

            if (reason := explain_missing(error)) is None:
                raise
            raise ModuleNotFoundError(f"yamame.{name}: {reason}", name=error.name) from None
    raise AttributeError(f"module 'yamame' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LOADED_LATER])
