"""Sequence packing: short trajectories share a sequence instead of being padded.

Moves every entry of a right-padded batch ``[B, L]`` with a bool ``mask`` ``[B, L(, 1)]``. Laws:
every real timestep of the batch is in the result exactly once, its trajectory in one piece; where a
trajectory begins, ``is_init`` is set, so an encoder starts with a fresh memory and a loss has no
transition from the trajectory before. The mean of a loss over transitions is thus unchanged, except
for the order in which floats are added.

Source: Krell et al., "Efficient sequence packing without cross-contamination", arXiv 2107.02027.
"""

import torch
from tensordict import TensorDictBase

from yamame.checks import PositiveInt, check_bounds
from yamame.replay.gather import BatchTransform, gather_timesteps


class SequencePacking(BatchTransform):
    """Concatenates trajectories to as few sequences as possible, longest first.

    It belongs last, after transforms that need one trajectory per sequence, and has no effect in a
    `TransformedEnv`. It pays where lengths differ much: an update costs as much for padding as for
    real timesteps.

    Multiples limit the number of different shapes, where an update is recorded or compiled for each
    of them. Room is filled with padding; rows are first filled with trajectories of fuller rows.

    Args:
        row_multiple: Rows are added, filled with padding, until their number is a multiple of this.
            1 adds none.
        length_multiple: Rows are lengthened with padding until their length is a multiple of this,
            but not beyond ``longest``. 1 adds nothing.
        longest: Timesteps of the longest possible trajectory; None if unknown.

    Raises:
        ArgumentError: A number is below 1; in use, the batch lacks ``mask`` or ``is_init``, or
            is not packed.

    >>> from tensordict import TensorDict
    >>> mask = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    >>> x = torch.arange(12).view(3, 4)
    >>> batch = TensorDict({"x": x, "mask": mask, "is_init": torch.zeros_like(mask)}, [3, 4])
    >>> packed = SequencePacking()(batch)
    >>> packed["x"], packed["is_init"].int()
    (tensor([[ 4,  5,  6,  7],
            [ 8,  9, 10,  0]]), tensor([[1, 0, 0, 0],
            [1, 0, 0, 1]], dtype=torch.int32))
    """

    @check_bounds
    def __init__(
        self,
        *,
        row_multiple: PositiveInt = 1,
        length_multiple: PositiveInt = 1,
        longest: PositiveInt | None = None,
    ) -> None:
        super().__init__(in_keys=["mask", "is_init"], out_keys=["mask", "is_init"])
        self.row_multiple = row_multiple
        self.length_multiple = length_multiple
        self.longest = longest

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a new batch ``[B', L']``, where L' is the longest length, rounded up."""
        mask, _ = self.entries(tensordict, ["mask", "is_init"])
        self.check_shape(tensordict)
        mask = mask.reshape(tensordict.shape)
        self.check_packed(tensordict, mask)
        lengths = mask.sum(-1)
        # One transfer from the device: the loop below reads every length.
        sizes = lengths.tolist()
        sequences, num_rows, num_columns = self.plan(sizes)
        multiples = (self.row_multiple, self.length_multiple)
        if len(sequences) == len(sizes) and multiples == (1, 1):
            return tensordict.copy()

        # Index of the timestep that moves to each place; -1 is padding.
        stride = tensordict.shape[1]
        source = torch.full((num_rows, num_columns), -1)
        for row, trajectories in enumerate(sequences):
            column = 0
            for trajectory in trajectories:
                first = stride * trajectory
                size = sizes[trajectory]
                source[row, column : column + size] = torch.arange(first, first + size)
                column += size

        source = source.to(lengths.device)
        is_real = source >= 0
        packed = gather_timesteps(tensordict, source, is_real)
        packed.get("is_init")[is_real & (source % stride == 0)] = True
        return packed

    def plan(self, lengths: list[int]) -> tuple[list[list[int]], int, int]:
        """Assign trajectories to sequences.

        Args:
            lengths: Timesteps of each trajectory.

        Returns:
            Trajectories of each sequence, B' and L'.

        >>> SequencePacking(row_multiple=2, length_multiple=8).plan([5, 2, 1])
        ([[0, 1], [2]], 2, 8)
        """
        longest = max(lengths)
        num_columns = _round_up(longest, self.length_multiple)
        if self.longest is not None:
            num_columns = max(longest, min(num_columns, self.longest))

        sequences = first_fit(lengths, capacity=num_columns)
        num_rows = _round_up(len(sequences), self.row_multiple)
        # Batches of one shape then have the same number of segments, whatever their lengths.
        while len(sequences) < min(num_rows, len(lengths)):
            fullest = max(sequences, key=len)
            sequences.append([fullest.pop()])
        return sequences, num_rows, num_columns

    # Former name, for one version.
    shared_out = plan


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def first_fit(lengths: list[int], *, capacity: int) -> list[list[int]]:
    """Assign items to sequences, longest first, each to the first with room.

    Args:
        lengths: Size of each item.
        capacity: Size of a sequence.

    Returns:
        Items of each sequence (first-fit decreasing).

    >>> first_fit([2, 5, 3, 1], capacity=5)
    [[1], [2, 0], [3]]
    """
    sequences: list[list[int]] = []
    room: list[int] = []
    longest_first = sorted(range(len(lengths)), key=lambda item: -lengths[item])
    for item in longest_first:
        for number, free in enumerate(room):
            if free >= lengths[item]:
                sequences[number].append(item)
                room[number] -= lengths[item]
                break
        else:
            sequences.append([item])
            room.append(capacity - lengths[item])
    return sequences
