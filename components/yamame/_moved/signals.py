"""Former name of `yamame.system.signals`."""

import warnings

from yamame.system import signals as _module

STATUS = _module.EXIT_STATUS
SIGNALS = _module.SIGNALS
Terminated = _module.Terminated
noted = _module.received
end_if_noted = _module.exit_if_received
later = _module.deferred
end_while_loading = _module.exit_while_loading
stopping = _module.handling
unheard = _module.blocked
kept = _module.restoring_handlers

warnings.warn(
    "yamame.signals is deprecated, import yamame.system.signals instead",
    DeprecationWarning,
    stacklevel=2,
)
