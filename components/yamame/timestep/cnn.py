"""Image encoders: images ``[*, C, H, W]``, ``[*, H, W, C]`` or ``[*, H, W]`` become
``[*, out_features]``.

Integer pixels (uint8) are cast and divided by 255 here and nowhere earlier; floats are taken as
they are. Every image is encoded on its own (no batch statistics), so neither batch dimensions nor
neighbours nor padding change an output. All end in a linear layer and LayerNorm.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchrl.modules import ConvNet

from yamame.checks import require, require_at_least
from yamame.timestep.image_shape import ChannelAxis, ImageShape


class ImageEncoder(nn.Module):
    """What image encoders share: place of the channels, scaling, free batch dimensions, and
    encoding in parts.

    Args:
        shape: Of one image.
        convolutions: Builds the layers ``[N, C, H, W] -> [N, *]`` from C, the number of channels.
        out_features: Size of the embedding.
        channel_axis: Where the channels are; see `yamame.timestep.ImageShape`.
        max_images: Most images encoded at once, at least 1. More are encoded in parts whose
            activations are computed again in the backward pass: memory for one part only, for up to
            a third more computation. None encodes all at once.

    Raises:
        ValueError: If the image is smaller than ``MIN_SIZE``, its shape does not tell where the
            channels are, or an argument is not positive; at run time if an image has another shape.
    """

    MIN_SIZE: ClassVar[int] = 1

    def __init__(
        self,
        shape: Sequence[int],
        convolutions: Callable[[int], nn.Module],
        out_features: int,
        channel_axis: ChannelAxis,
        max_images: int | None,
    ) -> None:
        super().__init__()
        name, least = type(self).__name__, self.MIN_SIZE
        require_at_least(name, 1, out_features=out_features)
        require(
            name,
            "max_images",
            max_images,
            max_images is None or max_images >= 1,
            "be positive or None",
        )
        self.shape, self.out_features, self.max_images = tuple(shape), out_features, max_images
        self.image_shape = ImageShape.of(self.shape, channel_axis=channel_axis, owner=name)
        height, width = self.image_shape.height, self.image_shape.width
        large_enough = min(height, width) >= least
        require(name, "shape", self.shape, large_enough, f"have at least {least} x {least} pixels")
        num_channels = self.image_shape.num_channels
        self.convolutions = convolutions(num_channels)
        with torch.no_grad():
            flat_size = self.convolutions(torch.zeros(1, num_channels, height, width)).numel()
        self.head = nn.Sequential(nn.Linear(flat_size, out_features), nn.LayerNorm(out_features))

    def forward(self, image: Tensor) -> Tensor:
        """Encodes ``image`` ``[*, ...]`` of the declared shape; returns ``[*, out_features]``
        float32.
        """
        batch_dims = image.ndim - len(self.shape)
        if batch_dims < 0 or image.shape[batch_dims:] != self.shape:
            raise ValueError(
                f"{type(self).__name__}: image must end in shape {self.shape}, got {tuple(image.shape)}"
            )
        images = image.reshape(-1, *self.shape)
        if self.max_images is None or len(images) <= self.max_images:
            encoded = self._encode(images)
        else:
            encode = partial(
                checkpoint, self._encode, use_reentrant=False, preserve_rng_state=False
            )
            encoded = torch.cat([encode(part) for part in images.split(self.max_images)])
        return encoded.reshape(*image.shape[:batch_dims], self.out_features)

    def _encode(self, images: Tensor) -> Tensor:
        x = self.image_shape.channels_first(images)
        if not x.is_floating_point():
            x = x.to(torch.float32).div_(255.0)
        return self.head(self.convolutions(x).flatten(1))


class NatureCNN(ImageEncoder):
    """Three strided convolutions: the encoder of DQN (doi 10.1038/nature14236).

    Args:
        shape: Of one image, at least 36 x 36.
        out_features: Size of the embedding.
        channel_axis, max_images: As for `ImageEncoder`.

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
        layers = {"num_cells": [32, 64, 64], "kernel_sizes": [8, 4, 3], "strides": [4, 2, 1]}
        convolutions = partial(ConvNet, **layers, activation_class=nn.ReLU)
        super().__init__(shape, convolutions, out_features, channel_axis, max_images)


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
    """Residual convolutions in sections, each halving the image: IMPALA's deep encoder (arXiv
    1802.01561).

    A section is a 3 x 3 convolution, max pooling 3 x 3 with stride 2, and residual blocks. Group
    normalisation behind every block is AMAGO's addition (arXiv 2310.09971).

    Args:
        shape: Of one image, at least 8 x 8.
        out_features: Size of the embedding.
        depths: Channels of each section.
        num_blocks: Residual blocks per section, at least 1.
        num_groups: Groups of the normalisation, a divisor of every depth; 0 for none, as IMPALA has
            it.
        channel_axis, max_images: As for `ImageEncoder`.

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
        require("ImpalaCNN", "depths", tuple(depths), min(depths, default=0) >= 1, "be positive")
        require_at_least("ImpalaCNN", 1, num_blocks=num_blocks)
        divides = num_groups == 0 or (
            num_groups > 0 and not any(depth % num_groups for depth in depths)
        )
        require(
            "ImpalaCNN", "num_groups", num_groups, divides, f"be 0 or divide depths={tuple(depths)}"
        )

        def convolutions(num_channels: int) -> nn.Module:
            layers: list[nn.Module] = []
            for depth in depths:
                layers.append(nn.Conv2d(num_channels, depth, kernel_size=3, padding=1))
                layers.append(nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
                layers += [ResidualBlock(depth, num_groups) for _ in range(num_blocks)]
                num_channels = depth
            return nn.Sequential(*layers, nn.ReLU())

        super().__init__(shape, convolutions, out_features, channel_axis, max_images)


class GridCNN(ImageEncoder):
    """3 x 3 convolutions without striding, for small grids: every cell keeps its place.

    Args:
        shape: Of one grid, at least 3 x 3.
        out_features: Size of the embedding.
        depths: Channels of each convolution.
        channel_axis, max_images: As for `ImageEncoder`.

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
        require("GridCNN", "depths", tuple(depths), min(depths, default=0) >= 1, "be positive")

        convolutions = partial(
            ConvNet, num_cells=depths, kernel_sizes=3, paddings=1, activation_class=nn.ReLU
        )
        super().__init__(shape, convolutions, out_features, channel_axis, max_images)
