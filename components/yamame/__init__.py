"""Yamame: in-context reinforcement learning from composable TorchRL components.

Functions and classes of this module are imported on first use, so that ``import yamame`` is fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

from yamame.system.installed import conf_dir as conf_dir
from yamame.system.installed import recipes_dir as recipes_dir

# Type checkers do not follow __getattr__, so they read the names here.
if TYPE_CHECKING:
    from yamame.deploy.load import load as load
    from yamame.runs.api import compose as compose
    from yamame.runs.api import evaluate as evaluate
    from yamame.runs.api import make_report as make_report
    from yamame.runs.api import train as train
    from yamame.runs.callbacks import Callback as Callback
    from yamame.runs.callbacks import EarlyStopping as EarlyStopping

__version__ = "0.2.0"

# Modules that have moved can be imported by their former names for one version.
__path__.append(f"{__path__[0]}/_moved")


_LAZY_MODULES = {
    "load": "yamame.deploy",
    "compose": "yamame.runs.api",
    "evaluate": "yamame.runs.api",
    "make_report": "yamame.runs.api",
    "train": "yamame.runs.api",
    "Callback": "yamame.runs.callbacks",
    "EarlyStopping": "yamame.runs.callbacks",
}
"""Module of each public name that is imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module 'yamame' has no attribute {name!r}")
    try:
        module = importlib.import_module(_LAZY_MODULES[name])
    except ModuleNotFoundError as error:
        from yamame.system.messages import explain_missing

        reason = explain_missing(error)
        if reason is None:
            raise
        # The missing package is the whole story; the traceback of the import would hide it.
        raise ModuleNotFoundError(f"yamame.{name}: {reason}", name=error.name) from None
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY_MODULES])
