"""Packing: from TorchRL rollouts to the batches of replay, relabelling and losses.

A rollout ``[B, T]`` holds every observation twice: at the root and under ``"next"``. A packed batch
``[E, L]``, ``L = T + 1``, holds it once: timestep t consists of the observation at t and the
transition out of t. The last timestep of a trajectory is its last observation, where all entries of
a transition are zero. Trajectories are right padded with zeros; ``mask`` ``[E, L, 1]`` marks real
timesteps.
"""

from collections.abc import Sequence

import torch
from tensordict import TensorDict, TensorDictBase, pad
from torch import Tensor

from yamame.checks import require
from yamame.replay.gather import gather_timesteps

TRANSITION_KEYS = ("reward", "terminated", "truncated", "success")
"""Entries of ``"next"`` that describe the transition rather than the next observation."""


def pack(rollout: TensorDictBase | Sequence[TensorDictBase], *, split: bool = True) -> TensorDict:
    """Pack TorchRL rollouts; each episode becomes a trajectory, in order of env and then time.

    Root entries stay at the root; their last value comes from ``"next"``, or is zero where
    ``"next"`` lacks it, as for ``action``. An episode ends where ``("next", "done")`` is set or the
    rollout ends. Steps at which ``("collector", "mask")`` is False are left out, and so are entries
    named ``done`` or ``"collector"``. `TRANSITION_KEYS` stay under ``"next"``, with all entries
    that only ``"next"`` holds, and are removed from the root.

    Args:
        rollout: ``[B, T]`` or ``[T]``, or a list of those, with equal entries.
        split: Whether another episode follows where one ends. False for
            ``rollout(break_when_all_done=True)``, where steps after the first end are void.

    Returns:
        Trajectories ``[E, L]`` with ``mask``.

    Raises:
        ArgumentError: A rollout lacks ``"next"`` or its ``"done"``, or has no steps.

    >>> observation = torch.arange(3.0)
    >>> done = torch.zeros(3, 1, dtype=torch.bool)
    >>> arrival = {"observation": observation + 1, "reward": torch.ones(3, 1), "done": done}
    >>> entries = {"observation": observation, "action": torch.ones(3), "next": arrival}
    >>> rollout = TensorDict(entries, batch_size=[3])
    >>> pack(rollout)["observation"], pack(rollout)["action"]
    (tensor([[0., 1., 2., 3.]]), tensor([[1., 1., 1., 0.]]))
    """
    if not isinstance(rollout, TensorDictBase):
        return join([pack(one, split=split) for one in rollout])
    has_ends = rollout.get(("next", "done"), None) is not None
    require("pack", "a rollout", list(rollout.keys()), has_ends, "hold ('next', 'done')")
    if rollout.ndim == 1:
        rollout = rollout.unsqueeze(0)
    env, start, end = _episodes(rollout, split)
    require("pack", "a rollout", tuple(rollout.shape), len(env) > 0, "have at least one step")

    # An episode of n steps has n + 1 timesteps, the last of which comes from "next".
    last = end - start + 1
    step = torch.arange(int(last.max()) + 1, device=env.device)
    is_step = step < last.unsqueeze(-1)
    first = env * rollout.shape[1] + start
    source = first.unsqueeze(-1) + step

    root = rollout.exclude("next", "done", "collector", *TRANSITION_KEYS)
    root_keys = list(root.keys(True, True))
    following = rollout.get("next").exclude("done")
    packed = gather_timesteps(root, source, is_step)
    packed.set("next", gather_timesteps(following.exclude(*root_keys), source, is_step))

    next_observation = following.exclude(*TRANSITION_KEYS)
    episode = torch.arange(len(env), device=env.device)
    for key in root_keys:
        value = next_observation.get(key, None)
        if value is not None:
            packed.get(key)[episode, last] = value[env, end]
    return packed.set("mask", (step <= last.unsqueeze(-1)).unsqueeze(-1))


def pack_whole(
    data: TensorDictBase | Sequence[TensorDictBase],
) -> TensorDictBase | Sequence[TensorDictBase]:
    """Pack TorchRL rollouts of whole episodes; return packed trajectories unchanged.

    Args:
        data: Rollout ``[T]`` or ``[N, T]``, or packed trajectories.

    Raises:
        ArgumentError: A rollout begins or ends within an episode.
    """
    if not isinstance(data, TensorDictBase) or data.get(("next", "done"), None) is None:
        return data
    rollout = data.unsqueeze(0) if data.ndim == 1 else data
    done, acts = _done_and_acts(rollout)
    owner = "pack_whole"
    remedy = "pass whole episodes, or pack unfinished ones with yamame.replay.pack"

    # Reversed cumulative sum: the number of ends from a step on.
    ends_ahead = done.flip(1).cumsum(1).flip(1)
    unfinished = int((acts & (ends_ahead == 0)).sum())
    name = "steps after the last end of an episode"
    require(owner, name, unfinished, unfinished == 0, "be 0", remedy=remedy)

    starts = rollout.get("is_init", torch.ones_like(done)).reshape(rollout.shape)
    headless = int((acts & (starts.cumsum(1) == 0)).sum())
    name = "steps before the first beginning of an episode"
    require(owner, name, headless, headless == 0, "be 0", remedy=remedy)
    # A flag of environments that may fail, which collectors do not store either.
    return pack(rollout.exclude("aborted", ("next", "aborted")))


def _done_and_acts(rollout: TensorDictBase) -> tuple[Tensor, Tensor]:
    """Return where episodes end, and which steps are real ``[B, T]``."""
    done = rollout.get(("next", "done")).reshape(rollout.shape)
    acts = rollout.get(("collector", "mask"), torch.ones_like(done))
    return done, acts.reshape(rollout.shape)


def _episodes(rollout: TensorDictBase, split: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return env, first step and last step of every episode ``[E]`` int64."""
    done, acts = _done_and_acts(rollout)
    if not split:
        # The cumulative sum exceeds `done` after the first end.
        acts = acts & (done.cumsum(1) == done)
    edge = torch.ones_like(done[:, :1])
    is_void_after = torch.cat([~acts[:, 1:], edge], 1)
    ends = acts & (done | is_void_after)
    may_start = torch.cat([edge, (ends | ~acts)[:, :-1]], 1)
    env, start = (acts & may_start).nonzero(as_tuple=True)
    # Rows are scanned in the same order, so the n-th end is that of the n-th start.
    _, end = ends.nonzero(as_tuple=True)
    return env, start, end


def join(batches: Sequence[TensorDictBase]) -> TensorDict:
    """Concatenate right-padded batches ``[E_i, L_i]``, padded to the longest."""
    longest = max(batch.shape[1] for batch in batches)
    padded = [pad(batch, [0, 0, 0, longest - batch.shape[1]]) for batch in batches]
    return torch.cat(padded)
