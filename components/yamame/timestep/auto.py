"""Construction of the timestep encoder that fits the inputs of an environment."""

from collections.abc import Mapping
from typing import Any, Literal

from tensordict import NestedKey
from torch import nn

from yamame.checks import PositiveInt, check_bounds, require_choice
from yamame.timestep.cnn import GridCNN, ImpalaCNN, NatureCNN
from yamame.timestep.image_shape import ChannelAxis, ImageShape
from yamame.timestep.mlp import MLPTimestepEncoder
from yamame.timestep.specs import Input
from yamame.timestep.tokens import TokenEncoder

MIN_IMAGE_SIZE = 32
"""Images with fewer rows or columns are grids, whose single cells strides would lose."""
IMAGE_ENCODERS: dict[str, type[ImpalaCNN] | type[NatureCNN]] = {
    "impala": ImpalaCNN,
    "nature": NatureCNN,
}


@check_bounds
def make_timestep_encoder(
    inputs: Mapping[NestedKey, Input],
    *,
    goal_encoder: nn.Module | None = None,
    image_encoder: Literal["impala", "nature"] = "impala",
    channel_axis: ChannelAxis = "auto",
    max_images: PositiveInt | None = None,
    embedding_size: PositiveInt = 128,
    hidden_size: PositiveInt = 128,
    out_size: PositiveInt = 64,
    num_layers: PositiveInt = 2,
    normalize: bool = True,
) -> MLPTimestepEncoder:
    """Build an `MLPTimestepEncoder` with an encoder for each image, grid and token input.

    Images with fewer than `MIN_IMAGE_SIZE` rows or columns get a `GridCNN`.

    Args:
        inputs: Shape and kind of each input key, in order; see `yamame.timestep.inputs_from_spec`.
        goal_encoder: Embeds the instruction. Without one the goal is not read.
        image_encoder: Encoder of images: ``impala``, or ``nature`` with a tenth of the computation.
        channel_axis: Axis of channels in images and grids: ``auto``, ``first`` or ``last``.
        max_images: Largest number of images encoded at once, to save memory; None: all.
        embedding_size: Size of the embedding of each image and token input.
        hidden_size, out_size, num_layers, normalize: As for `MLPTimestepEncoder`.

    Raises:
        ArgumentError: An argument is out of its range, or the shape of an input fits no encoder.

    >>> make_timestep_encoder({"observation": Input((4,))}).in_sizes
    {'observation': 4}
    >>> inputs = {"pixels": Input((64, 64, 3), "image"), "words": Input((9,), "tokens", 30)}
    >>> encoder = make_timestep_encoder(inputs)
    >>> [type(module).__name__ for module in encoder.encoders]
    ['ImpalaCNN', 'TokenEncoder']
    """
    owner = "make_timestep_encoder"
    require_choice(owner, "image_encoder", image_encoder, tuple(IMAGE_ENCODERS))
    options: dict[str, Any] = {"out_features": embedding_size, "channel_axis": channel_axis}
    vectors: dict[NestedKey, Input] = {}
    encoders: dict[NestedKey, nn.Module] = {}
    for key, value in inputs.items():
        if value.kind == "vector":
            vectors[key] = value
        elif value.num_tokens is not None:
            encoders[key] = TokenEncoder(value.shape, num_tokens=value.num_tokens, **options)
        else:
            image = ImageShape.of(value.shape, channel_axis=channel_axis, owner=owner)
            is_grid = min(image.height, image.width) < MIN_IMAGE_SIZE
            network = GridCNN if is_grid else IMAGE_ENCODERS[image_encoder]
            encoders[key] = network(value.shape, max_images=max_images, **options)
    return MLPTimestepEncoder(
        vectors,
        encoders=encoders,
        goal_encoder=goal_encoder,
        hidden_size=hidden_size,
        out_size=out_size,
        num_layers=num_layers,
        normalize=normalize,
    )
