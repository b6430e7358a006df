"""Former name of `yamame.agent.roles`."""

import warnings

from yamame.agent import roles as _module

Role = _module.Role
parameter_roles = _module.parameter_roles
hidden_matrices = _module.hidden_matrices
output_layers = _module.output_layers

warnings.warn(
    "yamame.roles is deprecated, import yamame.agent.roles instead",
    DeprecationWarning,
    stacklevel=2,
)
