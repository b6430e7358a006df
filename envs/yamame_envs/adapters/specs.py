"""The TorchRL side of spaces: specs of what is observed, and what an action is."""

from collections.abc import Sequence
from typing import Any

import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded
from torchrl.data.tensor_specs import TensorSpec

from yamame_envs.adapters.actions import ActionConverter
from yamame_envs.adapters.spaces import Leaf


def observation_specs(leaves: Sequence[Leaf], device: str | torch.device) -> dict[str, TensorSpec]:
    """Specs of one env of every root entry of an observation."""
    root = Composite(device=device)
    for leaf in leaves:
        root[leaf.name] = _spec(leaf, device)
    return {name: root[name] for name in root.keys()}


def _spec(leaf: Leaf, device: str | torch.device) -> TensorSpec:
    options: dict[str, Any] = {"shape": leaf.form, "device": device}
    if leaf.kind == "byte":
        return Bounded(0, 255, dtype=torch.uint8, **options)
    if leaf.kind == "token":
        return Categorical(leaf.sizes[0], dtype=torch.int64, **options)
    if leaf.kind == "bit":
        return Binary(n=leaf.form[-1], dtype=torch.bool, **options)
    return Unbounded(dtype=torch.float32, **options)


def action_spec(converter: ActionConverter) -> TensorSpec:
    """The spec of one env's action."""
    if converter.kind == "discrete":
        return Categorical(converter.sizes[0])
    if converter.kind == "multi_discrete":
        return MultiCategorical(converter.sizes)
    if converter.kind == "multi_binary":
        return Binary(len(converter.sizes))
    low, high = converter.bounds
    return Bounded(torch.from_numpy(low), torch.from_numpy(high))
