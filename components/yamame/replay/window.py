"""Windows: a part of bounded length of every trajectory of a batch.

Reads and cuts every entry of a right-padded batch ``[B, L]`` with a bool ``mask`` ``[B, L(, 1)]``; the last
row of a trajectory holds no transition, so ``T = mask.sum() - 1``. Entries are moved, not changed:
``is_init`` stays False where a window begins within a rollout, ``step_index`` goes on counting from the start
of the rollout. Law: every entry of every row comes from the same timestep of the same trajectory.

Source: AMAGO, arXiv 2310.09971, its sampling of sequences from trajectories.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.envs.transforms import Transform

from yamame.replay.layout import zero

Padding = Literal["none", "left", "right", "both"]


class Window(Transform):
    """Cuts each trajectory to at most ``length`` transitions (``length + 1`` timesteps), at a random place.

    Put it after transforms that need whole trajectories. In a `TransformedEnv` it does nothing. Draws come
    from ``generator``, or else from torch's global one.

    Args:
        length: Largest number of transitions, l below.
        padding: Where windows may begin, in a trajectory of T transitions. ``none``: uniformly in [0, T - l],
            so timesteps near the ends are seen less often; a shorter trajectory stays as it is. ``left``: in
            [1 - l, T - l]. ``right``: in [0, T - 2]. ``both``: in [1 - l, T - 2]. Whatever lies outside the
            trajectory is left out, which makes shorter sequences (right padded).
        mask_key: Which timesteps are real.
        transition_keys: Entries, or groups of entries, that describe the transition out of a timestep. They
            are zero in the last row of a window.
        generator: Source of all draws.

    Raises:
        ValueError: ``length`` is below 1 or ``padding`` unknown; in use, when the batch lacks ``mask_key``.

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
        mask_key: NestedKey = "mask",
        transition_keys: Sequence[NestedKey] = ("action", "next"),
        generator: torch.Generator | None = None,
    ) -> None:
        if length < 1:
            raise ValueError(f"Window: length must be at least 1, got {length}")
        if padding not in get_args(Padding):
            raise ValueError(f"Window: padding must be one of {get_args(Padding)}, got {padding!r}")
        super().__init__(in_keys=[mask_key], out_keys=[mask_key])
        self.length = length
        self.padding: Padding = padding
        self.mask_key = mask_key
        self.transition_keys = list(transition_keys)
        self.generator = generator

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the windows ``[B, L']``, L' the longest of them; the batch given is left as it is."""
        mask = tensordict.get(self.mask_key, None)
        if mask is None:
            raise ValueError(f"Window: the batch must hold {self.mask_key!r}, got {list(tensordict.keys())}")
        num_transitions = mask.reshape(tensordict.shape).sum(-1) - 1
        begin, end = draw_windows(num_transitions, self.length, self.padding, self.generator)
        longest = int((end - begin).max())
        if longest == tensordict.shape[1] and not bool(begin.any()):
            return tensordict.copy()
        out = _cut(tensordict, begin, end, longest)
        return end_windows(out, end - begin - 1, self.transition_keys)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict


def draw_windows(
    num_transitions: Tensor, length: int, padding: Padding = "none", generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draws one window per trajectory, as `Window` describes them.

    Args:
        num_transitions: ``[B]`` int64.
        length: Largest number of transitions of a window.
        padding: As for `Window`.
        generator: Source of the draws.

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


def end_windows(
    windows: TensorDictBase, last: Tensor, transition_keys: Sequence[NestedKey]
) -> TensorDictBase:
    """Zeroes, in place, the transition that leaves the last timestep ``last`` ``[B]`` of every window."""
    row = torch.arange(len(last), device=last.device)
    for key in transition_keys:
        entry = windows.get(key, None)
        leaves = entry.values(True, True) if isinstance(entry, TensorDictBase) else [entry]
        for leaf in leaves:
            if leaf is not None:
                leaf[row, last] = 0
    return windows


def _cut(tensordict: TensorDictBase, begin: Tensor, end: Tensor, longest: int) -> TensorDictBase:
    batch, num_steps = tensordict.shape
    first = begin + num_steps * torch.arange(batch, device=begin.device)
    last = batch * num_steps - longest  # no window of that length begins later
    parts = [(b, t, n - t) for b, (t, n) in enumerate(zip(begin.tolist(), end.tolist(), strict=True))]
    late = [(b, t, n) for b, t, n in parts if t + b * num_steps > last]
    padding = [(b, n, longest) for b, _, n in parts if n < longest]
    first = first.clamp(max=last)

    def cut(value: Tensor) -> Tensor:
        size = value[0, 0].numel()
        # All windows of so many timesteps are one view; this copies each of those asked for in one piece.
        windows = value.reshape(-1).unfold(0, longest * size, size).index_select(0, first)
        windows = windows.view(batch, longest, *value.shape[2:])
        for b, t, n in late:
            windows[b, :n] = value[b, t : t + n]
        return zero(windows, padding) if padding else windows

    return tensordict.apply(cut, batch_size=(batch, longest))
