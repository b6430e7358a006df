"""Former name of `yamame.execution.precision`."""

import warnings

from yamame.execution import precision as _module

Precision = _module.Precision
multiplies_bfloat16 = _module.multiplies_bfloat16
instructions = _module.instructions
check_precision = _module.check_precision
in_precision = _module.in_precision

warnings.warn(
    "yamame.precision is deprecated, import yamame.execution.precision instead",
    DeprecationWarning,
    stacklevel=2,
)
