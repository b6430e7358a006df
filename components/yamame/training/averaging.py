"""Averaged weights: a copy of a network that follows it slowly and is less noisy."""

import copy
from collections.abc import Mapping
from typing import Annotated, Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from yamame.checks import Bounds, check_bounds
from yamame.trajectory.sigma import copy_statistics, sigma_layers

M = TypeVar("M", bound=nn.Module)
_MANY_UPDATES = 10**9
"""Number of updates after which the bias correction has no effect."""


class AveragedWeights(Generic[M]):
    """An exponential average of a network's weights over updates (Polyak and Juditsky, 1992).

    Gradient noise moves the weights to and fro around a point that their average is nearer to.
    While the learning rate is high the average acts better; when the rate falls to zero, both end
    alike. Running statistics are those of the network itself.

    At first the average is over few updates and forgets the initial weights: after ``n`` updates
    the next one keeps ``min(decay, (1 + n) / (10 + n))`` of it. With a decay of 0.98 a share of
    1e-5 of the initial weights is left after 10 updates; without this correction it would be 0.82,
    and 0.36 after 50. So it is over about the last ninth of the updates, a share of the run so far,
    until ``decay`` limits it.

    Args:
        network: Network that is followed.
        decay: Share of the average that an update keeps in the long run, in [0, 1): the average is
            then over about ``1 / (1 - decay)`` updates. 0 makes it a plain copy.

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

    @check_bounds
    def __init__(self, network: M, *, decay: Annotated[float, Bounds(least=0, below=1)]) -> None:
        self.decay = decay
        self._followed = network
        self.network: M = copy.deepcopy(network).requires_grad_(False).eval()
        for layer in sigma_layers(self.network):
            layer.is_average = True
        device = None
        for parameter in network.parameters():
            device = parameter.device
            break
        # On the device and never read by the host, so that updates can be recorded as CUDA graphs.
        self._num_updates = torch.zeros((), dtype=torch.float64, device=device)

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the present weights; call this after the optimizer's step."""
        keep = (1.0 + self._num_updates) / (10.0 + self._num_updates)
        move = 1.0 - keep.clamp(max=self.decay)
        move_by_dtype: dict[torch.dtype, Tensor] = {}
        pairs = zip(self.network.parameters(), self._followed.parameters(), strict=True)
        for average, weight in pairs:
            # Cast once per dtype, to save a kernel per parameter.
            if average.dtype not in move_by_dtype:
                move_by_dtype[average.dtype] = move.to(average.dtype)
            average.lerp_(weight, move_by_dtype[average.dtype])
        copy_statistics(self._followed, self.network)
        self._num_updates += 1.0
        self.mark_stale()

    def mark_stale(self) -> None:
        """Stop using weights prepared for acting.

        `update` calls this; a replay of a recorded update must be followed by a call.
        """
        for layer in sigma_layers(self.network):
            layer.is_stale = True

    def tensors(self) -> list[Tensor]:
        """Return all tensors that `update` reads beside the followed network, for recordings."""
        return [*self.network.parameters(), *self.network.buffers(), self._num_updates]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the copy, under the names of the network, and the update count."""
        # Singular vectors of the averaged weights are computed when they are needed.
        for layer in sigma_layers(self.network):
            layer.find_vectors()
        return {"network": self.network.state_dict(), "num_updates": self._num_updates.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        if "num_updates" in state:
            self.network.load_state_dict(state["network"])
            self._num_updates.copy_(state["num_updates"])
        else:
            # Version 0.2 saved the copy alone and averaged without correction.
            self.network.load_state_dict(state)
            self._num_updates.fill_(_MANY_UPDATES)
