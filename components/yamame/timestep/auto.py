"""The timestep encoder that fits an environment's inputs."""

from collections.abc import Mapping
from typing import Any, Literal

from tensordict import NestedKey
from torch import nn

from yamame.checks import require_choice
from yamame.timestep.cnn import GridCNN, ImpalaCNN, NatureCNN
from yamame.timestep.image_shape import ChannelAxis, ImageShape
from yamame.timestep.mlp import MLPTimestepEncoder
from yamame.timestep.specs import Input
from yamame.timestep.tokens import TokenEncoder

MIN_IMAGE_SIZE = 32
"""Images with fewer rows or columns are grids: striding would lose what single cells show."""
IMAGE_ENCODERS: dict[str, type[ImpalaCNN] | type[NatureCNN]] = {
    "impala": ImpalaCNN,
    "nature": NatureCNN,
}


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
) -> MLPTimestepEncoder:
    """An `MLPTimestepEncoder` in which images, grids and tokens have encoders of their own.

    Images of at least `MIN_IMAGE_SIZE` rows and columns get the chosen encoder, smaller ones a
    `GridCNN`, tokens a `TokenEncoder`.

    Args:
        inputs: Shape and kind of each input key, in order; see `yamame.timestep.inputs_from_spec`.
        goal_encoder: Embeds the instruction; without one the goal is not read.
        image_encoder: *impala* (`ImpalaCNN`) or *nature* (`NatureCNN`: a tenth of the computation).
        channel_axis: Where the channels of all images and token grids are; see
            `yamame.timestep.ImageShape`.
        max_images: Most images encoded at once: less memory for more computation, see
            `ImageEncoder`.
        embedding_size: Size of the embedding of each image and token input.
        hidden_size, out_size, num_layers, normalize: As for `MLPTimestepEncoder`.

    Raises:
        ValueError: If an argument or an input's shape fits none of the encoders.

    >>> make_timestep_encoder({"observation": Input((4,))}).in_sizes
    {'observation': 4}
    >>> encoder = make_timestep_encoder({"pixels": Input((64, 64, 3), "image"), "words": Input((9,), "tokens", 30)})
    >>> [type(module).__name__ for module in encoder.encoders]
    ['ImpalaCNN', 'TokenEncoder']
    """
    require_choice("make_timestep_encoder", "image_encoder", image_encoder, tuple(IMAGE_ENCODERS))
    options: dict[str, Any] = {"out_features": embedding_size, "channel_axis": channel_axis}

    def encoder_of(value: Input) -> nn.Module:
        if value.num_tokens is not None:
            return TokenEncoder(value.shape, num_tokens=value.num_tokens, **options)
        image = ImageShape.of(value.shape, channel_axis=channel_axis, owner="make_timestep_encoder")
        is_grid = min(image.height, image.width) < MIN_IMAGE_SIZE
        network = GridCNN if is_grid else IMAGE_ENCODERS[image_encoder]
        return network(value.shape, max_images=max_images, **options)

    return MLPTimestepEncoder(
        {key: value for key, value in inputs.items() if value.kind == "vector"},
        encoders={
            key: encoder_of(value) for key, value in inputs.items() if value.kind != "vector"
        },
        goal_encoder=goal_encoder,
        hidden_size=hidden_size,
        out_size=out_size,
        num_layers=num_layers,
        normalize=normalize,
    )
