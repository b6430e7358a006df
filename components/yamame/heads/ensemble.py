"""Several perceptrons as one module with batched weights: one product per layer for all members."""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from yamame.checks import (
    Activation,
    NumLayers,
    PositiveInt,
    check_bounds,
    require,
    require_activation,
)


class EnsembleLinear(nn.Module):
    """C independent linear layers with ``weight [C, out, in]`` and ``bias [C, out]``.

    Each member is initialised as an `nn.Linear`.
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"weight": "hidden", "bias": "other"}

    def __init__(self, in_features: int, out_features: int, *, num_members: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(in_features)
        weight = torch.empty(num_members, out_features, in_features)
        bias = torch.empty(num_members, out_features)
        self.weight = nn.Parameter(weight.uniform_(-bound, bound))
        self.bias = nn.Parameter(bias.uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Map one input per member, ``[C, N, in]``, to ``[C, N, out]``."""
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.mT)

    def forward_shared(self, shared: Tensor, x: Tensor) -> Tensor:
        """Map the concatenation of two inputs, of which the first is common to many rows.

        Its product is computed once, not for each of these rows.

        Args:
            shared: First columns of the input, ``[*, in - n]``; broadcasts to the rows of ``x``.
            x: Last columns of the input, ``[*, n]``, the same for all members.

        Returns:
            ``[C, *, out]``.
        """
        num_members, out_features, _ = self.weight.shape
        sizes = [shared.shape[-1], x.shape[-1]]
        shared_weight, weight = self.weight.split(sizes, -1)
        rows = x.reshape(-1, sizes[1]).expand(num_members, -1, -1)
        shared_rows = shared.reshape(-1, sizes[0]).expand(num_members, -1, -1)

        product = torch.baddbmm(self.bias.unsqueeze(1), rows, weight.mT)
        product = product.view(num_members, *x.shape[:-1], out_features)
        shared_product = torch.bmm(shared_rows, shared_weight.mT)
        missing = [1] * (x.ndim - shared.ndim)
        shape = (num_members, *missing, *shared.shape[:-1], out_features)
        return product + shared_product.view(shape)


def full_precision_output(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Apply layers, the last one in float32 also under autocast."""
    *hidden, last = layers
    for layer in hidden:
        x = layer(x)
    if x.dtype == torch.float32:
        return last(x)
    # The advantage of an action is a small difference of large values. bfloat16 has 8 bits of
    # precision and would round it away.
    with torch.autocast(x.device.type, enabled=False):
        return last(x.float())


class EnsembleMLP(nn.Module):
    """C independent perceptrons: ``num_layers`` times (linear, activation), then a linear output.

    Args:
        in_features: Size of the input, which all members share.
        out_features: Size of each member's output.
        num_members: Number C of members.
        hidden_size: Width of the hidden layers.
        num_layers: Number of hidden layers.
        activation: Activation of the hidden layers (`yamame.checks.Activation`).

    Raises:
        ArgumentError: A size is not positive, or the activation is unknown.

    >>> EnsembleMLP(8, 3, num_members=4, hidden_size=16, num_layers=2)(torch.zeros(5, 7, 8)).shape
    torch.Size([5, 7, 4, 3])
    """

    @check_bounds
    def __init__(
        self,
        in_features: PositiveInt,
        out_features: PositiveInt,
        *,
        num_members: PositiveInt,
        hidden_size: PositiveInt,
        num_layers: NumLayers,
        activation: Activation = "leaky_relu",
    ) -> None:
        super().__init__()
        self.num_members = num_members
        # Critics are the widest part of an agent. In-place activations halve the memory that they
        # keep for the backward pass.
        activate = getattr(nn, require_activation("EnsembleMLP", activation))
        options = {} if activation == "gelu" else {"inplace": True}
        sizes = [in_features, *[hidden_size] * num_layers, out_features]
        layers: list[nn.Module] = []
        for size, next_size in pairwise(sizes):
            layers.append(EnsembleLinear(size, next_size, num_members=num_members))
            layers.append(activate(**options))
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor, shared: Tensor | None = None) -> Tensor:
        """Map one input for all members.

        Args:
            x: ``[*, in]``; with ``shared`` only the last columns of the input.
            shared: First columns of the input, where many rows have them in common. Broadcasts to
                the rows of ``x``.

        Returns:
            ``[*, C, out]``, float32 under autocast.
        """
        layers = list(self.layers)
        if shared is None:
            flat = x.reshape(-1, x.shape[-1])
            hidden = flat.expand(self.num_members, *flat.shape)
        else:
            first, activation, *layers = layers
            assert isinstance(first, EnsembleLinear)
            # Activated before it is flattened: in place, a view would be copied in the backward
            # pass.
            hidden = activation(first.forward_shared(shared, x)).flatten(1, -2)
        out = full_precision_output(layers, hidden)  # [C, N, out]
        return out.view(self.num_members, *x.shape[:-1], out.shape[-1]).movedim(0, -2)


def check_context(owner: str, context: Tensor, in_features: int) -> None:
    """Raise unless a context has the size that a head reads.

    Raises:
        ArgumentError: Its last dimension has another size.
    """
    shape = tuple(context.shape)
    fits = shape[-1:] == (in_features,)
    condition = f"end in {in_features}, the in_features of the head"
    require(owner, "shape of the context", shape, fits, condition)
