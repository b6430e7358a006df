"""Order of the rows, columns and channels of an image: inferred from its shape, or given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

from torch import Tensor

from yamame.checks import require, require_choice

ChannelAxis = Literal["auto", "first", "last"]


@dataclass(frozen=True)
class ImageShape:
    """Size of an image and position of its channels.

    Args:
        num_channels: Number of channels.
        height: Number of rows.
        width: Number of columns.
        channel_axis: ``"first"``, ``"last"``, or None for an image without a channel dimension.
    """

    num_channels: int
    height: int
    width: int
    channel_axis: Literal["first", "last"] | None

    def channels_first(self, image: Tensor) -> Tensor:
        """Return an image ``[*, ...]`` as ``[*, C, H, W]``, without a copy."""
        if self.channel_axis is None:
            return image.unsqueeze(-3)
        if self.channel_axis == "last":
            return image.movedim(-1, -3)
        return image

    @classmethod
    def of(cls, shape: Sequence[int], *, channel_axis: ChannelAxis = "auto", owner: str) -> Self:
        """Find the channels of an image.

        Two dimensions are rows and columns of one channel. Three dimensions are ``[C, H, W]`` with
        ``"first"`` and ``[H, W, C]`` with ``"last"``. With ``"auto"`` the channels are the first or
        the last dimension if it is smaller than both others.

        Args:
            shape: Shape of the image, without batch dimensions.
            channel_axis: Position of the channels.
            owner: Class or function named by errors.

        Raises:
            ArgumentError: The shape has another number of dimensions, or is ambiguous with
                ``"auto"``.

        >>> ImageShape.of((64, 48, 3), owner="demo")
        ImageShape(num_channels=3, height=64, width=48, channel_axis='last')
        """
        require_choice(owner, "channel_axis", channel_axis, get_args(ChannelAxis))
        shape = tuple(shape)
        require(owner, "shape", shape, len(shape) in (2, 3), "have 2 or 3 dimensions")
        if len(shape) == 2:
            return cls(1, *shape, channel_axis=None)
        first, middle, last = shape
        if channel_axis == "auto":
            is_clear = first != last and min(first, last) < middle
            condition = f"be 'first' or 'last' for the ambiguous shape {shape}"
            require(owner, "channel_axis", channel_axis, is_clear, condition)
            channel_axis = "first" if first < last else "last"
        if channel_axis == "first":
            return cls(first, middle, last, channel_axis="first")
        return cls(last, first, middle, channel_axis="last")
