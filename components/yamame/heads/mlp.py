"""The multi-layer perceptron of the heads, alone and as an ensemble with batched weights."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def check_sizes(owner: str, **sizes: int) -> None:
    """Raise ValueError unless every size is positive."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{owner}: {name} must be positive, got {size}")


def make_mlp(
    in_features: int, out_features: int, *, hidden_size: int, num_layers: int, dropout: float = 0.0
) -> nn.Sequential:
    """`num_layers` times (linear, LeakyReLU, dropout if any), then a linear output; for rows `[N, in]`."""
    layers: list[nn.Module] = []
    for _ in range(num_layers):
        layers += [nn.Linear(in_features, hidden_size), nn.LeakyReLU(inplace=True)]
        layers += [nn.Dropout(dropout)] if dropout > 0 else []
        in_features = hidden_size
    return nn.Sequential(*layers, nn.Linear(in_features, out_features))


class EnsembleLinear(nn.Module):
    """C independent linear layers; `weight [C, out, in]` and `bias [C, out]` are C stacked `nn.Linear`s.

    Each member is initialised by itself with the scale of `nn.Linear`.
    """

    def __init__(self, in_features: int, out_features: int, *, num_members: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(in_features)
        self.weight = nn.Parameter(
            torch.empty(num_members, out_features, in_features).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.empty(num_members, out_features).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Each member its own input, `[C, in, N]` to `[C, out, N]`."""
        return torch.baddbmm(self.bias.unsqueeze(2), self.weight, x)


class EnsembleMLP(nn.Module):
    """C independent perceptrons: `num_layers` times (linear, LeakyReLU), then a linear output.

    The members share their input, so the first layer of them all is one matrix product. It is left to the
    caller, who may know more about the input: `first_weight [C * H, in]` and `first_bias [C * H]` give
    `hidden [C * H, *]`, which the module takes on from there. Features come before rows, for so the members are
    apart in memory and no layer, forward or backward, has to reorder anything.
    """

    def __init__(
        self, in_features: int, out_features: int, *, num_members: int, hidden_size: int, num_layers: int
    ) -> None:
        super().__init__()
        self.num_members, self.hidden_size = num_members, hidden_size
        self.first = EnsembleLinear(in_features, hidden_size, num_members=num_members)
        self.middle = nn.ModuleList(
            EnsembleLinear(hidden_size, hidden_size, num_members=num_members) for _ in range(num_layers - 1)
        )
        self.last = EnsembleLinear(hidden_size, out_features, num_members=num_members)

    @property
    def first_weight(self) -> Tensor:
        """The first layers' weights, stacked: `[C * H, in]`."""
        return self.first.weight.flatten(0, 1)

    @property
    def first_bias(self) -> Tensor:
        """The first layers' biases, stacked: `[C * H]`."""
        return self.first.bias.flatten()

    def forward(self, hidden: Tensor) -> Tensor:
        """The first layer's output `[C * H, *]` (overwritten; not a view) to `[C, out, N]`."""
        # In place, for a linear layer keeps its input for the backward pass, not its output; and before any
        # view is taken, for writing to a view makes autograd copy its base.
        hidden = F.leaky_relu_(hidden)
        x = hidden.view(self.num_members, self.hidden_size, hidden.shape[1:].numel())
        for layer in self.middle:
            x = F.leaky_relu_(layer(x))
        return self.last(x)
