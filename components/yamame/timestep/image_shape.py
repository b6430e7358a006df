"""Where the rows, columns and channels of an image are: decided once from its shape, or said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

from torch import Tensor

from yamame.checks import require, require_choice

ChannelAxis = Literal["auto", "first", "last"]


@dataclass(frozen=True)
class ImageShape:
    """Channels and size of an image, and whether its channels come ``"first"``, ``"last"`` or not
    at all.
    """

    num_channels: int
    height: int
    width: int
    channel_axis: Literal["first", "last"] | None

    def channels_first(self, image: Tensor) -> Tensor:
        """The image ``[*, ...]`` as ``[*, C, H, W]``, without a copy."""
        if self.channel_axis is None:
            return image.unsqueeze(-3)
        return image.movedim(-1, -3) if self.channel_axis == "last" else image

    @classmethod
    def of(cls, shape: Sequence[int], *, channel_axis: ChannelAxis = "auto", owner: str) -> Self:
        """Where an image of this shape has its channels.

        Two dimensions are rows and columns of one channel. Of three, ``"first"`` means
        ``[C, H, W]`` and ``"last"`` ``[H, W, C]``; ``"auto"`` takes the first or the last dimension
        for the channels if it is smaller than both others, and refuses to guess elsewhere.

        Args:
            shape: Of the image, without batch dimensions.
            channel_axis: Where the channels are.
            owner: Who asks, for the error's text.

        Raises:
            ValueError: If the shape has another number of dimensions, or ``"auto"`` cannot tell.

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
            tells = first != last and min(first, last) < middle
            condition = f"be 'first' or 'last' for shape {shape}, which does not tell channels from rows and columns"
            require(owner, "channel_axis", channel_axis, tells, condition)
            channel_axis = "first" if first < last else "last"
        if channel_axis == "first":
            return cls(first, middle, last, channel_axis="first")
        return cls(last, first, middle, channel_axis="last")
