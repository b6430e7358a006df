"""Averaged weights: a copy of a network that follows it slowly, less noisy than the weights of any one update."""

import copy
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from yamame.checks import require
from yamame.trajectory.sigma import copy_statistics, sigma_layers

M = TypeVar("M", bound=nn.Module)


class AveragedWeights(Generic[M]):
    """An exponential average of a network's weights over updates (Polyak and Juditsky, 1992).

    Gradient noise moves the weights to and fro around a point that their average is nearer to. While the learning rate
    is high the average acts better; where the rate falls to zero, both end alike. Running statistics are those of the
    network itself.

    Args:
        network: What is followed.
        decay: Share of the average that an update leaves, in [0, 1): it is over about ``1 / (1 - decay)`` updates. 0
            makes it a plain copy.

    Attributes:
        network: The copy, in evaluation mode and without gradients.

    Raises:
        ValueError: If ``decay`` is out of its range.

    >>> line = nn.Linear(1, 1, bias=False)
    >>> _ = line.weight.data.fill_(0.0)
    >>> averaged = AveragedWeights(line, decay=0.9)
    >>> _ = line.weight.data.fill_(1.0)
    >>> averaged.update()
    >>> averaged.network.weight.item()
    0.10000000149011612
    """

    def __init__(self, network: M, *, decay: float) -> None:
        require("AveragedWeights", "decay", decay, 0.0 <= decay < 1.0, "be in [0, 1)")
        self._followed = network
        self.network: M = copy.deepcopy(network).requires_grad_(False).eval()
        for layer in sigma_layers(self.network):
            layer.is_average = True
        self._average = get_ema_multi_avg_fn(decay)

    @torch.no_grad()
    def update(self) -> None:
        """Moves the average towards the present weights; to be called after the optimizer's step."""
        followed, averages = self._followed, self.network
        self._average(list(averages.parameters()), list(followed.parameters()), None)
        copy_statistics(followed, averages)

    def state_dict(self) -> dict[str, Any]:
        """The state of the copy, under the names of the network."""
        for layer in sigma_layers(self.network):
            layer.find_vectors()
        return self.network.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`."""
        self.network.load_state_dict(state)
