"""State of a batched environment between calls, and its snapshots.

A snapshot is a flat mapping from names to tensors. It is small, because tasks are not saved but
drawn again from their seeds. Only entries that a reset may replace (an instruction) are saved
beside the seed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from yamame_envs.tasks import Draw, Tensors, sent

_PARTS = ("task", "state", "timestep")


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
        saved = {"task.task_seed"}
        saved.update(f"task.{name}" for name in overrides)
        copies = {}
        for name, value in self.tensors().items():
            if name in saved or not name.startswith("task."):
                copies[name] = value.clone()
        return copies

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a function to every tensor."""
        self.streams = fn(self.streams)
        self.episodes = fn(self.episodes)
        self.task = {name: fn(value) for name, value in self.task.items()}
        self.state = {name: fn(value) for name, value in self.state.items()}
        self.timestep = {name: fn(value) for name, value in self.timestep.items()}


def restore(snapshot: Mapping[str, Tensor], like: Tensor, draw: Draw) -> EnvState:
    """Restore the state from a snapshot.

    Args:
        snapshot: Result of `EnvState.snapshot`.
        like: ``[N]``, a tensor with the number of envs and the device of the state.
        draw: Draws tasks from seeds ``[N]`` on the CPU.

    Raises:
        ValueError: An entry is missing or has another number of envs.
    """
    for name in ("streams", "episodes"):
        if name not in snapshot:
            raise ValueError(f"restore: snapshot must hold {name}, got {sorted(snapshot)}")
    for name, value in snapshot.items():
        if len(value) != len(like):
            raise ValueError(f"restore: {name} must hold {len(like)} envs, got {len(value)}")
    copies = {name: value.to(like.device, copy=True) for name, value in snapshot.items()}
    restored = EnvState.of(copies)
    if restored.task:
        drawn = draw(snapshot["task.task_seed"].cpu())
        task = {name: sent(value, like.device) for name, value in drawn.items()}
        # Saved entries come last: they replace those of the task seed.
        restored.task = {**task, **restored.task}
    return restored


def choose(mask: Tensor, new: Tensors, old: Tensors) -> Tensors:
    """Return entries ``[N, ...]`` of ``new`` where a mask ``[N]`` is set, else of ``old``."""
    chosen = {}
    for name, value in old.items():
        column = mask.view(-1, *[1] * (value.ndim - 1))
        chosen[name] = torch.where(column, new[name], value)
    return chosen
