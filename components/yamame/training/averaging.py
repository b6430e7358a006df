"""Averaged weights: a copy of a network that follows it slowly, less noisy than the weights of any
one update.
"""

import copy
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from yamame.checks import require
from yamame.trajectory.sigma import copy_statistics, sigma_layers

M = TypeVar("M", bound=nn.Module)
_LONG_AGO = 10**9
"""Updates after which nothing is corrected any more."""


class AveragedWeights(Generic[M]):
    """An exponential average of a network's weights over updates (Polyak and Juditsky, 1992).

    Gradient noise moves the weights to and fro around a point that their average is nearer to.
    While the learning rate is high the average acts better; where the rate falls to zero, both end
    alike. Running statistics are those of the network itself.

    The average is over few updates at first and forgets the initial weights: after ``n`` updates
    the next one keeps ``min(decay, (1 + n) / (10 + n))`` of it. With a decay of 0.98 a share of
    1e-5 of the initial weights is left after 10 updates, where it would be 0.82 without this
    correction, and 0.36 after 50.

    Args:
        network: Network that is followed.
        decay: Share of the average that an update keeps in the long run, in [0, 1): it is then over
            about ``1 / (1 - decay)`` updates. 0 makes it a plain copy.

    Attributes:
        network: The copy, in evaluation mode and without gradients. It may be called at any time.
            Sigma-reparametrised layers decompose their weights in every forward, unless the copy is
            prepared to act after the last update.

    Raises:
        ValueError: If ``decay`` is out of its range.

    >>> line = nn.Linear(1, 1, bias=False)
    >>> _ = line.weight.data.fill_(0.0)
    >>> averaged = AveragedWeights(line, decay=0.9)
    >>> _ = line.weight.data.fill_(1.0)
    >>> averaged.update()
    >>> averaged.network.weight.item()
    0.8999999761581421
    """

    def __init__(self, network: M, *, decay: float) -> None:
        require("AveragedWeights", "decay", decay, 0.0 <= decay < 1.0, "be in [0, 1)")
        self.decay = decay
        self._followed = network
        self.network: M = copy.deepcopy(network).requires_grad_(False).eval()
        for layer in sigma_layers(self.network):
            layer.is_average = True
        # On the device and never read by the host, for updates may be recorded as CUDA graphs.
        device = next((parameter.device for parameter in network.parameters()), None)
        self._num_updates = torch.zeros((), dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(self) -> None:
        """Moves the average towards the present weights; to be called after the optimizer's
        step.
        """
        followed, averages = self._followed, self.network
        keep = ((1.0 + self._num_updates) / (10.0 + self._num_updates)).clamp(max=self.decay)
        moves = {
            dtype: (1.0 - keep).to(dtype) for dtype in {p.dtype for p in averages.parameters()}
        }
        for average, weight in zip(averages.parameters(), followed.parameters(), strict=True):
            average.lerp_(weight, moves[average.dtype])
        copy_statistics(followed, averages)
        self._num_updates += 1.0
        self.mark_stale()

    def mark_stale(self) -> None:
        """Stops using weights prepared for acting. `update` calls this; replays of a recorded
        update must do so.
        """
        for layer in sigma_layers(self.network):
            layer.is_stale = True

    def tensors(self) -> list[Tensor]:
        """All tensors that `update` reads beside the followed network, for a recording to
        declare.
        """
        return [*self.network.parameters(), *self.network.buffers(), self._num_updates]

    def state_dict(self) -> dict[str, Any]:
        """The state of the copy, under the names of the network, and the number of updates."""
        for layer in sigma_layers(self.network):
            layer.find_vectors()
        return {"network": self.network.state_dict(), "num_updates": self._num_updates.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`.

        That of version 0.2 is the copy alone: it goes on without correction, as it did.
        """
        if "num_updates" in state:
            self.network.load_state_dict(state["network"])
            self._num_updates.copy_(state["num_updates"])
        else:
            self.network.load_state_dict(state)
            self._num_updates.fill_(_LONG_AGO)
