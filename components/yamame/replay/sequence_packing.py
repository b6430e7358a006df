"""Sequence packing: short trajectories share a row instead of being padded to the longest one.

Reads and moves every entry of a right-padded batch ``[B, L]`` with a bool ``mask`` ``[B, L(, 1)]``. Laws: every
real timestep of the batch is in the result exactly once, its trajectory in one piece; where a trajectory
begins, ``is_init`` is set, so an encoder starts with a fresh memory and a loss sees no transition from the
trajectory before it. The mean of a loss over transitions is then what it was, but for the order in which
floats are added.

Source: Krell et al., "Efficient sequence packing without cross-contamination", arXiv 2107.02027.
"""

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.envs.transforms import Transform


class SequencePacking(Transform):
    """Puts trajectories one after the other into as few rows as fit, longest first.

    Put it last, after transforms that need one trajectory per row. It pays where lengths differ much: an
    update costs what rows times length cost, real or padded. In a `TransformedEnv` it does nothing.

    Args:
        mask_key: Which timesteps are real.
        init_key: Where a memory must start afresh.

    Raises:
        ValueError: In use, when the batch lacks one of these keys.

    >>> from tensordict import TensorDict
    >>> mask = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    >>> batch = TensorDict({"x": torch.arange(12).view(3, 4), "mask": mask, "is_init": mask & False}, [3, 4])
    >>> packed = SequencePacking()(batch)
    >>> packed["x"], packed["is_init"].int()
    (tensor([[ 4,  5,  6,  7],
            [ 8,  9, 10,  0]]), tensor([[1, 0, 0, 0],
            [1, 0, 0, 1]], dtype=torch.int32))
    """

    def __init__(self, *, mask_key: NestedKey = "mask", init_key: NestedKey = "is_init") -> None:
        super().__init__(in_keys=[mask_key, init_key], out_keys=[mask_key, init_key])
        self.mask_key = mask_key
        self.init_key = init_key

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the packed batch ``[B', L']``, L' the longest trajectory; the one given is left as it is."""
        for key in (self.mask_key, self.init_key):
            if tensordict.get(key, None) is None:
                held = list(tensordict.keys())
                raise ValueError(f"SequencePacking: the batch must hold {key!r}, got {held}")
        lengths = tensordict.get(self.mask_key).reshape(tensordict.shape).sum(-1)
        rows = first_fit(lengths.tolist(), capacity=int(lengths.max()))
        if len(rows) == len(lengths):
            return tensordict.copy()
        source, real, first = _places(rows, lengths.tolist(), tensordict.shape[1], device=lengths.device)

        def move(value: Tensor) -> Tensor:
            value = value.flatten(0, 1).index_select(0, source.flatten()).unflatten(0, source.shape)
            value[~real] = 0
            return value

        packed = tensordict.apply(move, batch_size=source.shape)
        packed.get(self.init_key)[first] = True
        return packed

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict


def first_fit(lengths: list[int], *, capacity: int) -> list[list[int]]:
    """Shares out items among rows, longest first, each to the first row with room (first-fit decreasing).

    >>> first_fit([2, 5, 3, 1], capacity=5)
    [[1], [2, 0], [3]]
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((r for r, left in enumerate(room) if left >= lengths[item]), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(capacity)
        rows[row].append(item)
        room[row] -= lengths[item]
    return rows


def _places(
    rows: list[list[int]], lengths: list[int], stride: int, *, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Where every timestep ``[B', L']`` comes from, which are real, and which begin a trajectory."""
    width = max(lengths)
    source = torch.zeros(len(rows), width, dtype=torch.int64)
    real, first = torch.zeros_like(source, dtype=torch.bool), torch.zeros_like(source, dtype=torch.bool)
    for row, items in enumerate(rows):
        begin = 0
        for item in items:
            end = begin + lengths[item]
            source[row, begin:end] = torch.arange(item * stride, item * stride + lengths[item])
            real[row, begin:end] = True
            first[row, begin] = True
            begin = end
    return source.to(device), real.to(device), first.to(device)
