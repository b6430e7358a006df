"""Windows: a part of bounded length of every trajectory of a batch.

Cuts every entry of a right-padded batch ``[B, L]`` with a bool ``mask`` ``[B, L(, 1)]``. The last
timestep of a trajectory holds no transition, so a trajectory has ``T = mask.sum() - 1``
transitions. Entries are moved, not changed: ``action`` and ``next`` are zero at the last timestep
of a window, ``is_init`` stays False where a window begins within a rollout, ``step_index`` counts
from the start of the rollout. Law: all entries of a timestep come from the same timestep of the
same trajectory.

Source: AMAGO, arXiv 2310.09971, sampling of sequences from trajectories.
"""

from typing import Literal, get_args

import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.checks import PositiveInt, check_bounds, require_choice
from yamame.replay.gather import BatchTransform, clear_transitions, gather_timesteps

Padding = Literal["none", "left", "right", "both"]


class Window(BatchTransform):
    """Cuts each trajectory to at most ``length`` transitions (``length + 1`` timesteps) at random.

    It belongs after transforms that need whole trajectories, and has no effect in a
    `TransformedEnv`.

    Args:
        length: Largest number of transitions of a cut trajectory.
        padding: Range of the first timestep, in a trajectory of T transitions, with l the
            ``length``. ``none``: uniform in [0, T - l], so timesteps near the ends are sampled less
            often; a shorter trajectory is not cut. ``left``: in [1 - l, T - l]. ``right``: in [0, T
            - 2]. ``both``: in [1 - l, T - 2]. Timesteps outside of the trajectory are left out,
            which results in shorter, right-padded sequences.
        generator: Generator of all draws; None: torch's global one.

    Raises:
        ArgumentError: ``length`` is below 1 or ``padding`` unknown; in use, the batch lacks
            ``mask`` or is not packed.

    >>> from tensordict import TensorDict
    >>> mask = torch.ones(1, 5, 1, dtype=torch.bool)
    >>> batch = TensorDict({"x": torch.arange(5.0)[None], "mask": mask}, batch_size=[1, 5])
    >>> Window(2)(batch)["x"].diff()
    tensor([[1., 1.]])
    >>> Window(4)(batch)["x"]
    tensor([[0., 1., 2., 3., 4.]])
    """

    @check_bounds
    def __init__(
        self,
        length: PositiveInt,
        *,
        padding: Padding = "none",
        generator: torch.Generator | None = None,
    ) -> None:
        require_choice("Window", "padding", padding, get_args(Padding))
        super().__init__(in_keys=["mask"], out_keys=["mask"])
        self.length = length
        self.padding = padding
        self.generator = generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return windows ``[B, L']`` in a new batch, where L' is the longest of them."""
        (mask,) = self.entries(tensordict, ["mask"])
        self.check_shape(tensordict)
        batch, num_steps = tensordict.shape
        mask = mask.reshape(batch, num_steps)
        self.check_packed(tensordict, mask)
        num_transitions = mask.sum(-1) - 1
        begin, end = draw_windows(num_transitions, self.length, self.padding, self.generator)

        longest = int((end - begin).max())
        if longest == num_steps and not bool(begin.any()):
            return tensordict.copy()

        step = begin.unsqueeze(-1) + torch.arange(longest, device=begin.device)
        first = num_steps * torch.arange(batch, device=begin.device)
        source = first.unsqueeze(-1) + step
        windows = gather_timesteps(tensordict, source, step < end.unsqueeze(-1))
        # The transition out of the last timestep leads out of the window.
        return clear_transitions(windows, end - begin - 1)


def draw_windows(
    num_transitions: Tensor, length: int, padding: Padding, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one window per trajectory.

    Args:
        num_transitions: ``[B]`` int64.
        length, padding, generator: As for `Window`.

    Returns:
        First timestep, and timestep after the last, ``[B]`` int64 each.
    """
    # A window that begins at T - 2 holds at least two transitions.
    latest = num_transitions - (length if padding in ("none", "left") else 2)
    if padding in ("none", "right"):
        lowest = torch.zeros_like(latest)
        latest = latest.clamp(min=0)
    else:
        lowest = torch.full_like(latest, 1 - length)

    # float32 has 2**24 numbers in [0, 1), too few for uniform draws of places in long histories.
    share = torch.rand(lowest.shape, dtype=torch.float64, generator=generator, device=lowest.device)
    begin = lowest + (share * (latest - lowest + 1)).to(lowest.dtype)
    end = torch.minimum(begin + length, num_transitions) + 1
    return begin.clamp(min=0), end
