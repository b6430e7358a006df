"""From an environment's observation spec to the inputs of a timestep encoder."""

from collections.abc import Collection

import torch
from tensordict import NestedKey, unravel_key
from torchrl.data import Composite

NOT_INPUTS: tuple[NestedKey, ...] = (
    "achieved",
    "achieved_mask",
    "action_mask",
    "goal",
    "is_init",
    "mask",
    "step_index",
    "success",
    "task_seed",
)
"""Observation keys that are no flat policy input: goals have their own encoder, the rest must not be seen."""


def in_sizes_from_spec(
    observation_spec: Composite, *, batch_dims: int, exclude: Collection[NestedKey] = NOT_INPUTS
) -> dict[NestedKey, int]:
    """Flat size of every policy input of an environment, in sorted key order.

    Inputs are all tensor leaves, at any depth, except the excluded ones: floats, bools and integers alike
    (the encoder casts them). Keys are compared whole: ``"goal"`` does not exclude ``("robot", "goal")``.

    Args:
        observation_spec: ``env.observation_spec``.
        batch_dims: Number of leading environment dimensions of each leaf: ``len(env.batch_size)``.
        exclude: Keys to leave out. Give pixels or tokens that another encoder reads here, beside
            `NOT_INPUTS`.

    Raises:
        ValueError: If no input remains or a leaf has fewer dimensions than ``batch_dims``.

    >>> from torchrl.data import Unbounded
    >>> spec = Composite(time=Unbounded((8, 1)), observation=Unbounded((8, 2, 3)), shape=(8,))
    >>> in_sizes_from_spec(spec, batch_dims=1)
    {'observation': 6, 'time': 1}
    """
    excluded = {unravel_key(key) for key in exclude}
    sizes: dict[NestedKey, int] = {}
    for key in sorted(observation_spec.keys(True, True), key=lambda k: k if isinstance(k, tuple) else (k,)):
        leaf = observation_spec[key]
        if key in excluded or not isinstance(leaf.dtype, torch.dtype):
            continue
        if len(leaf.shape) < batch_dims:
            raise ValueError(
                f"in_sizes_from_spec: batch_dims must be at most the dimensions of {key!r} "
                f"{tuple(leaf.shape)}, got {batch_dims}"
            )
        sizes[key] = leaf.shape[batch_dims:].numel()
    if not sizes:
        raise ValueError(
            "in_sizes_from_spec: exclude must leave at least one observation, got "
            f"{sorted(map(str, excluded))}"
        )
    return sizes
