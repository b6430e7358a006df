"""Tasks that are drawn apart from all other randomness of an environment.

Trials of the same task then differ in their noise.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from yamame.checks import ArgumentError, require

SEED_BITS = 31
"""Bits of the seed of a task; the number of the attempt at it stands above them.

Some environments accept no longer seeds.
"""

_MAX_DRAWS = 255
DrawTask = Callable[[int], Any]
"""Function that draws a task by a seed: the same seed gives the same task."""


def reset_seeds(task_seeds: Sequence[int], attempts: npt.NDArray[np.int64]) -> list[int]:
    """Return the seeds for ``reset``: the non-negative seed of a task, and the attempt at it.

    >>> reset_seeds([7, 7], np.array([0, 1])) == [7, 7 + 2**31]
    True
    """
    seeds = []
    for task_seed, attempt in zip(task_seeds, attempts.tolist(), strict=True):
        seeds.append(task_seed % 2**SEED_BITS + attempt * 2**SEED_BITS)
    return seeds


class TaskEnv(Protocol):
    """Methods of a Gymnasium environment whose tasks are separate from its seeds.

    Instead of ``set_task`` an environment may take its task in ``reset(options={"task": task})``.
    """

    def sample_task(self, seed: int) -> Any:
        """Draw a task; not needed where a custom function draws them."""

    def set_task(self, task: Any) -> None:
        """Play this task from the next reset on, whose seed decides everything else."""

    def task_hash(self, task: Any) -> int:
        """Return an integer that equal tasks share and others hardly ever.

        Needed only where a share of tasks is held out.
        """


class TaskWrapper(gymnasium.Wrapper):
    """Wrapper whose reset takes the seed of a task and the number of the attempt as one seed.

    Args:
        env: A `TaskEnv`, or an environment that takes ``options={"task": ...}``.
        draw: Draws tasks. None: ``sample_task(seed)`` of the environment.
        split: Tasks that are played, see `yamame_envs.split`. All values but ``all`` need
            ``task_hash(task)``.
        held_out: Share of tasks that ``test`` plays and ``train`` does not.
        owner: Name of the environment in messages.

    Raises:
        ArgumentError: There is no function that draws tasks, or none that hashes them for a split.
    """

    def __init__(
        self,
        env: "gymnasium.Env[Any, Any]",
        *,
        draw: DrawTask | None = None,
        split: str = "all",
        held_out: float = 0.0,
        owner: str = "TaskWrapper",
    ) -> None:
        super().__init__(env)
        inner: Any = env.unwrapped
        self._draw: Any = getattr(inner, "sample_task", None) if draw is None else draw
        condition = (
            "be a function (seed) -> task, as env.tasks, or the environment must have "
            "sample_task(seed)"
        )
        tasks = "own" if draw is None else draw
        require(owner, "tasks", tasks, callable(self._draw), condition)
        self._hash: Any = getattr(inner, "task_hash", None)
        has_sides = split == "all" or callable(self._hash)
        condition = "be 'all', or the environment must have task_hash(task)"
        require(owner, "split", split, has_sides, condition)

        self._set_task = getattr(inner, "set_task", None)
        self._split = split
        self._held_out = held_out
        self._owner = owner
        self._task: Any = None

    def played_task_hash(self) -> int | None:
        """Return the hash of the current task; None if the environment has no ``task_hash``."""
        return None if self._hash is None else int(self._hash(self._task))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an attempt.

        Args:
            seed: Seed of the task, plus ``2**SEED_BITS`` times the number of the attempt.
            options: Passed to the environment.
        """
        attempt, task_seed = divmod(seed or 0, 2**SEED_BITS)
        # A bit less: some environments take seeds of 31 bits only.
        noise_seed = _mix(task_seed, attempt) >> 1
        self._task = self._draw(task_seed) if self._split == "all" else self._draw_side(task_seed)
        if self._set_task is None:
            options = {**(options or {}), "task": self._task}
        else:
            self._set_task(self._task)
        return self.env.reset(seed=noise_seed, options=options)

    def _draw_side(self, task_seed: int) -> Any:
        """Return the first task on the right side, among those of seeds made of ``task_seed``."""
        seed = task_seed
        for number in range(1, _MAX_DRAWS + 1):
            task = self._draw(seed)
            share = _mix(int(self._hash(task)) % 2**64) / 2**32
            is_held_out = share < self._held_out
            if is_held_out == (self._split == "test"):
                return task
            seed = _mix(task_seed, number) >> 1
        condition = "be 'all' where there are so few tasks"
        raise ArgumentError(self._owner, "split", self._split, condition)


def _mix(*numbers: int) -> int:
    """Hash non-negative integers to 32 bits."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def make_with_tasks(make: "Callable[[], gymnasium.Env[Any, Any]]", **settings: Any) -> TaskWrapper:
    """Make an environment and wrap it in a `TaskWrapper` with these settings."""
    return TaskWrapper(make(), **settings)
