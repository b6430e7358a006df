"""Sequence packing: short trajectories share a sequence instead of being padded to the longest one.

Reads and moves every entry of a right-padded batch ``[B, L]`` with a bool ``mask`` ``[B, L(, 1)]``.
Laws: every real timestep of the batch is in the result exactly once, its trajectory in one piece;
where a trajectory begins, ``is_init`` is set, so an encoder starts with a fresh memory and a loss
sees no transition from the trajectory before it. The mean of a loss over transitions is then what
it was, but for the order in which floats are added.

Source: Krell et al., "Efficient sequence packing without cross-contamination", arXiv 2107.02027.
"""

import torch
from tensordict import TensorDictBase

from yamame.checks import require_at_least
from yamame.replay.gather import BatchTransform, gather_timesteps


class SequencePacking(BatchTransform):
    """Puts trajectories one after the other into as few sequences as fit, longest first.

    Put it last, after transforms that need one trajectory per sequence. It pays where lengths
    differ much: an update costs as much for padding as for real timesteps. Multiples make shapes
    repeat, where an update is recorded or compiled for each of them; they are filled with padding,
    rows first with trajectories of fuller ones. In a `TransformedEnv` it does nothing.

    Args:
        row_multiple: Of what B' is a multiple.
        length_multiple: Of what L' is a multiple, unless that exceeds ``longest``.
        longest: Timesteps of the longest trajectory that there can be; None where nobody knows.

    Raises:
        ValueError: If a multiple is below 1; in use, when the batch lacks ``mask`` or ``is_init``.

    >>> from tensordict import TensorDict
    >>> mask = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    >>> batch = TensorDict({"x": torch.arange(12).view(3, 4), "mask": mask, "is_init": mask & False}, [3, 4])
    >>> packed = SequencePacking()(batch)
    >>> packed["x"], packed["is_init"].int()
    (tensor([[ 4,  5,  6,  7],
            [ 8,  9, 10,  0]]), tensor([[1, 0, 0, 0],
            [1, 0, 0, 1]], dtype=torch.int32))
    """

    def __init__(
        self, *, row_multiple: int = 1, length_multiple: int = 1, longest: int | None = None
    ) -> None:
        multiples = {"row_multiple": row_multiple, "length_multiple": length_multiple}
        require_at_least(
            "SequencePacking", 1, **multiples, longest=1 if longest is None else longest
        )
        self.row_multiple, self.length_multiple, self.longest = (
            row_multiple,
            length_multiple,
            longest,
        )
        super().__init__(in_keys=["mask", "is_init"], out_keys=["mask", "is_init"])

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Returns the packed batch ``[B', L']``, L' the longest length, rounded up; the one given
        stays as it is.
        """
        mask, _ = self.entries(tensordict, ["mask", "is_init"])
        lengths = mask.reshape(tensordict.shape).sum(-1)
        sequences, rows, columns = self.shared_out(lengths.tolist())
        stride = tensordict.shape[1]
        if len(sequences) == len(lengths) and (self.row_multiple, self.length_multiple) == (1, 1):
            return tensordict.copy()
        timesteps = (torch.arange(stride * len(lengths)).view(len(lengths), stride)).unbind()
        moved = [torch.cat([timesteps[i][: lengths[i]] for i in items]) for items in sequences]
        source = torch.full((rows, columns), -1)
        for row, timestep in zip(source, moved, strict=False):
            row[: len(timestep)] = timestep
        source = source.to(lengths.device)
        packed = gather_timesteps(tensordict, source, source >= 0)
        packed.get("is_init")[(source >= 0) & (source % stride == 0)] = True
        return packed

    def shared_out(self, lengths: list[int]) -> tuple[list[list[int]], int, int]:
        """Which trajectories are in which sequence, B' and L', given the lengths of all.

        >>> SequencePacking(row_multiple=2, length_multiple=8).shared_out([5, 2, 1])
        ([[0, 1], [2]], 2, 8)
        """
        longest = max(lengths)
        columns = _round_up(longest, self.length_multiple)
        if self.longest is not None:
            columns = max(longest, min(columns, self.longest))
        sequences = first_fit(lengths, capacity=columns)
        rows = _round_up(len(sequences), self.row_multiple)
        # In batches of one shape there are as many segments, whatever the lengths of trajectories.
        while len(sequences) < min(rows, len(lengths)):
            sequences.append([max(sequences, key=len).pop()])
        return sequences, rows, columns


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def first_fit(lengths: list[int], *, capacity: int) -> list[list[int]]:
    """Shares out items among sequences, longest first, each to the first with room (first-fit
    decreasing).

    >>> first_fit([2, 5, 3, 1], capacity=5)
    [[1], [2, 0], [3]]
    """
    sequences: list[list[int]] = []
    room: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        chosen = next((i for i, left in enumerate(room) if left >= lengths[item]), len(sequences))
        if chosen == len(sequences):
            sequences.append([])
            room.append(capacity)
        sequences[chosen].append(item)
        room[chosen] -= lengths[item]
    return sequences
