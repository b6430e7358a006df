"""The timestep encoder that fits an environment's inputs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from tensordict import NestedKey
from torch import nn

from yamame.timestep.base import TimestepEncoder
from yamame.timestep.cnn import GridCNN, ImpalaCNN, NatureCNN
from yamame.timestep.dict import DictTimestepEncoder
from yamame.timestep.layout import ChannelAxis, layout_of
from yamame.timestep.mlp import MLPTimestepEncoder
from yamame.timestep.specs import Input
from yamame.timestep.tokens import TokenEncoder

MIN_IMAGE_SIZE = 32
"""Pictures with fewer rows or columns are grids: striding would lose what single cells show."""
IMAGE_ENCODERS: dict[str, type[ImpalaCNN] | type[NatureCNN]] = {"impala": ImpalaCNN, "nature": NatureCNN}


def make_timestep_encoder(
    inputs: Mapping[NestedKey, Input],
    *,
    goal_encoder: nn.Module | None = None,
    image_encoder: Literal["impala", "nature"] = "impala",
    channel_axis: ChannelAxis = "auto",
    max_images: int | None = None,
    embedding_size: int = 128,
    hidden_size: int = 128,
    out_size: int = 64,
    num_layers: int = 2,
    normalize: bool = True,
) -> TimestepEncoder:
    """Builds an `MLPTimestepEncoder` where all inputs are vectors, else a `DictTimestepEncoder`.

    Images of at least `MIN_IMAGE_SIZE` rows and columns get the chosen encoder, smaller ones a `GridCNN`, tokens
    a `TokenEncoder`.

    Args:
        inputs: Shape and kind of each input key, in order; see `yamame.timestep.inputs_from_spec`.
        goal_encoder: Embeds the instruction; without one the goal is not read.
        image_encoder: *impala* (`ImpalaCNN`) or *nature* (`NatureCNN`: a tenth of the computation).
        channel_axis: Where the channels of all pictures and token grids are; see `yamame.timestep.layout_of`.
        max_images: Most pictures encoded at once: less memory for more computation, see `ImageEncoder`.
        embedding_size: Size of the embedding of each image and token input.
        hidden_size: Width of the trunk's hidden layers.
        out_size: Size of the features.
        num_layers: Number of the trunk's hidden layers.
        normalize: Whether vectors pass a `RunningNormalizer`.

    Raises:
        ValueError: If an argument or an input's shape fits none of the encoders.

    >>> type(make_timestep_encoder({"observation": Input((4,))})).__name__
    'MLPTimestepEncoder'
    >>> encoder = make_timestep_encoder({"pixels": Input((64, 64, 3), "image"), "words": Input((9,), "tokens", 30)})
    >>> [type(module).__name__ for module in encoder.encoders]
    ['ImpalaCNN', 'TokenEncoder']
    """
    if image_encoder not in IMAGE_ENCODERS:
        raise ValueError(
            f"make_timestep_encoder: image_encoder must be one of {list(IMAGE_ENCODERS)}, got {image_encoder!r}"
        )
    encoders = {
        key: _encoder_of(value, image_encoder, channel_axis, max_images, embedding_size)
        for key, value in inputs.items()
        if value.kind != "vector"
    }
    build: Callable[..., TimestepEncoder] = MLPTimestepEncoder
    if encoders:
        build = partial(DictTimestepEncoder, encoders=encoders)
    return build(
        inputs,
        goal_encoder=goal_encoder,
        hidden_size=hidden_size,
        out_size=out_size,
        num_layers=num_layers,
        normalize=normalize,
    )


def _encoder_of(
    value: Input, image_encoder: str, channel_axis: ChannelAxis, max_images: int | None, out_features: int
) -> nn.Module:
    if value.kind == "tokens":
        assert value.num_tokens is not None
        return TokenEncoder(
            value.shape, num_tokens=value.num_tokens, out_features=out_features, channel_axis=channel_axis
        )
    layout = layout_of(value.shape, channel_axis=channel_axis, owner="make_timestep_encoder")
    small = min(layout.height, layout.width) < MIN_IMAGE_SIZE
    network = GridCNN if small else IMAGE_ENCODERS[image_encoder]
    return network(value.shape, out_features=out_features, channel_axis=channel_axis, max_images=max_images)
