"""The deterministic half of hindsight relabelling: new instructions from given goals, and what follows.

`eligible` says which timesteps may give a goal, `merge` puts given goals into an instruction, `replay` rewrites
a batch of whole right-padded trajectories ``[B, L]`` for new instructions. Row t of a trajectory
holds what was seen at t and the transition that leaves t.

What is decided is decided on the CPU, in NumPy: there is little to compute, in many small steps, each of
which takes torch several times as long. Whole entries are copied and written where they are.

Law: what `replay` returns is what the environment would have emitted had it been given the new instruction
(while the agent acted the same), because environments and relabelling share the semantics of `yamame.goals`.

Source: AMAGO, arXiv 2310.09971, hindsight instruction relabelling.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.utils import unravel_key
from torch import Tensor

from yamame.goals import GOAL_COMPLETED
from yamame.goals.completion import completed, host, used


@dataclass(frozen=True)
class RelabelKeys:
    """Where a batch of trajectories keeps what relabelling reads and rewrites.

    The entries from ``action`` on are rewritten where the batch holds them and not needed otherwise;
    ``is_init`` is only checked: each trajectory must begin with the start of its rollout.
    """

    goal: NestedKey = "goal"
    achieved: NestedKey = "achieved"
    achieved_mask: NestedKey = "achieved_mask"
    mask: NestedKey = "mask"
    reward: NestedKey = ("next", "reward")
    terminated: NestedKey = ("next", "terminated")
    action: NestedKey = "action"
    prev_reward: NestedKey = "prev_reward"
    truncated: NestedKey = ("next", "truncated")
    done: NestedKey = ("next", "done")
    success: NestedKey = ("next", "success")
    is_init: NestedKey = "is_init"

    def needed(self) -> list[NestedKey]:
        """The entries without which a batch cannot be relabelled."""
        return [self.goal, self.achieved, self.achieved_mask, self.mask, self.reward, self.terminated]

    def rewritten(self) -> list[NestedKey]:
        """The entries that relabelling rewrites (it also zeroes every entry in rows that it cuts off)."""
        always: list[NestedKey] = [self.goal, self.mask, self.reward, self.terminated]
        return [*always, self.action, self.prev_reward, self.truncated, self.done, self.success]


class Trajectories(NamedTuple):
    """What relabelling reads of a batch, as NumPy arrays: the same memory on a CPU, copies of what is elsewhere."""

    instruction: np.ndarray
    """``[B, K, d]``."""
    achieved: np.ndarray
    """``[B, L, M, d]``."""
    valid: np.ndarray
    """``[B, L, M]`` bool, which goals are achieved at real timesteps."""
    mask: np.ndarray
    """``[B, L]`` bool, real timesteps."""

    @classmethod
    def of(cls, goal: Tensor, achieved: Tensor, achieved_mask: Tensor, mask: Tensor) -> "Trajectories":
        """From the entries of a batch."""
        real = host(mask).reshape(achieved.shape[:2])
        return cls(host(goal)[:, 0], host(achieved), host(achieved_mask) & real[:, :, None], real)


def eligible(times: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Timesteps ``[B, L]`` that may give a synthetic goal.

    These are the real ones after the first, with an achieved goal, at which no goal was completed.

    Args:
        times: ``[B, K]`` completion times, L where never.
        valid: ``[B, L, M]`` bool, which goals are achieved at real timesteps.
    """
    options = valid[:, :, 0].copy()
    for slot in range(1, valid.shape[2]):
        options |= valid[:, :, slot]
    options[:, 0] = False
    row, goal = (times < options.shape[1]).nonzero()
    options[row, times[row, goal]] = False
    return options


def merge(
    instruction: np.ndarray,
    times: np.ndarray,
    drawn_times: np.ndarray,
    drawn_goals: np.ndarray,
    num_steps: int,
) -> np.ndarray:
    """Writes completed and drawn goals, in order of time, into the first slots; later slots stay as they are.

    No two times are equal: drawn timesteps are distinct, and no goal was completed at any of them.

    Args:
        instruction: ``[B, K, d]``.
        times: ``[B, K]`` int64, when each of its goals was completed; ``num_steps`` where never.
        drawn_times: ``[B, H]`` int64, ``num_steps`` where nothing was drawn.
        drawn_goals: ``[B, H, d]``.
        num_steps: L.
    """
    row = np.arange(len(times))[:, None]
    all_times = np.concatenate([times, drawn_times], 1)
    order = all_times.argsort(1)[:, : instruction.shape[1]]
    known = np.concatenate([instruction, drawn_goals], 1)[row, order]
    return np.where((all_times[row, order] < num_steps)[:, :, None], known, instruction)


def replay(
    tensordict: TensorDictBase,
    instruction: np.ndarray,
    changed: np.ndarray,
    keys: RelabelKeys,
    given: Trajectories | None = None,
) -> TensorDictBase:
    """What the environment would have emitted for other instructions, in a new batch.

    The new batch is trimmed to its longest mask.

    Args:
        tensordict: ``[B, L]`` whole trajectories.
        instruction: ``[B, K, d]``.
        changed: ``[B]`` bool, the trajectories to rewrite.
        keys: Names of the entries.
        given: What the batch holds, if that is known already.
    """
    if given is None:
        given = Trajectories.of(*(tensordict.get(key) for key in keys.needed()[:4]))
    rows, never, count = changed.nonzero()[0], given.mask.shape[1], given.mask.sum(1)
    instruction = instruction[rows]
    times = completed(instruction, given.achieved[rows], given.valid[rows])
    number = used(instruction).sum(-1)
    end = times[np.arange(len(rows)), np.maximum(number - 1, 0)]
    kept = count.copy()
    kept[rows] = np.minimum(count[rows], end + 1)
    length = int(kept.max())
    ends = enumerate(zip(kept.tolist(), count.tolist(), strict=True))
    cut = [(b, new, old) for b, (new, old) in ends if new < old]
    beyond = [(b, slice(new, old)) for b, new, old in cut]
    leaving = [(b, slice(new - 1, old)) for b, new, old in cut]

    finished = (end < never).nonzero()[0]
    finish = (rows[finished], end[finished] - 1)
    row, slot = (times < never).nonzero()
    arrived = (rows[row], times[row, slot])
    left = (arrived[0], arrived[1] - 1)
    goal = _shown(instruction, times, kept[rows], length)
    rules: dict[str, Callable[[Tensor], Tensor]] = {
        "goal": lambda value: _replaced(value, rows, goal),
        "mask": lambda value: _cleared(value, beyond),
        "prev_reward": lambda value: _written(value, rows, arrived),
        "reward": lambda value: _written(value, rows, left),
        "terminated": lambda value: _written(value, rows[finished], finish),
        "success": lambda value: _written(value, rows, finish),
        "action": lambda value: _cleared(value, leaving),
        "done": lambda value: value,
    }
    out = _rewritten(tensordict, rules, beyond, leaving, length, keys)
    if out.get(keys.done, None) is not None:
        _set_done(out, torch.from_numpy(rows).to(out.get(keys.done).device), keys)
    return out


def _rewritten(
    tensordict: TensorDictBase,
    rules: dict[str, Callable[[Tensor], Tensor]],
    beyond: list[tuple[int, slice]],
    leaving: list[tuple[int, slice]],
    length: int,
    keys: RelabelKeys,
) -> TensorDict:
    """The batch with entries rewritten by their rules, the others cleared where trajectories are cut off."""
    names, num_steps = _names(keys), tensordict.shape[1]

    def rewrite(key: NestedKey, value: Tensor) -> Tensor:
        value = value if length == num_steps else value[:, :length]
        if key in names:
            return rules[names[key]](value)
        return _cleared(value, leaving if isinstance(key, tuple) and key[0] == "next" else beyond)

    entries = _mapped(tensordict, rewrite)
    return TensorDict(entries, batch_size=(len(tensordict), length), device=tensordict.device)


@functools.cache
def _names(keys: RelabelKeys) -> dict[NestedKey, str]:
    """What the entries are that are rewritten in a way of their own."""
    names = ("goal", "mask", "prev_reward", "reward", "terminated", "success", "action", "done")
    return {unravel_key(getattr(keys, name)): name for name in names}


def _mapped(
    group: TensorDictBase, function: Callable[[NestedKey, Tensor], Tensor], path: tuple[str, ...] = ()
) -> dict[str, Any]:
    """``function(key, value)`` of every entry, in dicts as nested as the batch."""
    return {
        name: _mapped(value, function, (*path, name))
        if isinstance(value, TensorDictBase)
        else function((*path, name) if path else name, value)
        for name, value in group.items()
    }


def _set_done(out: TensorDictBase, rows: Tensor, keys: RelabelKeys) -> None:
    done, terminated = out.get(keys.done), out.get(keys.terminated)
    truncated = out.get(keys.truncated, None)
    either = terminated if truncated is None else terminated | truncated.reshape(terminated.shape)
    out.set(keys.done, done.index_copy(0, rows, either[rows].reshape(-1, *done.shape[1:]).to(done.dtype)))


def _copy(value: Tensor) -> tuple[Tensor, Any]:
    """A contiguous copy, and the same memory as NumPy has it, which assigns faster, if it can."""
    if value.is_cpu and value.dtype != torch.bfloat16:
        into = value.numpy(force=True).copy()
        return torch.from_numpy(into), into
    value = value.clone(memory_format=torch.contiguous_format)
    return value, value


def _written(value: Tensor, rows: np.ndarray, ones: tuple[np.ndarray, np.ndarray]) -> Tensor:
    """A copy of ``[B, L, *]`` that is zero in ``rows`` of B, except 1 at the places ``ones`` of B and of L."""
    value, into = _copy(value)
    into[rows] = 0
    into[ones] = 1
    return value


def _replaced(value: Tensor, rows: np.ndarray, by: np.ndarray) -> Tensor:
    """A copy of ``[B, L, *]`` with other ``rows`` of B."""
    value, into = _copy(value)
    into[rows] = by if into is not value else torch.from_numpy(by).to(value)
    return value


def _cleared(value: Tensor, parts: list[tuple[int, slice]]) -> Tensor:
    """A copy of ``[B, L, *]`` with zeros in ``parts`` of B and of L; the same tensor if there are none."""
    if not parts:
        return value
    value, into = _copy(value)
    for part in parts:
        into[part] = 0
    return value


def _shown(instruction: np.ndarray, times: np.ndarray, kept: np.ndarray, length: int) -> np.ndarray:
    """The instruction ``[R, length, K, d]`` as it is shown along trajectories, zeros after ``kept`` ``[R]``.

    It changes where a goal is completed, and is the same in between.
    """
    number, slots, size = instruction.shape
    views = np.zeros((number, slots + 2, slots, size), instruction.dtype)
    views[:, :-1] = instruction[:, None]
    for slot in range(slots):
        views[:, slot + 1 : -1, slot] = GOAL_COMPLETED
    bounds = np.empty((number, slots + 3), np.int64)
    bounds[:, 0], bounds[:, 1:-2], bounds[:, -2], bounds[:, -1] = 0, times, kept, length
    np.minimum(bounds[:, 1:-2], kept[:, None], out=bounds[:, 1:-2])
    goal = views.reshape(-1, slots * size).repeat((bounds[:, 1:] - bounds[:, :-1]).ravel(), axis=0)
    return goal.reshape(number, length, slots, size)
