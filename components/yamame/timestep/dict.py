"""Dict timestep encoder: images and tokens each through an encoder of their own, vectors through one normaliser.

Reads exactly the keys of ``inputs``; what else is read and written, and the laws that hold, are those of
`yamame.timestep.base`. Entries keep their dtype (uint8 pixels) until their encoder reads them.
"""

from collections.abc import Mapping

from tensordict import NestedKey, unravel_key
from torch import nn

from yamame.timestep.base import TimestepEncoder
from yamame.timestep.specs import Input


class DictTimestepEncoder(TimestepEncoder):
    """Concatenates what each input's encoder makes of it and passes that through an MLP.

    Inputs without an encoder are vectors: cast to float32, flattened, concatenated in the order of ``inputs``
    and normalised. Behind them come the embeddings in the same order, then the goal embedding; then the trunk of
    `yamame.timestep.MLPTimestepEncoder`.

    Args:
        inputs: Shape and kind of each input key, in order; see `yamame.timestep.inputs_from_spec`.
        encoders: Module of each image and token input, and of any vector that shall have its own: maps
            ``[*, ...]`` to ``[*, E_key]`` and has the attribute ``out_features``.
        goal_encoder: Maps ``goal`` ``[*, K, d]`` and a mask ``[*]`` (or None) to ``[*, E_goal]`` and has the
            attribute ``out_features``. Without one the goal is not read.
        hidden_size: Width of the trunk's hidden layers.
        out_size: E, size of the features.
        num_layers: Number of the trunk's hidden layers.
        normalize: Whether vectors pass a `RunningNormalizer`.
        goal_key: Key of the instruction.
        mask_key: Key of the real-timestep mask.
        out_key: Key of the features.

    Raises:
        ValueError: If there is no input, an image or token input has no encoder, an encoder no input, or a size
            is not positive; at run time if an input is missing or has another shape.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from yamame.timestep import ImpalaCNN
    >>> inputs = {"pixels": Input((3, 64, 64), "image"), "time": Input((1,))}
    >>> encoder = DictTimestepEncoder(inputs, encoders={"pixels": ImpalaCNN((3, 64, 64))})
    >>> pixels = torch.zeros(5, 3, 64, 64, dtype=torch.uint8)
    >>> encoder(TensorDict(pixels=pixels, time=torch.zeros(5, 1), batch_size=5))["features"].shape
    torch.Size([5, 64])
    """

    def __init__(
        self,
        inputs: Mapping[NestedKey, Input],
        *,
        encoders: Mapping[NestedKey, nn.Module],
        goal_encoder: nn.Module | None = None,
        hidden_size: int = 128,
        out_size: int = 64,
        num_layers: int = 2,
        normalize: bool = True,
        goal_key: NestedKey = "goal",
        mask_key: NestedKey = "mask",
        out_key: NestedKey = "features",
    ) -> None:
        if not inputs:
            raise ValueError("DictTimestepEncoder: inputs must name at least one input, got {}")
        known = {unravel_key(key): value for key, value in inputs.items()}
        given = {unravel_key(key) for key in encoders}
        needed = {key for key, value in known.items() if value.kind != "vector"}
        if not needed <= given <= set(known):
            raise ValueError(
                f"DictTimestepEncoder: encoders must be for inputs, among them {_listed(needed)}, "
                f"got {_listed(given)}"
            )
        super().__init__(
            known,
            encoders=encoders,
            goal_encoder=goal_encoder,
            hidden_size=hidden_size,
            out_size=out_size,
            num_layers=num_layers,
            normalize=normalize,
            goal_key=goal_key,
            mask_key=mask_key,
            out_key=out_key,
        )


def _listed(keys: set[NestedKey]) -> list[str]:
    return sorted(map(str, keys))
