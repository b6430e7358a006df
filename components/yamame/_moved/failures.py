"""Former name of `yamame.system.messages`."""

import warnings

from yamame.system import messages as _module

OutsideError = _module.OutsideError
OF_TRAINING = _module.TRAIN_PACKAGES
explain_missing = _module.explain_missing
one_line = _module.one_line
tell_aside = _module.print_stderr
print_whole = _module.print_stdout
as_text = _module.format_value

warnings.warn(
    "yamame.failures is deprecated, import yamame.system.messages instead",
    DeprecationWarning,
    stacklevel=2,
)
