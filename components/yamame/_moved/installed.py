"""Former name of `yamame.system.installed`."""

import warnings

from yamame.system import installed as _module

version_of = _module.version_of
is_installed = _module.is_installed
checkout = _module.checkout
conf_dir = _module.conf_dir
recipes_dir = _module.recipes_dir
recipe_command = _module.recipe_command

warnings.warn(
    "yamame.installed is deprecated, import yamame.system.installed instead",
    DeprecationWarning,
    stacklevel=2,
)
