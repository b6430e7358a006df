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
    *,
    inplace: bool = False,
) -> TensorDictBase:
    """What the environment would have emitted for other instructions, in a new batch.

    The new batch is trimmed to its longest mask.

    Args:
        tensordict: ``[B, L]`` whole trajectories.
        instruction: ``[B, K, d]``.
        changed: ``[B]`` bool, the trajectories to rewrite.
        keys: Names of the entries.
        given: What the batch holds, if that is known already.
        inplace: The batch may be written into and returned itself, which saves copies.
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
    beyond, leaving = _cut_off(kept, count)

    finished = (end < never).nonzero()[0]
    finish = (rows[finished], end[finished] - 1)
    row, slot = (times < never).nonzero()
    arrived = (rows[row], times[row, slot])
    left = (arrived[0], arrived[1] - 1)
    goal = _shown(instruction, times, kept[rows], length)
    write = _Writer(inplace and length == never)
    rules: dict[str, Callable[[Tensor], Tensor]] = {
        "goal": lambda value: write.replaced(value, rows, goal),
        "mask": lambda value: write.cleared(value, beyond),
        "prev_reward": lambda value: write.ones(value, rows, arrived),
        "reward": lambda value: write.ones(value, rows, left),
        "terminated": lambda value: write.ones(value, rows[finished], finish),
        "success": lambda value: write.ones(value, rows, finish),
        "action": lambda value: write.cleared(value, leaving),
        "done": lambda value: value,
    }
    names = _names(keys)

    def rewrite(key: NestedKey, value: Tensor) -> Tensor:
        value = value if length == never else value[:, :length]
        if key in names:
            return rules[names[key]](value)
        return write.cleared(value, leaving if isinstance(key, tuple) and key[0] == "next" else beyond)

    out = _updated(tensordict, rewrite) if write.inplace else _mapped(tensordict, rewrite, length)
    return _with_done(out, rows, keys)


def _cut_off(kept: np.ndarray, count: np.ndarray) -> tuple[list[tuple[int, slice]], list[tuple[int, slice]]]:
    """Of trajectories that get shorter, the timesteps beyond the new end, and the transitions that leave from it on."""
    ends = enumerate(zip(kept.tolist(), count.tolist(), strict=True))
    cut = [(b, new, old) for b, (new, old) in ends if new < old]
    return [(b, slice(new, old)) for b, new, old in cut], [(b, slice(new - 1, old)) for b, new, old in cut]


@functools.cache
def _names(keys: RelabelKeys) -> dict[NestedKey, str]:
    """What the entries are that are rewritten in a way of their own."""
    names = ("goal", "mask", "prev_reward", "reward", "terminated", "success", "action", "done")
    return {unravel_key(getattr(keys, name)): name for name in names}


def _updated(batch: TensorDictBase, function: Callable[[NestedKey, Tensor], Tensor]) -> TensorDictBase:
    """The batch itself, each of its entries set to ``function(key, value)``."""
    for key, value in batch.items(True, True):
        new = function(key, value)
        if new is not value:
            batch.set(key, new)
    return batch


def _mapped(
    batch: TensorDictBase, function: Callable[[NestedKey, Tensor], Tensor], length: int
) -> TensorDict:
    """A new batch ``[B, length]`` of ``function(key, value)`` of every entry."""

    def entries(group: TensorDictBase, path: tuple[str, ...]) -> dict[str, Any]:
        return {
            name: entries(value, (*path, name))
            if isinstance(value, TensorDictBase)
            else function((*path, name) if path else name, value)
            for name, value in group.items()
        }

    return TensorDict(entries(batch, ()), batch_size=(len(batch), length), device=batch.device)


def _with_done(out: TensorDictBase, rows: np.ndarray, keys: RelabelKeys) -> TensorDictBase:
    """Sets whether rollouts are done, if the batch holds that, from how they ended."""
    done, terminated = out.get(keys.done, None), out.get(keys.terminated)
    if done is None:
        return out
    truncated = out.get(keys.truncated, None)
    either = terminated if truncated is None else terminated | truncated.reshape(terminated.shape)
    index = torch.from_numpy(rows).to(done.device)
    value = either[index].reshape(-1, *done.shape[1:]).to(done.dtype)
    return out.set(keys.done, done.index_copy(0, index, value))


@dataclass(frozen=True)
class _Writer:
    """Writes into entries ``[B, L, *]``: into copies of them, or ``inplace``."""

    inplace: bool

    def ones(self, value: Tensor, rows: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> Tensor:
        """Zero in ``rows`` of B, except 1 at ``places`` of B and of L."""
        value, into = self._open(value)
        into[rows] = 0
        into[places] = 1
        return value

    def replaced(self, value: Tensor, rows: np.ndarray, by: np.ndarray) -> Tensor:
        """Other ``rows`` of B."""
        value, into = self._open(value)
        into[rows] = by if into is not value else torch.from_numpy(by).to(value)
        return value

    def cleared(self, value: Tensor, parts: list[tuple[int, slice]]) -> Tensor:
        """Zeros in ``parts`` of B and of L; always the same tensor if there are none."""
        if not parts:
            return value
        value, into = self._open(value)
        for part in parts:
            into[part] = 0
        return value

    def _open(self, value: Tensor) -> tuple[Tensor, Any]:
        """What is written into, contiguous, and the same memory as NumPy has it, which assigns faster, if it can."""
        numpy = value.is_cpu and value.dtype != torch.bfloat16
        if self.inplace and value.is_contiguous():
            return value, value.numpy(force=True) if numpy else value
        if numpy:
            into = value.numpy(force=True).copy()
            return torch.from_numpy(into), into
        value = value.clone(memory_format=torch.contiguous_format)
        return value, value


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
