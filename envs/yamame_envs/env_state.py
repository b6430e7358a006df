"""State of a batched environment between calls, and its snapshots.

A snapshot is a flat mapping from names to tensors. It is small, because tasks are not saved but
drawn again from their seeds. Only entries that a reset may replace (an instruction) are saved
beside the seed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor
from yamame.checks import require
from yamame.keys import RELABELLING

from yamame_envs.split import hash_of
from yamame_envs.streams import fold
from yamame_envs.tasks import Tensors, sent

_PARTS = ("task", "state", "timestep")
# Name of the hashes of drawn tasks in a snapshot.
_HASH = "task_hash"
_REMEDY = "make the environment with the settings of the one that was saved"


@dataclass(slots=True)
class EnvState:
    """Everything that decides how N envs continue.

    Attributes:
        streams: ``[N]`` int64, key from which the episodes of each env are drawn.
        episodes: ``[N]`` int64, number of the next episode of each env.
        task: Current tasks, constant during an episode. Empty before the first reset.
        state: Tensors that change at every step.
        timestep: Entries of the current timestep.
    """

    streams: Tensor
    episodes: Tensor
    task: Tensors
    state: Tensors
    timestep: Tensors

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "EnvState":
        """Build the state from the tensors that `tensors` returns."""
        parts: dict[str, Tensors] = {part: {} for part in _PARTS}
        for name, value in tensors.items():
            part, _, entry = name.partition(".")
            if entry:
                parts[part][entry] = value
        return cls(tensors["streams"], tensors["episodes"], **parts)

    def tensors(self) -> Tensors:
        """Return all tensors by name.

        Names are ``streams``, ``episodes``, ``task.*``, ``state.*`` and ``timestep.*``.
        """
        named = {"streams": self.streams, "episodes": self.episodes}
        for part in _PARTS:
            for name, value in getattr(self, part).items():
                named[f"{part}.{name}"] = value
        return named

    def snapshot(self, overrides: tuple[str, ...], time_limit: int | None) -> Tensors:
        """Return copies of all tensors that cannot be drawn again, and hashes of the others.

        Args:
            overrides: Entries of the task that a reset may replace.
            time_limit: Time limit of the environment, which is hashed as well.
        """
        kept = {"task_seed", *overrides}
        copies = {}
        for name, value in self.tensors().items():
            part, _, entry = name.partition(".")
            if part != "task" or entry in kept:
                copies[name] = value.clone()
        if self.task:
            copies[_HASH] = _hash_of_drawn(self.task, kept, time_limit)
        return copies

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a function to every tensor."""
        self.streams = fn(self.streams)
        self.episodes = fn(self.episodes)
        self.task = {name: fn(value) for name, value in self.task.items()}
        self.state = {name: fn(value) for name, value in self.state.items()}
        self.timestep = {name: fn(value) for name, value in self.timestep.items()}


def restore(env: Any, snapshot: Mapping[str, Tensor]) -> EnvState:
    """Return the state of a snapshot.

    Args:
        env: The `yamame_envs.BatchedEnv` that will continue from it; it is not changed.
        snapshot: Result of `EnvState.snapshot`.

    Raises:
        ArgumentError: An entry is missing or unknown, or has another shape or dtype; the tasks of
            the seeds or the time limit are other ones.
    """
    label = env.label
    streams = env.env_state.streams
    check_entries(label, "state_dict", snapshot, {}, optional=None)
    counters = dict.fromkeys(("streams", "episodes"), streams)
    allowed = {*counters, _HASH}
    given = {
        name: value for name, value in snapshot.items() if name.partition(".")[0] not in _PARTS
    }
    check_entries(label, "state_dict", given, counters, optional=allowed)
    copies = {name: value.to(streams.device, copy=True) for name, value in snapshot.items()}
    restored = EnvState.of(copies)
    if not (restored.task or restored.state or restored.timestep):
        return restored

    seeds = {name: value for name, value in restored.task.items() if name == "task_seed"}
    check_entries(label, "state_dict.task", seeds, {"task_seed": streams})
    drawn = env.tasks_of(restored.task["task_seed"].cpu())
    task = {name: sent(value, streams.device) for name, value in drawn.items()}
    task["task_seed"] = restored.task["task_seed"]
    # Snapshots of earlier versions have no hash.
    hashed = _hash_of_drawn(task, set(restored.task), env.time_limit)
    are_same = torch.equal(copies.get(_HASH, hashed), hashed)
    condition = "be of an environment with the same tasks and time limit"
    require(label, "state_dict", "other ones", are_same, condition, remedy=_REMEDY)
    check_entries(label, "state_dict.task", restored.task, {}, optional=task)
    # Saved entries replace those of the task seed.
    restored.task = {**task, **restored.task}
    state, timestep = env.started(restored.task)
    # A step may return another dtype than the beginning.
    state = {name: value.to(restored.state.get(name, value).dtype) for name, value in state.items()}
    check_entries(label, "state_dict.state", restored.state, state)
    # Snapshots of earlier versions lack entries that only relabelling reads.
    needed = {name: value for name, value in timestep.items() if name not in RELABELLING}
    check_entries(label, "state_dict.timestep", restored.timestep, needed, optional=timestep)
    return restored


def _hash_of_drawn(task: Tensors, saved: set[str], time_limit: int | None) -> Tensor:
    """Return hashes ``[N]`` int64 of the entries that are drawn from seeds, and the time limit."""
    left_out = {*saved, *RELABELLING}
    drawn = {name: value for name, value in task.items() if name not in left_out}
    hashed = hash_of(drawn) if drawn else torch.zeros_like(task["task_seed"])
    return fold(hashed, int(time_limit or 0))


def check_entries(
    label: str,
    name: str,
    given: Any,
    needed: Mapping[str, Any],
    *,
    optional: Mapping[str, Any] | Iterable[str] | None = (),
) -> None:
    """Raise unless a part of a saved state has the entries of an environment.

    Args:
        label: Name of the environment in messages.
        name: Name of the part in messages.
        given: The part.
        needed: Entries that it must hold; their shapes and dtypes must be equal.
        optional: Entries that it may hold; if it is a mapping, shapes and dtypes must be equal.
            None: any.

    Raises:
        ArgumentError: An entry is missing or unknown, or has another shape or dtype.
    """
    is_mapping = isinstance(given, Mapping)
    require(label, name, type(given).__name__, is_mapping, "be a mapping", remedy=_REMEDY)
    if optional is None:
        optional = given.keys()
    is_whole = needed.keys() <= given.keys() <= needed.keys() | set(optional)
    condition = f"hold {', '.join(sorted({*needed, *optional}))}"
    require(label, name, sorted(given), is_whole, condition, remedy=_REMEDY)
    known = {**(optional if isinstance(optional, Mapping) else {}), **needed}
    for entry, value in given.items():
        place = f"{name}.{entry}"
        is_tensor = isinstance(value, Tensor | TensorDictBase)
        require(label, place, type(value).__name__, is_tensor, "be a tensor", remedy=_REMEDY)
        if entry in known and isinstance(value, Tensor):
            like = known[entry]
            is_same = (value.shape, value.dtype) == (like.shape, like.dtype)
            got = f"{value.dtype} {list(value.shape)}"
            condition = f"be {like.dtype} {list(like.shape)}"
            require(label, place, got, is_same, condition, remedy=_REMEDY)


def choose(mask: Tensor, new: Tensors, old: Tensors) -> Tensors:
    """Return entries ``[N, ...]`` of ``new`` where a mask ``[N]`` is set, else of ``old``."""
    chosen = {}
    for name, value in old.items():
        column = mask.view(-1, *[1] * (value.ndim - 1))
        chosen[name] = torch.where(column, new[name], value)
    return chosen
