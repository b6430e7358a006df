"""Former name of `yamame.execution.capturing`."""

import warnings

from yamame.execution import capturing as _module

NUM_SEGMENTS = _module.NUM_SEGMENTS
capturing = _module.capturing
recording = _module.recording
Constant = _module.Constant

warnings.warn(
    "yamame.capturing is deprecated, import yamame.execution.capturing instead",
    DeprecationWarning,
    stacklevel=2,
)
