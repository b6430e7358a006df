"""Image encoders: pictures ``[*, C, H, W]``, ``[*, H, W, C]`` or ``[*, H, W]`` become ``[*, out_features]``.

Integer pixels (uint8) are cast and divided by 255 here and nowhere earlier; floats are taken as they are. Every
picture is encoded on its own (no batch statistics), so neither batch dimensions nor neighbours nor padding change
an output. All end in a linear layer and LayerNorm.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from yamame.timestep.layout import ChannelAxis, layout_of


class ImageEncoder(nn.Module):
    """What image encoders share: layout, scaling, free batch dimensions, and encoding in parts.

    A subclass hands its convolutions to `_set_layers` at the end of its constructor.

    Args:
        shape: Of one picture.
        channel_axis: Where its channels are; see `yamame.timestep.layout_of`.
        max_images: Most pictures encoded at once, at least 1. More are encoded in parts whose activations are
            computed again in the backward pass: memory for one part only, for up to a third more computation. None
            encodes all at once.

    Raises:
        ValueError: If the picture is smaller than ``MIN_SIZE``, its layout cannot be told from its shape, or an
            argument is not positive; at run time if a picture has another shape.
    """

    MIN_SIZE: ClassVar[int] = 1

    def __init__(
        self, shape: Sequence[int], *, channel_axis: ChannelAxis = "auto", max_images: int | None = None
    ) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.layout = layout_of(self.shape, channel_axis=channel_axis, owner=type(self).__name__)
        self._require("max_images", max_images, max_images is None or max_images >= 1)
        self.max_images = max_images
        size = (self.layout.height, self.layout.width)
        if min(size) < self.MIN_SIZE:
            raise ValueError(
                f"{type(self).__name__}: image must be at least {self.MIN_SIZE} x {self.MIN_SIZE}, got "
                f"{size[0]} x {size[1]} (shape {self.shape})"
            )

    def _require(self, name: str, value: object, holds: bool) -> None:
        if not holds:
            raise ValueError(f"{type(self).__name__}: {name} must be positive, got {value}")

    def _set_layers(self, convolutions: nn.Module, out_features: int) -> None:
        self._require("out_features", out_features, out_features >= 1)
        self.out_features = out_features
        self.convolutions = convolutions
        with torch.no_grad():
            one = torch.zeros(1, self.layout.num_channels, self.layout.height, self.layout.width)
            flat_size = convolutions(one).numel()
        self.head = nn.Sequential(nn.Linear(flat_size, out_features), nn.LayerNorm(out_features))

    def forward(self, image: Tensor) -> Tensor:
        """Encodes ``image`` ``[*, ...]`` of the declared shape; returns ``[*, out_features]`` float32."""
        batch_dims = image.ndim - len(self.shape)
        if batch_dims < 0 or image.shape[batch_dims:] != self.shape:
            raise ValueError(
                f"{type(self).__name__}: image must end in shape {self.shape}, got {tuple(image.shape)}"
            )
        flat = image.reshape(-1, *self.shape)
        if self.max_images is None or len(flat) <= self.max_images:
            encoded = self._encode(flat)
        else:
            parts = flat.split(self.max_images)
            encoded = torch.cat(
                [
                    checkpoint(self._encode, part, use_reentrant=False, preserve_rng_state=False)
                    for part in parts
                ]
            )
        return encoded.reshape(*image.shape[:batch_dims], self.out_features)

    def _encode(self, images: Tensor) -> Tensor:
        x = self.layout.channels_first(images)
        if not x.is_floating_point():
            x = x.to(torch.float32).div_(255.0)
        return self.head(self.convolutions(x).flatten(1))


class NatureCNN(ImageEncoder):
    """Three strided convolutions: the encoder of DQN (doi 10.1038/nature14236).

    Args:
        shape: Of one picture, at least 36 x 36.
        out_features: Size of the embedding.
        channel_axis: Where the channels are; see `yamame.timestep.layout_of`.
        max_images: Most pictures encoded at once, see `ImageEncoder`.

    >>> NatureCNN((64, 64, 3))(torch.zeros(5, 2, 64, 64, 3, dtype=torch.uint8)).shape
    torch.Size([5, 2, 256])
    """

    MIN_SIZE = 36

    def __init__(
        self,
        shape: Sequence[int],
        *,
        out_features: int = 256,
        channel_axis: ChannelAxis = "auto",
        max_images: int | None = None,
    ) -> None:
        super().__init__(shape, channel_axis=channel_axis, max_images=max_images)
        convolutions = nn.Sequential(
            nn.Conv2d(self.layout.num_channels, 32, kernel_size=8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=3),
            nn.ReLU(),
        )
        self._set_layers(convolutions, out_features)


class ResidualBlock(nn.Module):
    """``x + conv(relu(conv(relu(x))))``, then group normalisation if there are groups."""

    def __init__(self, num_channels: int, num_groups: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(num_channels, num_channels, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(num_channels, num_channels, kernel_size=3, padding=1),
        )
        self.norm = nn.GroupNorm(num_groups, num_channels) if num_groups else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[N, C, H, W]`` to the same shape."""
        return self.norm(x + self.branch(x))


class ImpalaCNN(ImageEncoder):
    """Residual convolutions in sections, each halving the picture: IMPALA's deep encoder (arXiv 1802.01561).

    A section is a 3 x 3 convolution, max pooling 3 x 3 with stride 2, and residual blocks. Group normalisation
    behind every block is AMAGO's addition (arXiv 2310.09971).

    Args:
        shape: Of one picture, at least 8 x 8.
        out_features: Size of the embedding.
        depths: Channels of each section.
        num_blocks: Residual blocks per section, at least 1.
        num_groups: Groups of the normalisation, a divisor of every depth; 0 for none, as IMPALA has it.
        channel_axis: Where the channels are; see `yamame.timestep.layout_of`.
        max_images: Most pictures encoded at once, see `ImageEncoder`.

    Raises:
        ValueError: As `ImageEncoder` does, and if depths, blocks and groups do not fit.

    >>> ImpalaCNN((3, 64, 64))(torch.zeros(5, 3, 64, 64, dtype=torch.uint8)).shape
    torch.Size([5, 256])
    """

    MIN_SIZE = 8

    def __init__(
        self,
        shape: Sequence[int],
        *,
        out_features: int = 256,
        depths: Sequence[int] = (16, 32, 32),
        num_blocks: int = 2,
        num_groups: int = 4,
        channel_axis: ChannelAxis = "auto",
        max_images: int | None = None,
    ) -> None:
        super().__init__(shape, channel_axis=channel_axis, max_images=max_images)
        self._require("depths", tuple(depths), min(depths, default=0) >= 1)
        self._require("num_blocks", num_blocks, num_blocks >= 1)
        if num_groups < 0 or any(num_groups and depth % num_groups for depth in depths):
            raise ValueError(
                f"ImpalaCNN: num_groups must be 0 or divide depths={tuple(depths)}, got {num_groups}"
            )
        layers: list[nn.Module] = []
        num_channels = self.layout.num_channels
        for depth in depths:
            layers.append(nn.Conv2d(num_channels, depth, kernel_size=3, padding=1))
            layers.append(nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
            layers += [ResidualBlock(depth, num_groups) for _ in range(num_blocks)]
            num_channels = depth
        self._set_layers(nn.Sequential(*layers, nn.ReLU()), out_features)


class GridCNN(ImageEncoder):
    """3 x 3 convolutions without striding, for small grids: every cell keeps its place.

    Args:
        shape: Of one grid, at least 3 x 3.
        out_features: Size of the embedding.
        depths: Channels of each convolution.
        channel_axis: Where the channels are; see `yamame.timestep.layout_of`.
        max_images: Most grids encoded at once, see `ImageEncoder`.

    >>> GridCNN((7, 9))(torch.zeros(5, 7, 9, dtype=torch.uint8)).shape
    torch.Size([5, 128])
    """

    MIN_SIZE = 3

    def __init__(
        self,
        shape: Sequence[int],
        *,
        out_features: int = 128,
        depths: Sequence[int] = (16, 32, 32),
        channel_axis: ChannelAxis = "auto",
        max_images: int | None = None,
    ) -> None:
        super().__init__(shape, channel_axis=channel_axis, max_images=max_images)
        self._require("depths", tuple(depths), min(depths, default=0) >= 1)
        layers: list[nn.Module] = []
        num_channels = self.layout.num_channels
        for depth in depths:
            layers += [nn.Conv2d(num_channels, depth, kernel_size=3, padding=1), nn.ReLU()]
            num_channels = depth
        self._set_layers(nn.Sequential(*layers), out_features)
