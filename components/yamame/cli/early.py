"""Ctrl-C while a recipe is still imported: a line instead of a traceback.

`yamame.cli.front` imports this module first. In a process that runs no recipe it has no effect.
"""

import os
import sys
from types import TracebackType

from yamame.system.installed import recipes_dir


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a line about an interruption, and any other error as Python does."""
    if issubclass(kind, KeyboardInterrupt):
        name = os.path.basename(sys.argv[0]).removesuffix(".py")
        print(f"{name}: interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


_program = getattr(sys.modules["__main__"], "__file__", None) or ""
if os.path.realpath(os.path.dirname(_program)) == str(recipes_dir()):
    sys.excepthook = _report
