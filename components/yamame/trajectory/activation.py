"""The activation functions a trajectory encoder can be built with."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

Activation = Literal["leaky_relu", "gelu", "relu"]
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "relu": F.relu,
}


_OVERWRITING: dict[str, Callable[[Tensor], Tensor]] = {
    **_FUNCTIONS,
    "leaky_relu": F.leaky_relu_,
    "relu": F.relu_,
}


def activation_function(
    name: Activation, *, owner: str, overwrite: bool = False
) -> Callable[[Tensor], Tensor]:
    """The function called ``name``; with ``overwrite`` it may write its result into its input.

    Raises:
        ValueError: If there is none; the message speaks for the class ``owner``.
    """
    if name not in _FUNCTIONS:
        raise ValueError(f"{owner}: activation must be one of {sorted(_FUNCTIONS)}, got {name!r}")
    return _OVERWRITING[name] if overwrite else _FUNCTIONS[name]
