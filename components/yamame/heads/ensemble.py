"""Several perceptrons as one module with batched weights: one product per layer instead of one per
member.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from yamame.checks import require_at_least


class EnsembleLinear(nn.Module):
    """C independent linear layers; `weight [C, out, in]` and `bias [C, out]` are those of C stacked
    `nn.Linear`s.

    Each member is initialised by itself, on the scale of `nn.Linear`.
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"weight": "hidden", "bias": "other"}

    def __init__(self, in_features: int, out_features: int, *, num_members: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(in_features)
        self.weight = nn.Parameter(
            torch.empty(num_members, out_features, in_features).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.empty(num_members, out_features).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Each member its own input, `[C, N, in]` to `[C, N, out]`."""
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.mT)


def full_precision_output(layers: nn.Sequential, x: Tensor) -> Tensor:
    """What layers make of an input, the last of them in float32 under autocast as well.

    The advantage of an action is a small difference of large values, about as small as what
    bfloat16 rounds away.
    """
    *hidden, last = layers
    for layer in hidden:
        x = layer(x)
    if x.dtype == torch.float32:
        return last(x)
    with torch.autocast(x.device.type, enabled=False):
        return last(x.float())


class EnsembleMLP(nn.Module):
    """C independent perceptrons: `num_layers` times (linear, LeakyReLU), then a linear output.

    Raises:
        ValueError: if a size is not positive.

    >>> EnsembleMLP(8, 3, num_members=4, hidden_size=16, num_layers=2)(torch.zeros(5, 7, 8)).shape
    torch.Size([5, 7, 4, 3])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_members: int,
        hidden_size: int,
        num_layers: int,
    ) -> None:
        super().__init__()
        sizes = {
            "in_features": in_features,
            "out_features": out_features,
            "num_members": num_members,
        }
        require_at_least("EnsembleMLP", 1, **sizes, hidden_size=hidden_size, num_layers=num_layers)
        layers: list[nn.Module] = []
        for inner, outer in pairwise([in_features, *[hidden_size] * num_layers, out_features]):
            # In place: half as much stays in memory until the backward pass, and critics are the
            # widest part.
            layers += [
                EnsembleLinear(inner, outer, num_members=num_members),
                nn.LeakyReLU(inplace=True),
            ]
        self.num_members = num_members
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """The input `[*, in]` that all members read, to `[*, C, out]`, float32 also under
        autocast.
        """
        flat = x.reshape(-1, x.shape[-1])
        out = full_precision_output(self.layers, flat.expand(self.num_members, *flat.shape))
        return out.view(self.num_members, *x.shape[:-1], out.shape[-1]).movedim(0, -2)
