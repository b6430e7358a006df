"""Order of the rows, columns and channels of an image: inferred from its shape, or given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

from torch import Tensor

from yamame.checks import ArgumentError, require, require_choice

ChannelAxis = Literal["auto", "first", "last"]


@dataclass(frozen=True)
class ImageShape:
    """Size of an image and position of its channels.

    Args:
        num_channels: Number of channels, over all frames.
        height: Number of rows.
        width: Number of columns.
        channel_axis: ``"first"``, ``"last"``, ``"both"`` for one dimension of channels on each side
            (stacked frames ``[F, H, W, C]``), or None for an image without a channel dimension.
        num_dims: Number of dimensions of the image.
    """

    num_channels: int
    height: int
    width: int
    channel_axis: Literal["first", "last", "both"] | None
    num_dims: int = 3

    def channels_first(self, image: Tensor) -> Tensor:
        """Return an image ``[*, ...]`` as ``[*, C, H, W]``; only stacked frames are copied."""
        if self.channel_axis is None:
            return image.unsqueeze(-3)
        if self.num_dims == 3:
            return image.movedim(-1, -3) if self.channel_axis == "last" else image
        if self.channel_axis == "last":
            image = image.movedim((-2, -1), (-4, -3))
        elif self.channel_axis == "both":
            image = image.movedim(-1, -3)
        return image.flatten(-4, -3)

    @classmethod
    def of(cls, shape: Sequence[int], *, channel_axis: ChannelAxis = "auto", owner: str) -> Self:
        """Find the channels of an image.

        Two dimensions are rows and columns of one channel. Three dimensions are ``[C, H, W]`` with
        ``"first"`` and ``[H, W, C]`` with ``"last"``. With ``"auto"`` the channels are the first or
        the last dimension if it is smaller than both others, or if both others are equal.

        Four dimensions are stacked frames, whose channels are concatenated: rows and columns are
        the two adjacent dimensions that are larger than both others, as in ``[F, H, W, C]`` and
        ``[F, C, H, W]``.

        Args:
            shape: Shape of the image, without batch dimensions.
            channel_axis: Position of the channels, for three dimensions.
            owner: Class or function named by errors.

        Raises:
            ArgumentError: The shape has another number of dimensions, or is ambiguous with
                ``"auto"``.

        >>> ImageShape.of((64, 48, 3), owner="demo").channel_axis
        'last'
        >>> ImageShape.of((4, 64, 48, 3), owner="demo").num_channels
        12
        """
        require_choice(owner, "channel_axis", channel_axis, get_args(ChannelAxis))
        shape = tuple(shape)
        require(owner, "shape", shape, len(shape) in (2, 3, 4), "have 2, 3 or 4 dimensions")
        if len(shape) == 2:
            return cls(1, *shape, channel_axis=None, num_dims=2)
        if len(shape) == 4:
            return cls._of_frames(shape, owner)
        first, middle, last = shape
        if channel_axis == "auto":
            found = _channel_axis(shape)
            condition = f"be 'first' or 'last' for the ambiguous shape {shape}"
            require(owner, "channel_axis", channel_axis, found is not None, condition)
            channel_axis = found or "last"
        if channel_axis == "first":
            return cls(first, middle, last, channel_axis="first")
        return cls(last, first, middle, channel_axis="last")

    @classmethod
    def _of_frames(cls, shape: tuple[int, ...], owner: str) -> Self:
        """Find the rows and columns of stacked frames, four dimensions."""
        places: tuple[Literal["last", "both", "first"], ...] = ("last", "both", "first")
        for index, channel_axis in enumerate(places):
            height, width = shape[index : index + 2]
            others = shape[:index] + shape[index + 2 :]
            if min(height, width) > max(others):
                num_channels = others[0] * others[1]
                return cls(num_channels, height, width, channel_axis, num_dims=4)
        condition = "have two adjacent dimensions, rows and columns, larger than both others"
        raise ArgumentError(owner, "shape", shape, condition)


def _channel_axis(shape: tuple[int, ...]) -> Literal["first", "last"] | None:
    """Return the channel axis that three dimensions show, or None if they are ambiguous."""
    first, middle, last = shape
    if first != last and min(first, last) < middle:
        return "first" if first < last else "last"
    # Many channels: the two equal dimensions are the rows and columns of a square.
    if first == middle != last:
        return "last"
    if middle == last != first:
        return "first"
    return None
