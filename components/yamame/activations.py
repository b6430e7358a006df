"""Activations of hidden layers, by name."""

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from yamame.checks import require_choice

Activation = Literal["leaky_relu", "gelu", "relu", "mish"]

_CLASSES: dict[str, type[nn.Module]] = {
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "mish": nn.Mish,
}


def activation_function(owner: str, name: Activation) -> Callable[[Tensor], Tensor]:
    """Return an activation by its name.

    Args:
        owner: Class named in the error.
        name: Name of the activation.

    Raises:
        ArgumentError: The name is unknown.
    """
    require_choice(owner, "activation", name, get_args(Activation))
    function: Callable[[Tensor], Tensor] = getattr(F, name)
    return function


def activation_class(
    owner: str, name: Activation, *, inplace: bool = False
) -> Callable[[], nn.Module]:
    """Return the module class of an activation.

    Args:
        owner: Class named in the error.
        name: Name of the activation.
        inplace: Whether the module may overwrite its input, where it can (GELU cannot).

    Raises:
        ArgumentError: The name is unknown.
    """
    require_choice(owner, "activation", name, get_args(Activation))
    found = _CLASSES[name]
    if inplace and found is not nn.GELU:
        return partial(found, inplace=True)
    return found
