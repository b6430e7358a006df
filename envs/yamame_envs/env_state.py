"""What a batched environment remembers between calls, and how it is saved.

A snapshot is a flat mapping from names to tensors. A task is not saved but drawn again from its seed, so a
snapshot is small: only what a reset may have set otherwise (an instruction) is kept beside the seed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from yamame_envs.tasks import Draw, Tensors


@dataclass(slots=True)
class EnvState:
    """What decides how N envs go on.

    Attributes:
        streams: ``[N]`` int64, the key that each env's episodes are drawn from.
        episodes: ``[N]`` int64, the number of each env's next episode.
        task: The running tasks, constant during an episode; empty before the first reset.
        state: What changes at every step.
        timestep: What was observed last.
    """

    streams: Tensor
    episodes: Tensor
    task: Tensors
    state: Tensors
    timestep: Tensors

    def snapshot(self, overrides: tuple[str, ...]) -> dict[str, Tensor]:
        """Copies of all tensors that cannot be drawn again; ``overrides`` names such entries of the task."""
        saved = {"streams": self.streams, "episodes": self.episodes}
        kept = ("task_seed", *overrides) if self.task else ()
        saved |= {f"task.{name}": self.task[name] for name in kept}
        saved |= {f"state.{name}": value for name, value in self.state.items()}
        saved |= {f"timestep.{name}": value for name, value in self.timestep.items()}
        return {name: value.clone() for name, value in saved.items()}

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Replaces every tensor by its image under ``fn``."""
        self.streams, self.episodes = fn(self.streams), fn(self.episodes)
        self.task = {name: fn(value) for name, value in self.task.items()}
        self.state = {name: fn(value) for name, value in self.state.items()}
        self.timestep = {name: fn(value) for name, value in self.timestep.items()}


def restore(snapshot: Mapping[str, Tensor], like: Tensor, draw: Draw) -> EnvState:
    """Rebuilds the state from a snapshot.

    Args:
        snapshot: As returned by `EnvState.snapshot`.
        like: ``[N]``, a tensor with the right number of envs, on the right device.
        draw: Draws tasks from seeds ``[N]``.

    Raises:
        ValueError: If an entry is missing or has another number of envs.
    """
    for name in ("streams", "episodes"):
        if name not in snapshot:
            raise ValueError(f"restore: snapshot must hold {name}, got {sorted(snapshot)}")
    for name, value in snapshot.items():
        if len(value) != len(like):
            raise ValueError(f"restore: {name} must hold {len(like)} envs, got {len(value)}")
    parts: dict[str, Tensors] = {"task": {}, "state": {}, "timestep": {}}
    for name, value in snapshot.items():
        part, _, entry = name.partition(".")
        if entry:
            parts[part][entry] = value.to(like.device, copy=True)
    if parts["task"]:
        parts["task"] = {**draw(parts["task"]["task_seed"]), **parts["task"]}
    streams, episodes = (snapshot[name].to(like.device, copy=True) for name in ("streams", "episodes"))
    return EnvState(streams, episodes, **parts)
