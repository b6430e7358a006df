"""Yamame: in-context reinforcement learning from composable TorchRL components.

The functions and classes of this module are imported on first use, so that ``import yamame`` is
fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

from yamame.system.installed import conf_dir as conf_dir
from yamame.system.installed import recipes_dir as recipes_dir

if TYPE_CHECKING:
    from yamame.deploy import load as load
    from yamame.runs.api import compose as compose
    from yamame.runs.api import evaluate as evaluate
    from yamame.runs.api import make_report as make_report
    from yamame.runs.api import train as train
    from yamame.runs.callbacks import Callback as Callback
    from yamame.runs.callbacks import EarlyStopping as EarlyStopping

__version__ = "0.2.0"

# Modules that have moved can be imported by their former names for one version.
__path__.append(f"{__path__[0]}/_moved")


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
            from yamame.system.messages import explain_missing

            if (reason := explain_missing(error)) is None:
                raise
            raise ModuleNotFoundError(f"yamame.{name}: {reason}", name=error.name) from None
    raise AttributeError(f"module 'yamame' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LOADED_LATER])
