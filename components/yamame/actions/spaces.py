"""Every action space in one place, and the one that fits a TorchRL action spec."""

import torch
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
)

from yamame.actions.base import ActionSpace as ActionSpace
from yamame.actions.box import BoxActions as BoxActions
from yamame.actions.box import BoxDistribution as BoxDistribution
from yamame.actions.discrete import DiscreteActions as DiscreteActions
from yamame.actions.discrete import MultiBinaryActions as MultiBinaryActions
from yamame.actions.discrete import MultiDiscreteActions as MultiDiscreteActions


def action_space_from_spec(
    spec: TensorSpec,
    *,
    batch_dims: int = 0,
    probability_floor: float = 0.01,
    box_distribution: BoxDistribution = "tanh_normal",
) -> ActionSpace:
    """The action space of an environment's action spec.

    Args:
        spec: a leaf spec: `Categorical`, `OneHot`, `MultiCategorical`, `MultiOneHot`, `Binary` or a
            continuous `Bounded`. After the batch, `Categorical` has no dimension and every other one.
        batch_dims: number of leading dimensions of the spec that belong to the environment's batch.
        probability_floor: see `DiscreteActions`; not used by a `Bounded` spec.
        box_distribution: see `BoxActions`; used by a `Bounded` spec only.

    Raises:
        ValueError: if there is no space for this spec.

    >>> action_space_from_spec(OneHot(4)).decode(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    tensor([False,  True, False, False])
    """
    kind = type(spec).__name__
    if not isinstance(spec, Categorical | OneHot | Bounded):
        raise ValueError(
            "action_space_from_spec: spec must be a leaf of kind Categorical, OneHot, MultiCategorical, "
            f"MultiOneHot, Binary or Bounded, got {kind}"
        )
    is_index = isinstance(spec, Categorical) and not isinstance(spec, MultiCategorical | Binary)
    if len(spec.shape) != batch_dims + (not is_index):
        raise ValueError(
            f"action_space_from_spec: {kind} must have {int(not is_index)} dimensions after its batch (set "
            "batch_dims to the environment's; give several choices as MultiCategorical, and one number as "
            f"a Bounded of shape (1,)), got shape {tuple(spec.shape)} with batch_dims={batch_dims}"
        )
    if isinstance(spec, Bounded):
        return _box(spec, box_distribution)
    return _discrete(spec, probability_floor)


def _discrete(spec: Categorical | OneHot, floor: float) -> ActionSpace:
    if isinstance(spec, Binary):
        return MultiBinaryActions(spec.shape[-1], dtype=spec.dtype, probability_floor=floor)
    if isinstance(spec, MultiOneHot):
        return MultiDiscreteActions(spec.nvec, one_hot=True, dtype=spec.dtype, probability_floor=floor)
    if isinstance(spec, MultiCategorical):
        nvec = spec.nvec.reshape(-1, spec.shape[-1])[0].tolist()
        return MultiDiscreteActions(nvec, dtype=spec.dtype, probability_floor=floor)
    one_hot = isinstance(spec, OneHot)
    return DiscreteActions(int(spec.space.n), one_hot=one_hot, dtype=spec.dtype, probability_floor=floor)


def _box(spec: Bounded, distribution: BoxDistribution) -> BoxActions:
    if not spec.dtype.is_floating_point:
        raise ValueError(
            "action_space_from_spec: a Bounded spec must be continuous (give whole numbers as "
            f"MultiCategorical), got dtype {spec.dtype}"
        )
    size = spec.shape[-1]
    low, high = (bound.reshape(-1, size) for bound in (spec.space.low, spec.space.high))
    if not (torch.equal(low, low[:1].expand_as(low)) and torch.equal(high, high[:1].expand_as(high))):
        raise ValueError(
            "action_space_from_spec: a Bounded spec must have the same bounds in every row of its batch, "
            f"got low {low.tolist()} and high {high.tolist()}"
        )
    return BoxActions(low[0].cpu(), high[0].cpu(), distribution=distribution)
