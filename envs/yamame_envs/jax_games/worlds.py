"""Games of N envs: their worlds, and worlds of coming episodes that are made in advance.

Making a world costs little more for many envs than for one, and in some games far more than a step.
So worlds are made in chunks of a fixed size, whose free places are filled with the next episodes of
other envs. How far in advance a world is made changes nothing in it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from yamame.checks import require

from yamame_envs.jax_games.programs import Moved, Programs, words_of
from yamame_envs.jax_games.runtime import is_plain, load_jax
from yamame_envs.streams import fold
from yamame_envs.tasks import Draw

_SMALLEST_CHUNK = 16
"""Worlds that are made at once for few envs; more envs than eight of these make an eighth."""
_NEVER = -1
# Separates the noise of an attempt from the key of the task.
_ATTEMPT = 0x61747470


class Start(NamedTuple):
    """Seeds of episodes, ``[N]`` int64 each, on the CPU.

    Attributes:
        seeds: Seeds of their tasks.
        attempts: Numbers of earlier attempts at these tasks.
    """

    seeds: Tensor
    attempts: Tensor


class Worlds:
    """Games of N envs.

    Args:
        programs: Programs of the game.
        num_envs: Number of envs N.
        device: Device of JAX.
        draw: Draws the tasks of seeds ``[R]``, on one side of a split.
    """

    def __init__(self, programs: Programs, num_envs: int, device: Any, draw: Draw) -> None:
        self._programs = programs
        self._device = device
        self._draw = draw
        self._chunk = min(num_envs, max(_SMALLEST_CHUNK, num_envs // 8))
        self._current: Any = None
        self._queue: Any = None
        # Number of the episode of each env that the queue holds.
        self._queued = torch.full((num_envs,), _NEVER)

    @property
    def is_empty(self) -> bool:
        """True before the first reset."""
        return self._current is None

    @property
    def seen(self) -> tuple[Any, ...]:
        """Entries ``[N, ...]`` of the current observations, as arrays."""
        seen: tuple[Any, ...] = self._current[0]
        return seen

    @property
    def world(self) -> Any:
        """Current worlds ``[N, ...]``."""
        return self._current[1]

    def clear(self) -> None:
        """Forget all worlds: the next call begins all envs."""
        self._current = None
        self.forget_coming()

    def forget_coming(self) -> None:
        """Forget worlds made in advance, since other episodes come."""
        self._queued.fill_(_NEVER)

    def begin(self, begins: Tensor, start: Start) -> None:
        """Begin episodes in the envs of a mask ``[N]``."""
        rows = begins.nonzero().squeeze(-1)
        # The queue would lose the coming episodes of these rows.
        self._queued[rows] = _NEVER
        self._make(rows, start)
        self._place(begins)

    def begin_numbered(self, begins: Tensor, episodes: Tensor, streams: Tensor) -> None:
        """Begin the numbered episodes of the envs of a mask.

        Args:
            begins: ``[N]`` bool, on the CPU.
            episodes: ``[N]`` int64, number of the next episode of each env.
            streams: ``[N]`` int64, key of each env.
        """
        is_missing = self._queued != episodes
        missing = (is_missing & begins).nonzero().squeeze(-1)
        if len(missing):
            room = -len(missing) % self._chunk
            # Free places of the last chunk.
            others = (is_missing & ~begins).nonzero().squeeze(-1)
            rows = torch.cat([missing, others[:room]])
            self._make(rows, Start(fold(streams, episodes), torch.zeros_like(episodes)))
            self._queued[rows] = episodes[rows]
        self._place(begins)
        self._queued[begins] = _NEVER

    def _make(self, rows: Tensor, start: Start) -> None:
        """Make worlds in chunks, and store them in the queue."""
        if self._queue is None:
            self._queue = self._programs.empty(len(self._queued), self._device)
        for some in rows.split(self._chunk):
            # Rows that are made twice are equal.
            padded = some[torch.arange(self._chunk) % len(some)]
            seeds = start.seeds[padded]
            attempts = fold(seeds, _ATTEMPT, start.attempts[padded])
            # Without tasks, the key of the reset is the task, which every attempt shares.
            resets = seeds if self._programs.game.draw_task is None else attempts
            tasks = None
            if self._programs.game.draw_task is not None:
                tasks = self._programs.tasks_of(self._draw(seeds))
            self._queue = self._programs.refill(
                self._queue,
                words_of(resets),
                words_of(fold(attempts, 0)),
                tasks,
                padded.to(torch.int32).numpy(),
                seeds,
            )

    def _place(self, begins: Tensor) -> None:
        if self._current is None:
            self._current = self._queue
        else:
            self._current = self._programs.place(self._current, self._queue, begins.numpy())

    def step(self, action: Any) -> Moved:
        """Step all envs with actions ``[N, ...]``, an array."""
        moved = self._programs.step(self.world, action)
        self._current = (moved.seen, moved.world)
        return moved

    def row(self, env_id: int) -> tuple[Any, Any]:
        """Return the state and the task of an env, with their keys."""
        jax = load_jax()
        world = jax.tree.map(lambda leaf: leaf[env_id], self.world)
        programs = self._programs
        return programs.with_keys(world.state, "state"), programs.with_keys(world.task, "task")

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the current observations and worlds, named by numbers."""
        if self._current is None:
            return {}
        saved = {}
        for number, leaf in enumerate(load_jax().tree.leaves(self._current)):
            values = np.array(leaf)
            if not is_plain(values.dtype):
                values = values[..., None].view(np.uint8)
            saved[f"{number:04}"] = torch.from_numpy(values)
        return saved

    def load_state_dict(self, saved: Mapping[str, Tensor], owner: str) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ArgumentError: It is the state of another game, or of another number of envs.
        """
        self.clear()
        if not saved:
            return
        jax = load_jax()
        shapes, tree = jax.tree.flatten(self._programs.shapes)
        is_whole = len(saved) == len(shapes)
        condition = f"hold {len(shapes)} arrays of this game"
        require(owner, "state_dict", len(saved), is_whole, condition)
        leaves = []
        num_envs = len(self._queued)
        for number, shape in enumerate(shapes):
            name = f"{number:04}"
            require(owner, "state_dict", sorted(saved), name in saved, f"hold world.{name}")
            values = saved[name].cpu().numpy()
            if not is_plain(shape.dtype):
                values = np.ascontiguousarray(values).view(shape.dtype)[..., 0]
            got = f"{values.dtype}{list(values.shape)}"
            wanted = f"{np.dtype(shape.dtype)}{[num_envs, *shape.shape]}"
            require(owner, f"state_dict world.{name}", got, got == wanted, f"be {wanted}")
            leaves.append(np.array(values))
        self._current = jax.device_put(jax.tree.unflatten(tree, leaves), self._device)
