"""Image encoders: ``[*, C, H, W]``, ``[*, H, W, C]`` or ``[*, H, W]`` to ``[*, out_features]``.

Stacked frames, ``[*, F, H, W, C]`` or ``[*, F, C, H, W]``, are read as channels. Integer pixels
(uint8) are cast and divided by 255 here and nowhere earlier, floats by ``max_value``.
Every image is encoded by itself, without batch statistics, so batch dimensions, neighbours and
padding do not change an output. All encoders end in a linear layer and LayerNorm.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchrl.modules import ConvNet

from yamame.checks import (
    NonNegativeInt,
    NumLayers,
    PositiveFloat,
    PositiveInt,
    check_bounds,
    require,
)
from yamame.timestep.image_shape import ChannelAxis, ImageShape


class ImageEncoder(nn.Module):
    """Base class of image encoders: channels, scaling, batch dimensions, encoding in parts.

    Args:
        shape: Shape of one image.
        convolutions: Builds the layers ``[N, C, H, W] -> [N, *]`` from the number C of channels.
        out_features: Size of the embedding.
        channel_axis: Position of the channels; see `yamame.timestep.ImageShape`.
        max_images: Largest number of images that are encoded at once. More are encoded in parts,
            whose activations are computed again in the backward pass: memory for one part, and up
            to a third more computation. None encodes all at once.
        max_value: Value by which floating point pixels are divided, their upper bound.

    Raises:
        ArgumentError: The image is smaller than ``MIN_SIZE``, its shape does not show where the
            channels are, or an argument is not positive. When called: an image has another shape.
    """

    MIN_SIZE: ClassVar[int] = 1

    @check_bounds
    def __init__(
        self,
        shape: Sequence[int],
        convolutions: Callable[[int], nn.Module],
        out_features: PositiveInt,
        channel_axis: ChannelAxis,
        max_images: PositiveInt | None,
        max_value: PositiveFloat = 1.0,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.shape = tuple(shape)
        self.max_value = max_value
        self.out_features = out_features
        self.max_images = max_images
        image = ImageShape.of(self.shape, channel_axis=channel_axis, owner=owner)
        is_large_enough = min(image.height, image.width) >= self.MIN_SIZE
        condition = f"have at least {self.MIN_SIZE} x {self.MIN_SIZE} pixels"
        require(owner, "shape", self.shape, is_large_enough, condition)
        self.image_shape = image

        self.convolutions = convolutions(image.num_channels)
        # The size of the output follows from kernels, strides and padding; trying is simplest.
        with torch.no_grad():
            blank = torch.zeros(1, image.num_channels, image.height, image.width)
            flat_size = self.convolutions(blank).numel()
        self.head = nn.Sequential(nn.Linear(flat_size, out_features), nn.LayerNorm(out_features))

    def forward(self, image: Tensor) -> Tensor:
        """Encode ``image`` ``[*, ...]`` of the declared shape to ``[*, out_features]`` float32."""
        batch_dims = image.ndim - len(self.shape)
        fits = batch_dims >= 0 and image.shape[batch_dims:] == self.shape
        condition = f"end in shape {self.shape}"
        require(type(self).__name__, "image", tuple(image.shape), fits, condition)

        images = image.reshape(-1, *self.shape)
        if self.max_images is None or len(images) <= self.max_images:
            encoded = self._encode(images)
        else:
            # Nothing in `_encode` is random, so generators need not be restored.
            encode = partial(
                checkpoint, self._encode, use_reentrant=False, preserve_rng_state=False
            )
            encoded = torch.cat([encode(part) for part in images.split(self.max_images)])
        return encoded.reshape(*image.shape[:batch_dims], self.out_features)

    def _encode(self, images: Tensor) -> Tensor:
        x = self.image_shape.channels_first(images)
        if not x.is_floating_point():
            x = x.to(torch.float32).div_(255.0)
        elif self.max_value != 1.0:
            x = x / self.max_value
        return self.head(self.convolutions(x).flatten(1))


class NatureCNN(ImageEncoder):
    """Three strided convolutions: the encoder of DQN (doi 10.1038/nature14236).

    Args:
        shape: Shape of one image, at least 36 x 36.
        out_features: Size of the embedding.
        channel_axis: As for `ImageEncoder`.
        max_images, max_value: As for `ImageEncoder`.

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
        max_value: float = 1.0,
    ) -> None:
        layers = {"num_cells": [32, 64, 64], "kernel_sizes": [8, 4, 3], "strides": [4, 2, 1]}
        convolutions = partial(ConvNet, **layers, activation_class=nn.ReLU)
        super().__init__(shape, convolutions, out_features, channel_axis, max_images, max_value)


class ResidualBlock(nn.Module):
    """Residual block ``x + conv(relu(conv(relu(x))))``, then group normalisation if any."""

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
        """Map ``[N, C, H, W]`` to the same shape."""
        return self.norm(x + self.branch(x))


class ImpalaCNN(ImageEncoder):
    """Residual convolutions in sections that halve the image: IMPALA's deep encoder.

    A section is a 3 x 3 convolution, max pooling 3 x 3 with stride 2, and residual blocks (arXiv
    1802.01561). The group normalisation after every block is an addition of AMAGO (arXiv
    2310.09971).

    Args:
        shape: Shape of one image, at least 8 x 8.
        out_features: Size of the embedding.
        depths: Channels of each section.
        num_blocks: Residual blocks per section.
        num_groups: Groups of the normalisation, a divisor of every depth; 0 for none, as in IMPALA.
        channel_axis: As for `ImageEncoder`.
        max_images, max_value: As for `ImageEncoder`.

    Raises:
        ArgumentError: As `ImageEncoder`, or depths, blocks and groups do not fit.

    >>> ImpalaCNN((3, 64, 64))(torch.zeros(5, 3, 64, 64, dtype=torch.uint8)).shape
    torch.Size([5, 256])
    """

    MIN_SIZE = 8

    @check_bounds
    def __init__(
        self,
        shape: Sequence[int],
        *,
        out_features: int = 256,
        depths: Sequence[int] = (16, 32, 32),
        num_blocks: NumLayers = 2,
        num_groups: NonNegativeInt = 4,
        channel_axis: ChannelAxis = "auto",
        max_images: PositiveInt | None = None,
        max_value: PositiveFloat = 1.0,
    ) -> None:
        owner = type(self).__name__
        require(owner, "depths", tuple(depths), min(depths, default=0) >= 1, "be positive")
        divides = num_groups == 0 or all(depth % num_groups == 0 for depth in depths)
        condition = f"be 0 or divide depths={tuple(depths)}"
        require(owner, "num_groups", num_groups, divides, condition)

        def convolutions(num_channels: int) -> nn.Module:
            layers: list[nn.Module] = []
            for depth in depths:
                layers.append(nn.Conv2d(num_channels, depth, kernel_size=3, padding=1))
                layers.append(nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
                for _ in range(num_blocks):
                    layers.append(ResidualBlock(depth, num_groups))
                num_channels = depth
            return nn.Sequential(*layers, nn.ReLU())

        super().__init__(shape, convolutions, out_features, channel_axis, max_images, max_value)


class GridCNN(ImageEncoder):
    """2 x 2 convolutions without strides and padding, for small grids (arXiv 2312.12044).

    The result of each is a row and a column smaller. Every cell keeps its position.

    Args:
        shape: Shape of one grid, at least 3 x 3.
        out_features: Size of the embedding.
        depths: Channels of each convolution. A grid of S cells along its shorter side has the first
            S - 1 of them.
        channel_axis: As for `ImageEncoder`.
        max_images, max_value: As for `ImageEncoder`.

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
        max_value: float = 1.0,
    ) -> None:
        owner = type(self).__name__
        require(owner, "depths", tuple(depths), min(depths, default=0) >= 1, "be positive")

        image = ImageShape.of(shape, channel_axis=channel_axis, owner=owner)
        layers = list(depths)[: max(1, min(image.height, image.width) - 1)]
        convolutions = partial(ConvNet, num_cells=layers, kernel_sizes=2, activation_class=nn.ReLU)
        super().__init__(shape, convolutions, out_features, channel_axis, max_images, max_value)
