"""Former name of `yamame.system.budget`."""

import warnings

from yamame.system import budget as _module

Budget = _module.Budget

warnings.warn(
    "yamame.budget is deprecated, import yamame.system.budget instead",
    DeprecationWarning,
    stacklevel=2,
)
