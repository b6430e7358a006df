"""State of a batched environment between calls, and its snapshots.

A snapshot is a flat mapping from names to tensors. It is small, because tasks are not saved but
drawn again from their seeds. Only entries that a reset may replace (an instruction) are saved
beside the seed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from yamame.checks import require
from yamame.keys import RELABELLING

from yamame_envs.split import hash_of
from yamame_envs.tasks import Draw, Tensors, sent

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

    def snapshot(self, overrides: tuple[str, ...]) -> Tensors:
        """Return copies of all tensors that cannot be drawn again.

        Args:
            overrides: Entries of the task that a reset may replace.
        """
        kept = {"task_seed", *overrides}
        copies = {}
        for name, value in self.tensors().items():
            part, _, entry = name.partition(".")
            if part != "task" or entry in kept:
                copies[name] = value.clone()
        hashed = _hash_of_drawn(self.task, kept)
        if hashed is not None:
            copies[_HASH] = hashed
        return copies

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a function to every tensor."""
        self.streams = fn(self.streams)
        self.episodes = fn(self.episodes)
        self.task = {name: fn(value) for name, value in self.task.items()}
        self.state = {name: fn(value) for name, value in self.state.items()}
        self.timestep = {name: fn(value) for name, value in self.timestep.items()}


def restore(
    snapshot: Mapping[str, Tensor],
    like: Tensor,
    draw: Draw,
    start: Callable[[Tensors], tuple[Tensors, Tensors]],
    label: str,
) -> EnvState:
    """Restore the state from a snapshot.

    Args:
        snapshot: Result of `EnvState.snapshot`.
        like: ``[N]``, a tensor with the number of envs and the device of the state.
        draw: Draws tasks from seeds ``[N]`` on the CPU.
        start: Returns the state and the timestep at the start of tasks ``[N, ...]``.
        label: Name of the environment in messages.

    Raises:
        ArgumentError: An entry is missing or unknown, or has another shape or dtype; the tasks of
            the seeds are other ones.
    """
    for name in ("streams", "episodes"):
        require(label, "state_dict", sorted(snapshot), name in snapshot, f"hold {name}")
    for name, value in snapshot.items():
        is_same = len(value) == len(like)
        condition = f"hold {len(like)} envs"
        require(label, f"state_dict.{name}", f"{len(value)} envs", is_same, condition)
    copies = {name: value.to(like.device, copy=True) for name, value in snapshot.items()}
    restored = EnvState.of(copies)
    if not restored.task:
        return restored

    drawn = draw(snapshot["task.task_seed"].cpu())
    task = {name: sent(value, like.device) for name, value in drawn.items()}
    # Saved entries come last: they replace those of the task seed.
    task |= restored.task
    # Snapshots of earlier versions have no hash.
    hashed = _hash_of_drawn(task, set(restored.task))
    are_same = hashed is None or torch.equal(copies.get(_HASH, hashed), hashed)
    condition = "be of an environment that draws the same tasks"
    require(label, "state_dict", "other ones", are_same, condition, remedy=_REMEDY)
    restored.task = task
    state, timestep = start(task)
    _check_layout(label, "state", restored.state, state)
    _check_layout(label, "timestep", restored.timestep, timestep)
    return restored


def _hash_of_drawn(task: Tensors, saved: set[str]) -> Tensor | None:
    """Return hashes ``[N]`` int64 of the entries that are drawn from seeds; None without any."""
    drawn = {name: value for name, value in task.items() if name not in saved}
    return hash_of(drawn) if drawn else None


def _check_layout(label: str, part: str, given: Tensors, expected: Tensors) -> None:
    """Raise unless restored entries have the names, shapes and dtypes of those at a start."""
    # Snapshots of earlier versions lack entries that only relabelling reads.
    needed = expected.keys() - RELABELLING
    name = f"state_dict.{part}"
    condition = f"hold {', '.join(sorted(needed))}"
    is_whole = needed <= given.keys() <= expected.keys()
    require(label, name, sorted(given), is_whole, condition, remedy=_REMEDY)
    for entry, value in given.items():
        like = expected[entry]
        is_same = (value.shape, value.dtype) == (like.shape, like.dtype)
        got = f"{value.dtype} {list(value.shape)}"
        condition = f"be {like.dtype} {list(like.shape)}"
        require(label, f"{name}.{entry}", got, is_same, condition, remedy=_REMEDY)


def choose(mask: Tensor, new: Tensors, old: Tensors) -> Tensors:
    """Return entries ``[N, ...]`` of ``new`` where a mask ``[N]`` is set, else of ``old``."""
    chosen = {}
    for name, value in old.items():
        column = mask.view(-1, *[1] * (value.ndim - 1))
        chosen[name] = torch.where(column, new[name], value)
    return chosen
