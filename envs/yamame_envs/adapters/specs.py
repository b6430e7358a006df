"""TorchRL specs of observations and actions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded
from torchrl.data.tensor_specs import TensorSpec
from yamame.spaces import ActionEntry, ObservationEntry


def observation_specs(
    entries: Sequence[ObservationEntry], device: str | torch.device
) -> dict[str, TensorSpec]:
    """Return the spec of one env of every root entry of an observation."""
    root = Composite(device=device)
    for entry in entries:
        root[entry.name] = _spec(entry, device)
    return {name: root[name] for name in root.keys()}


def _spec(entry: ObservationEntry, device: str | torch.device) -> TensorSpec:
    options: dict[str, Any] = {"shape": entry.stored_shape, "device": device}
    if entry.kind == "byte":
        return Bounded(0, 255, dtype=torch.uint8, **options)
    if entry.kind == "token":
        return Categorical(entry.sizes[0], dtype=torch.int64, **options)
    if entry.kind == "bit":
        return Binary(n=entry.stored_shape[-1], dtype=torch.bool, **options)
    highest = _largest_pixel(entry)
    if highest is not None:
        return Bounded(0.0, highest, dtype=torch.float32, **options)
    # Bounds of real numbers are left out: environments exceed them by rounding.
    return Unbounded(dtype=torch.float32, **options)


def _largest_pixel(entry: ObservationEntry) -> float | None:
    """Return the upper bound of pixels that are no bytes; None if an entry holds none.

    Real numbers have the bounds 0 and 1, or 0 and 255, and whole numbers a larger bound, such as
    65,535. Encoders find images by these bounds (`yamame.timestep.inputs_from_spec`).
    """
    if entry.kind != "number" or entry.bounds is None or len(entry.shape) not in (2, 3, 4):
        return None
    low, high = entry.bounds
    highest = float(high.flat[0])
    is_range = highest in (1, 255) or (entry.whole and 255 < highest < np.inf)
    is_uniform = not low.any() and bool((high == highest).all())
    return highest if is_range and is_uniform else None


def action_spec(action: ActionEntry) -> TensorSpec:
    """Return the spec of one env's action."""
    if action.kind == "discrete":
        return Categorical(action.sizes[0])
    if action.kind == "multi_discrete":
        return MultiCategorical(action.sizes)
    if action.kind == "multi_binary":
        return Binary(len(action.sizes))
    low, high = action.bounds
    return Bounded(torch.from_numpy(low), torch.from_numpy(high))
