"""Entries of a batch that encoders read, and checks of them."""

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor, nn

from yamame.checks import require, require_tensordict
from yamame.rollouts import INIT_REMEDY


def read_features(encoder: nn.Module, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
    """Return the features of a batch.

    Args:
        encoder: Encoder that reads them.
        tensordict: Batch.
        key: Key of the features.

    Raises:
        ArgumentError: The batch is no TensorDict, or its features have another dtype than the
            weights, without autocast.
        ValueError: It has no such entry, or one of integers.
    """
    owner = type(encoder).__name__
    require_tensordict(owner, tensordict)
    features = tensordict.get(key, None)
    if features is None:
        present = sorted(map(str, tensordict.keys(True)))
        raise ValueError(f"{owner}: a batch must have features under {key!r}, got {present}")
    if not features.is_floating_point():
        raise ValueError(f"{owner}: features {key!r} must be floats, got {features.dtype}")
    first = next(encoder.parameters(), None)
    if first is not None and first.dtype != features.dtype:
        _check_dtype(encoder, features, key)
    return features


def _check_dtype(encoder: nn.Module, features: Tensor, key: NestedKey) -> None:
    """Raise unless weights have the dtype of the features, or autocast converts them."""
    device = features.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return
    dtypes = []
    for weight in encoder.parameters():
        if weight.is_floating_point() and weight.dtype not in dtypes:
            dtypes.append(weight.dtype)
    condition = f"have the dtype of the weights, {' or '.join(map(str, dtypes))}"
    fits = not dtypes or features.dtype in dtypes
    remedy = "convert one of them, as by encoder.to(torch.float64), or use torch.autocast"
    name = f"features {key!r}"
    require(type(encoder).__name__, name, features.dtype, fits, condition, remedy=remedy)


def read_is_init(owner: str, tensordict: TensorDictBase, key: NestedKey) -> Tensor:
    """Return the flags of envs that start afresh, of a step.

    Args:
        owner: Class named in the error.
        tensordict: Timestep.
        key: Key of the flags.

    Raises:
        ValueError: The step has no such entry.
    """
    is_init = tensordict.get(key, None)
    if is_init is None:
        present = sorted(map(str, tensordict.keys(True)))
        raise ValueError(
            f"{owner}: a step must have key {key!r} (without it memory would never be reset), "
            f"got {present}; {INIT_REMEDY}"
        )
    return is_init


def check_not_mapped(owner: str, *entries: Tensor | None) -> None:
    """Raise if `torch.vmap` maps over entries of sequences.

    A map over weights alone is no error.

    Args:
        owner: Class named in the error.
        entries: Flags and counts of the timesteps, or None.

    Raises:
        ArgumentError: An entry has a dimension that is mapped over.
    """
    is_mapped = False
    for entry in entries:
        if entry is not None and torch._C._functorch.is_batchedtensor(entry):
            is_mapped = True
    require(
        owner,
        "a batch of sequences",
        "one that torch.vmap maps over",
        not is_mapped,
        "be passed in one piece",
        remedy="use torchrl.objectives.value.GAE(..., shifted=True), which encodes a sequence and "
        "its last observation together",
    )
