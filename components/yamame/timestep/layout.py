"""Where the rows, columns and channels of a picture are: decided once from its shape, or said."""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

ChannelAxis = Literal["auto", "first", "last"]


@dataclass(frozen=True)
class Layout:
    """Channels and size of a picture, and whether its channels come ``"first"``, ``"last"`` or not at all."""

    num_channels: int
    height: int
    width: int
    channel_axis: Literal["first", "last"] | None

    def channels_first(self, picture: Tensor) -> Tensor:
        """The picture ``[*, ...]`` as ``[*, C, H, W]``, without a copy."""
        if self.channel_axis is None:
            return picture.unsqueeze(-3)
        return picture.movedim(-1, -3) if self.channel_axis == "last" else picture


def layout_of(shape: tuple[int, ...], *, channel_axis: ChannelAxis = "auto", owner: str) -> Layout:
    """How a picture of this shape is laid out.

    Two dimensions are rows and columns of one channel. Of three, ``"first"`` means ``[C, H, W]`` and ``"last"``
    ``[H, W, C]``; ``"auto"`` takes the first or the last dimension for the channels if it is smaller than both
    others, and refuses to guess elsewhere.

    Args:
        shape: Of the picture, without batch dimensions.
        channel_axis: Where the channels are.
        owner: Who asks, for the error's text.

    Raises:
        ValueError: If the shape has another number of dimensions, or ``"auto"`` cannot tell.

    >>> layout_of((64, 48, 3), owner="demo")
    Layout(num_channels=3, height=64, width=48, channel_axis='last')
    """
    if channel_axis not in get_args(ChannelAxis):
        raise ValueError(
            f"{owner}: channel_axis must be one of {get_args(ChannelAxis)}, got {channel_axis!r}"
        )
    shape = tuple(shape)
    if len(shape) not in (2, 3):
        raise ValueError(f"{owner}: shape must have 2 or 3 dimensions, got {shape}")
    if len(shape) == 2:
        return Layout(1, *shape, channel_axis=None)
    first, middle, last = shape
    if channel_axis == "auto":
        if first == last or min(first, last) >= middle:
            raise ValueError(
                f"{owner}: channel_axis must be 'first' or 'last' for shape {shape}, which does not tell "
                f"channels from rows and columns, got 'auto'"
            )
        channel_axis = "first" if first < last else "last"
    if channel_axis == "first":
        return Layout(first, middle, last, channel_axis="first")
    return Layout(last, first, middle, channel_axis="last")
