"""What a batched environment remembers between calls, and how it is saved.

A snapshot is a flat mapping from names to tensors. A task is not saved but drawn again from its
seed, so a snapshot is small: only what a reset may have set otherwise (an instruction) is kept
beside the seed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from yamame_envs.tasks import Draw, Tensors, sent

_PARTS = ("task", "state", "timestep")


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

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "EnvState":
        """From what `tensors` returns."""
        parts: dict[str, Tensors] = {part: {} for part in _PARTS}
        for name, value in tensors.items():
            part, _, entry = name.partition(".")
            if entry:
                parts[part][entry] = value
        return cls(tensors["streams"], tensors["episodes"], **parts)

    def tensors(self) -> Tensors:
        """All of them, by names: ``streams``, ``episodes``, ``task.*``, ``state.*`` and
        ``timestep.*``.
        """
        named = {"streams": self.streams, "episodes": self.episodes}
        for part in _PARTS:
            named |= {f"{part}.{name}": value for name, value in getattr(self, part).items()}
        return named

    def snapshot(self, overrides: tuple[str, ...]) -> Tensors:
        """Copies of all tensors that cannot be drawn again; ``overrides`` names such entries of the
        task.
        """
        kept = {f"task.{name}" for name in ("task_seed", *overrides)}
        return {
            name: value.clone()
            for name, value in self.tensors().items()
            if name in kept or not name.startswith("task.")
        }

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
        draw: Draws tasks from seeds ``[N]`` on the CPU.

    Raises:
        ValueError: If an entry is missing or has another number of envs.
    """
    for name in ("streams", "episodes"):
        if name not in snapshot:
            raise ValueError(f"restore: snapshot must hold {name}, got {sorted(snapshot)}")
    for name, value in snapshot.items():
        if len(value) != len(like):
            raise ValueError(f"restore: {name} must hold {len(like)} envs, got {len(value)}")
    restored = EnvState.of(
        {name: value.to(like.device, copy=True) for name, value in snapshot.items()}
    )
    if restored.task:
        drawn = draw(snapshot["task.task_seed"].cpu())
        restored.task = {
            **{name: sent(value, like.device) for name, value in drawn.items()},
            **restored.task,
        }
    return restored
