"""Windows: a part of bounded length of every trajectory of a batch.

Reads and cuts every entry of a right-padded batch ``[B, L]`` with a bool ``mask`` ``[B, L(, 1)]``;
the last timestep of a trajectory holds no transition, so ``T = mask.sum() - 1``. Entries are moved,
not changed: ``action`` and ``next`` are zero at the last timestep of a window,
``is_init`` stays False where a window begins within a rollout, ``step_index`` goes on counting from
the start of the rollout. Law: all entries of a timestep come from the same timestep of the same
trajectory.

Source: AMAGO, arXiv 2310.09971, its sampling of sequences from trajectories.
"""

from typing import Literal, get_args

import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.checks import require_at_least, require_choice
from yamame.replay.gather import BatchTransform, clear_transitions, gather_timesteps

Padding = Literal["none", "left", "right", "both"]


class Window(BatchTransform):
    """Cuts each trajectory to at most ``length`` transitions (``length + 1`` timesteps), at a
    random place.

    Put it after transforms that need whole trajectories. In a `TransformedEnv` it does nothing.
    Draws come from ``generator``, or else from torch's global one.

    Args:
        length: Largest number of transitions, l below.
        padding: Where windows may begin, in a trajectory of T transitions. ``none``: uniformly in
            [0, T - l], so timesteps near the ends are seen less often; a shorter trajectory stays
            as it is. ``left``: in [1 - l, T - l]. ``right``: in [0, T - 2]. ``both``: in [1 - l, T
            - 2]. Whatever lies outside the trajectory is left out, which makes shorter sequences
              (right padded).
        generator: Source of all draws.

    Raises:
        ValueError: ``length`` is below 1 or ``padding`` unknown; in use, when the batch lacks
            ``mask``.

    >>> from tensordict import TensorDict
    >>> mask = torch.ones(1, 5, 1, dtype=torch.bool)
    >>> batch = TensorDict({"x": torch.arange(5.0)[None], "mask": mask}, batch_size=[1, 5])
    >>> Window(2)(batch)["x"].diff()
    tensor([[1., 1.]])
    >>> Window(4)(batch)["x"]
    tensor([[0., 1., 2., 3., 4.]])
    """

    def __init__(
        self,
        length: int,
        *,
        padding: Padding = "none",
        generator: torch.Generator | None = None,
    ) -> None:
        require_at_least("Window", 1, length=length)
        require_choice("Window", "padding", padding, get_args(Padding))
        super().__init__(in_keys=["mask"], out_keys=["mask"])
        self.length, self.padding, self.generator = length, padding, generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the windows ``[B, L']``, L' the longest of them; the batch given is left as it
        is.
        """
        (mask,) = self.entries(tensordict, ["mask"])
        batch, num_steps = tensordict.shape
        begin, end = draw_windows(
            mask.reshape(batch, num_steps).sum(-1) - 1, self.length, self.padding, self.generator
        )
        longest = int((end - begin).max())
        if longest == num_steps and not bool(begin.any()):
            return tensordict.copy()
        step = begin.unsqueeze(-1) + torch.arange(longest, device=begin.device)
        first = num_steps * torch.arange(batch, device=begin.device)
        out = gather_timesteps(tensordict, first.unsqueeze(-1) + step, step < end.unsqueeze(-1))
        return clear_transitions(out, end - begin - 1)


def draw_windows(
    num_transitions: Tensor, length: int, padding: Padding, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draws one window per trajectory of ``num_transitions`` ``[B]`` int64; other arguments as for
    `Window`.

    Returns:
        First timestep, and timestep after the last, ``[B]`` int64 each.
    """
    latest = num_transitions - (length if padding in ("none", "left") else 2)
    if padding in ("none", "right"):
        lowest, latest = torch.zeros_like(latest), latest.clamp(min=0)
    else:
        lowest = torch.full_like(latest, 1 - length)
    share = torch.rand(lowest.shape, dtype=torch.float64, generator=generator, device=lowest.device)
    begin = lowest + (share * (latest - lowest + 1)).to(lowest.dtype)
    end = torch.minimum(begin + length, num_transitions) + 1
    return begin.clamp(min=0), end
