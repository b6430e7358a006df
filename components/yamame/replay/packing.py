"""From an ordinary TorchRL rollout to the packing that replay, relabelling and losses take.

A rollout ``[B, T]`` holds every observation twice: at the root and under ``"next"``. Packed
``[E, L]``, ``L = T + 1``, each is held once: timestep t is what was seen at t and the transition
that leaves t; the last of a trajectory is its last observation, where everything that describes a
transition is zero. Trajectories are right padded with zeros; ``mask`` ``[E, L, 1]`` tells real
timesteps.
"""

from collections.abc import Sequence

import torch
from tensordict import TensorDict, TensorDictBase, pad
from torch import Tensor

from yamame.checks import require
from yamame.replay.gather import gather_timesteps

TRANSITION_KEYS = ("reward", "terminated", "truncated", "success")
"""Entries of ``"next"`` that describe the transition rather than what is seen after it."""


def pack(rollout: TensorDictBase | Sequence[TensorDictBase], *, split: bool = True) -> TensorDict:
    """Packs TorchRL rollouts; each episode becomes a trajectory, in order of env and then time.

    Root entries stay at the root; their last value comes from ``"next"``, or is zero where
    ``"next"`` has none, as for ``action``. An episode may end anywhere: where ``("next", "done")``
    is set, or where the rollout stops. Left out are steps at which ``("collector", "mask")`` is
    False, and entries that are called ``done`` or ``"collector"``. `TRANSITION_KEYS` stay under
    ``"next"``, with all that only ``"next"`` holds, and disappear from the root.

    Args:
        rollout: ``[B, T]`` or ``[T]``, or a list of those, with equal entries.
        split: Whether another episode follows where one ends. False for
            ``rollout(break_when_all_done=True)``, where steps after the first end are no steps.

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
        return join([pack(one, split=split) for one in rollout])
    ends = rollout.get(("next", "done"), None) is not None
    require("pack", "a rollout", list(rollout.keys()), ends, "hold ('next', 'done')")
    if rollout.ndim == 1:
        rollout = rollout.unsqueeze(0)
    env, start, end = _episodes(rollout, split)
    require("pack", "a rollout", tuple(rollout.shape), len(env) > 0, "have at least one step")
    root = rollout.exclude("next", "done", "collector", *TRANSITION_KEYS)
    following = rollout.get("next").exclude("done")
    seen, known = following.exclude(*TRANSITION_KEYS), list(root.keys(True, True))
    last = end - start + 1
    step = torch.arange(int(last.max()) + 1, device=env.device)
    acts = step < last.unsqueeze(-1)
    source = (env * rollout.shape[1] + start).unsqueeze(-1) + step
    packed = gather_timesteps(root, source, acts)
    packed.set("next", gather_timesteps(following.exclude(*known), source, acts))
    episode = torch.arange(len(env), device=env.device)
    for key in known:
        final = seen.get(key, None)
        if final is not None:
            packed.get(key)[episode, last] = final[env, end]
    return packed.set("mask", (step <= last.unsqueeze(-1)).unsqueeze(-1))


def pack_whole(
    data: TensorDictBase | Sequence[TensorDictBase],
) -> TensorDictBase | Sequence[TensorDictBase]:
    """What is packed already as it is, and TorchRL rollouts ``[T]`` or ``[N, T]`` of whole episodes
    packed.

    Raises:
        ValueError: A rollout begins or ends in the middle of an episode.
    """
    if not isinstance(data, TensorDictBase) or data.get(("next", "done"), None) is None:
        return data
    rollout = data.unsqueeze(0) if data.ndim == 1 else data
    done = rollout.get(("next", "done")).reshape(rollout.shape)
    acts = rollout.get(("collector", "mask"), torch.ones_like(done)).reshape(rollout.shape)
    unfinished = int((acts & (done.flip(1).cumsum(1).flip(1) == 0)).sum())
    starts = rollout.get("is_init", torch.ones_like(done)).reshape(rollout.shape)
    begun = int((acts & (starts.cumsum(1) == 0)).sum())
    remedy = "be none: give whole episodes, or pack what there is with yamame.replay.pack"
    require(
        "pack_whole", "steps after the last end of an episode", unfinished, unfinished == 0, remedy
    )
    require(
        "pack_whole", "steps before the first beginning of an episode", begun, begun == 0, remedy
    )
    return pack(rollout.exclude("aborted", ("next", "aborted")))


def _episodes(rollout: TensorDictBase, split: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Env, first step and last step of every episode: ``[E]`` int64 each."""
    shape = rollout.shape
    done = rollout.get(("next", "done")).reshape(shape)
    acts = rollout.get(("collector", "mask"), torch.ones_like(done)).reshape(shape)
    if not split:
        acts = acts & (done.cumsum(1) == done)
    edge = torch.ones_like(done[:, :1])
    ends = acts & (done | torch.cat([~acts[:, 1:], edge], 1))
    starts = acts & torch.cat([edge, (ends | ~acts)[:, :-1]], 1)
    env, start = starts.nonzero(as_tuple=True)
    return env, start, ends.nonzero(as_tuple=True)[1]


def join(batches: Sequence[TensorDictBase]) -> TensorDict:
    """Concatenates right-padded batches ``[E_i, L_i]`` to one as long as the longest."""
    longest = max(batch.shape[1] for batch in batches)
    return torch.cat([pad(batch, [0, 0, 0, longest - batch.shape[1]]) for batch in batches])
