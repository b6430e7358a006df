"""Construction of the timestep encoder that fits the inputs of an environment."""

import warnings
from collections.abc import Mapping
from typing import Any, Literal

from tensordict import NestedKey
from torch import nn

from yamame.checks import ArgumentError, PositiveInt, check_bounds, require, require_choice
from yamame.timestep.cnn import GridCNN, ImpalaCNN, NatureCNN
from yamame.timestep.image_shape import ChannelAxis, ImageShape
from yamame.timestep.mlp import MLPTimestepEncoder
from yamame.timestep.specs import Input
from yamame.timestep.tokens import TokenEncoder

MIN_IMAGE_SIZE = 32
"""Images with fewer rows or columns are grids, whose single cells strides would lose."""
_OWNER = "make_timestep_encoder"
_MANY_NUMBERS = 4096
"""Size above which an array that is flattened is reported."""
IMAGE_ENCODERS: dict[str, type[ImpalaCNN] | type[NatureCNN]] = {
    "impala": ImpalaCNN,
    "nature": NatureCNN,
}


class FlattenedWarning(UserWarning):
    """Warning of a large array, or an image, that is read as a vector."""


@check_bounds
def make_timestep_encoder(
    inputs: Mapping[NestedKey, Input],
    *,
    goal_encoder: nn.Module | None = None,
    image_encoder: Literal["impala", "nature"] = "impala",
    channel_axis: ChannelAxis | Mapping[str, ChannelAxis] = "auto",
    images: Literal["all", "bytes"] = "all",
    max_images: PositiveInt | None = None,
    embedding_size: PositiveInt = 128,
    hidden_size: PositiveInt = 128,
    out_size: PositiveInt = 64,
    num_layers: PositiveInt = 2,
    normalize: bool = True,
) -> MLPTimestepEncoder:
    """Build an `MLPTimestepEncoder` with an encoder for each image, grid and token input.

    Images with fewer than `MIN_IMAGE_SIZE` rows or columns get a `GridCNN`. Narrow ones, and frames
    or floats of an ambiguous shape, are vectors; large vectors cause a `FlattenedWarning`.

    Args:
        inputs: Shape and kind of each input key, in order, as of `inputs_from_spec`.
        goal_encoder: Embeds the instruction. Without one the goal is not read.
        image_encoder: Encoder of images: ``impala``, or ``nature`` with a tenth of the computation.
        channel_axis: Axis of channels in images and grids: ``auto``, ``first`` or ``last``; or a
            mapping from names of inputs to one of these.
        images: Images with an encoder: ``all``; ``bytes``: those of uint8, no stacked frames.
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
    require_choice(_OWNER, "image_encoder", image_encoder, tuple(IMAGE_ENCODERS))
    require_choice(_OWNER, "images", images, ("all", "bytes"))
    encoders = _build_encoders(
        _as_vectors(inputs) if images == "bytes" else inputs,
        _channel_axes(channel_axis, inputs),
        network=IMAGE_ENCODERS[image_encoder],
        options={"max_images": max_images, "out_features": embedding_size},
    )
    vectors = {key: value for key, value in inputs.items() if key not in encoders}
    if images == "all":
        _warn_if_flattened(vectors)
    return MLPTimestepEncoder(
        vectors,
        encoders=encoders,
        goal_encoder=goal_encoder,
        hidden_size=hidden_size,
        out_size=out_size,
        num_layers=num_layers,
        normalize=normalize,
    )


def _as_vectors(inputs: Mapping[NestedKey, Input]) -> dict[NestedKey, Input]:
    """Return inputs in which images other than those of bytes are vectors."""
    read = {}
    for key, value in inputs.items():
        is_other = value.kind == "image" and not _is_bytes(value)
        read[key] = Input(value.shape) if is_other else value
    return read


def _build_encoders(
    inputs: Mapping[NestedKey, Input],
    axes: Mapping[NestedKey, ChannelAxis],
    *,
    network: type[ImpalaCNN] | type[NatureCNN],
    options: Mapping[str, Any],
) -> dict[NestedKey, nn.Module]:
    """Build the encoders of all inputs that are no vectors."""
    encoders: dict[NestedKey, nn.Module] = {}
    for key, value in inputs.items():
        if value.num_tokens is not None:
            encoders[key] = TokenEncoder(
                value.shape,
                num_tokens=value.num_tokens,
                out_features=options["out_features"],
                channel_axis=axes[key],
            )
        elif value.kind == "image":
            image = _image_shape(key, value, axes[key])
            if image is None:
                continue
            is_grid = min(image.height, image.width) < MIN_IMAGE_SIZE
            encoders[key] = (GridCNN if is_grid else network)(
                value.shape, channel_axis=axes[key], max_value=value.max_value or 1.0, **options
            )
    return encoders


def _channel_axes(
    channel_axis: ChannelAxis | Mapping[str, ChannelAxis], inputs: Mapping[NestedKey, Input]
) -> dict[NestedKey, ChannelAxis]:
    """Return the channel axis of each input.

    Raises:
        ArgumentError: A mapping names an unknown input.
    """
    if not isinstance(channel_axis, Mapping):
        return dict.fromkeys(inputs, channel_axis)
    names = {_name(key): key for key in inputs}
    unknown = sorted(channel_axis.keys() - names.keys())
    condition = f"name inputs, which are {', '.join(names)}"
    require(_OWNER, "channel_axis", unknown, not unknown, condition)
    return {key: channel_axis.get(name, "auto") for name, key in names.items()}


def _name(key: NestedKey) -> str:
    """Return the name of an input in messages and settings."""
    return key if isinstance(key, str) else ".".join(key)


def _is_bytes(value: Input) -> bool:
    """Return whether an image is one of uint8 without stacked frames."""
    return value.max_value is None and len(value.shape) < 4


def _image_shape(key: NestedKey, value: Input, channel_axis: ChannelAxis) -> ImageShape | None:
    """Return the shape of an image; None if it is read as a vector.

    Raises:
        ArgumentError: The shape of an image of bytes is ambiguous.
    """
    try:
        image = ImageShape.of(value.shape, channel_axis=channel_axis, owner=_OWNER)
    except ArgumentError as error:
        if _is_bytes(value):
            error.remedy = f"or read {_name(key)} as numbers, by timestep_encoder=mlp"
            raise
        return None
    # A table of bytes with so few rows or columns is none to convolve.
    return image if min(image.height, image.width) >= GridCNN.MIN_SIZE else None


def _warn_if_flattened(vectors: Mapping[NestedKey, Input]) -> None:
    """Warn of each array that an MLP reads although it is large, or an image."""
    for key, value in vectors.items():
        is_ambiguous = value.kind == "image" and not _is_bytes(value)
        is_small = value.size <= _MANY_NUMBERS and not is_ambiguous
        if is_small or len(value.shape) < 2:
            continue
        reason = "its bounds are not those of pixels (0 and 1, or 0 and 255)"
        if is_ambiguous:
            reason = "its shape does not show the channels, see timestep_encoder.channel_axis"
        elif value.kind == "image" or len(value.shape) > 4:
            reason = "its shape is not that of an image"
        warnings.warn(
            f"{_name(key)} {value.shape} is read as {value.size} numbers, because {reason}; "
            "timestep_encoder=mlp reads it so without this line",
            FlattenedWarning,
            stacklevel=4,
        )
