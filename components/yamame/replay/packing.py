"""From an ordinary TorchRL rollout to the packing that replay, relabelling and losses take.

A rollout ``[B, T]`` holds every observation twice: at the root and under ``"next"``. Packed ``[E, L]``, ``L =
T + 1``, each is held once: row t is what was seen at t and the transition that leaves t; the last row of a
trajectory is its last observation, where everything that describes a transition is zero. Trajectories are
right padded with zeros; ``mask`` ``[E, L, 1]`` tells real timesteps.
"""

from collections.abc import Sequence

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor

TRANSITION_KEYS: tuple[NestedKey, ...] = ("reward", "terminated", "truncated", "success")


def pack(
    rollout: TensorDictBase | Sequence[TensorDictBase],
    *,
    split: bool = True,
    transition_keys: Sequence[NestedKey] = TRANSITION_KEYS,
) -> TensorDict:
    """Packs TorchRL rollouts; each episode becomes a trajectory, in order of row and then time.

    Root entries stay at the root; their last value comes from ``"next"``, or is zero where ``"next"`` has
    none, as for ``action``. An episode may end anywhere: where ``("next", "done")`` is set, or where the
    rollout stops. Left out are steps at which ``("collector", "mask")`` is False, and entries that are called
    ``done`` or ``"collector"``.

    Args:
        rollout: ``[B, T]`` or ``[T]``, or a list of those, with equal entries.
        split: Whether another episode follows where one ends. False for
            ``rollout(break_when_all_done=True)``, where steps after the first end are no steps.
        transition_keys: Entries of ``"next"`` that describe the transition rather than what is seen after it.
            They stay under ``"next"``, with all that only ``"next"`` holds, and disappear from the root.

    Raises:
        ValueError: A rollout without ``"next"`` or its ``"done"``, or with no step at all.

    >>> flag = torch.zeros(3, 1, dtype=torch.bool)
    >>> rollout = TensorDict(
    ...     {
    ...         "observation": torch.arange(3.0),
    ...         "action": torch.ones(3),
    ...         "next": {"observation": torch.arange(3.0) + 1, "reward": torch.ones(3, 1), "done": flag},
    ...     },
    ...     batch_size=[3],
    ... )
    >>> pack(rollout)["observation"], pack(rollout)["action"]
    (tensor([[0., 1., 2., 3.]]), tensor([[1., 1., 1., 0.]]))
    """
    if not isinstance(rollout, TensorDictBase):
        return _join([pack(one, split=split, transition_keys=transition_keys) for one in rollout])
    if rollout.get(("next", "done"), None) is None:
        raise ValueError(f"pack: a rollout must hold ('next', 'done'), got {list(rollout.keys())}")
    if rollout.ndim == 1:
        rollout = rollout.unsqueeze(0)
    row, start, end = _episodes(rollout, split)
    if not len(row):
        raise ValueError(f"pack: a rollout must have at least one step, got {tuple(rollout.shape)}")
    return _gather(rollout, row, start, end, transition_keys)


def _gather(
    rollout: TensorDictBase, row: Tensor, start: Tensor, end: Tensor, transition_keys: Sequence[NestedKey]
) -> TensorDict:
    """Puts the episodes ``rollout[row, start : end + 1]`` and what was seen after each side by side."""
    root = rollout.exclude("next", "done", "collector", *transition_keys)
    following = rollout.get("next")
    seen = following.exclude("done", *transition_keys)
    known = list(root.keys(True, True))
    transition = following.exclude("done", *known)
    num_steps = int((end - start).max()) + 2
    column = torch.arange(num_steps, device=row.device)
    acts = column <= (end - start).unsqueeze(-1)
    source = torch.where(acts, start.unsqueeze(-1) + column, 0)
    last = end - start + 1

    def spread(value: Tensor, final: Tensor | None = None) -> Tensor:
        out = value[row.unsqueeze(-1), source]
        out[~acts] = 0
        if final is not None:
            out[torch.arange(len(row), device=row.device), last] = final[row, end]
        return out

    packed = TensorDict({}, batch_size=acts.shape, device=rollout.device)
    for key in known:
        packed.set(key, spread(root.get(key), seen.get(key, None)))
    for key in transition.keys(True, True):
        packed.set(("next", *((key,) if isinstance(key, str) else key)), spread(transition.get(key)))
    return packed.set("mask", (column <= last.unsqueeze(-1)).unsqueeze(-1))


def _episodes(rollout: TensorDictBase, split: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Row, first step and last step of every episode: ``[E]`` int64 each."""
    shape = rollout.shape
    done = rollout.get(("next", "done")).reshape(shape)
    acts = rollout.get(("collector", "mask"), torch.ones_like(done)).reshape(shape)
    if not split:
        acts = acts & (done.cumsum(1) == done)
    edge = torch.ones_like(done[:, :1])
    ends = acts & (done | torch.cat([~acts[:, 1:], edge], 1))
    starts = acts & torch.cat([edge, (ends | ~acts)[:, :-1]], 1)
    row, start = starts.nonzero(as_tuple=True)
    return row, start, ends.nonzero(as_tuple=True)[1]


def _join(batches: Sequence[TensorDict]) -> TensorDict:
    """Concatenates right-padded batches of different lengths."""
    longest = max(batch.shape[1] for batch in batches)
    out = [
        batch.apply(
            lambda value, missing=longest - batch.shape[1]: torch.cat(
                [value, value.new_zeros(value.shape[0], missing, *value.shape[2:])], 1
            ),
            batch_size=[batch.shape[0], longest],
        )
        for batch in batches
    ]
    return torch.cat(out)
