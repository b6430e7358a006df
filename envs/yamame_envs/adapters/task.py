"""A task apart from all else that is random in an environment, so that trials of one task differ in
their noise.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from yamame.checks import require

SEED_BITS = 31
"""Bits of the seed of a task, for some environments take no more; the number of the attempt at it
stands above them.
"""

_MOST = 255
"""Tasks that are drawn for one seed at most, until one is on the right side."""
DrawTask = Callable[[int], Any]
"""Draws a task by a seed: the same seed gives the same task."""


def reset_seeds(task_seeds: Sequence[int], attempts: npt.NDArray[np.int64]) -> list[int]:
    """What environments are reset with: the seed of a task, which is never negative, and the
    attempt at it.

    >>> reset_seeds([7, 7], np.array([0, 1])) == [7, 7 + 2**31]
    True
    """
    pairs = zip(task_seeds, attempts.tolist(), strict=True)
    return [seed % 2**SEED_BITS + attempt * 2**SEED_BITS for seed, attempt in pairs]


class TaskEnv(Protocol):
    """What a Gymnasium environment may offer, so that its tasks are apart from its seeds.

    Instead of ``set_task`` an environment may take its task in ``reset(options={"task": task})``.
    """

    def sample_task(self, seed: int) -> Any:
        """Draws a task; not needed where a function of one's own draws them."""

    def set_task(self, task: Any) -> None:
        """Plays this task from the next reset on, whose seed decides everything else."""

    def task_hash(self, task: Any) -> int:
        """A number that equal tasks share and others hardly ever; needed alone where a share of
        tasks is held out.
        """


class TaskApart(gymnasium.Wrapper):
    """An environment whose reset takes the seed of a task and the number of the attempt at it, as
    one seed.

    Args:
        env: A `TaskEnv`, or one that takes ``options={"task": ...}``.
        draw: Draws tasks; None: the environment itself, by ``sample_task(seed)``.
        split: Which tasks are played, see `yamame_envs.split`; all but ``all`` need
            ``task_hash(task)``.
        held_out: The share of tasks that ``test`` plays and ``train`` does not.
        owner: Whose it is, for messages.

    Raises:
        ValueError: Nothing draws tasks, or nothing tells which are held out.
    """

    def __init__(
        self,
        env: "gymnasium.Env[Any, Any]",
        *,
        draw: DrawTask | None = None,
        split: str = "all",
        held_out: float = 0.0,
        owner: str = "TaskApart",
    ) -> None:
        super().__init__(env)
        inner: Any = env.unwrapped
        own = getattr(inner, "sample_task", None)
        condition = "be a function (seed) -> task, as env.tasks, or the environment must have sample_task(seed)"
        require(owner, "tasks", "own" if draw is None else draw, callable(draw or own), condition)
        self._draw: Any = own if draw is None else draw
        self._set_task = getattr(inner, "set_task", None)
        self._hash: Any = getattr(inner, "task_hash", None)
        good = split == "all" or callable(self._hash)
        require(
            owner, "split", split, good, "be 'all', or the environment must have task_hash(task)"
        )
        self._split, self._held_out, self._owner = split, held_out, owner
        self._task: Any = None

    def played_task_hash(self) -> int | None:
        """The hash of the task that is played; None if the environment has no
        ``task_hash(task)``.
        """
        return None if self._hash is None else int(self._hash(self._task))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an attempt: ``seed`` is that of the task, plus ``2 ** SEED_BITS`` times the number
        of the attempt.
        """
        attempt, task_seed = divmod(seed or 0, 2**SEED_BITS)
        noise = int(np.random.SeedSequence([task_seed, attempt]).generate_state(1)[0]) >> 1
        task = self._draw(task_seed) if self._split == "all" else self._on_side(task_seed)
        self._task = task
        if self._set_task is None:
            options = {**(options or {}), "task": task}
        else:
            self._set_task(task)
        return self.env.reset(seed=noise, options=options)

    def _on_side(self, task_seed: int) -> Any:
        """The first task of the right side among those of the seed, and of others that are made of
        it.
        """
        for number in range(_MOST):
            seed = _mixed(task_seed, number) >> 1 if number else task_seed
            task = self._draw(seed)
            is_held_out = _mixed(int(self._hash(task)) % 2**64) < self._held_out * 2**32
            if is_held_out == (self._split == "test"):
                return task
        condition = "be 'all' where there are so few tasks"
        require(self._owner, "split", self._split, False, condition)


def _mixed(*numbers: int) -> int:
    """32 bits of non-negative numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def make_with_tasks(make: "Callable[[], gymnasium.Env[Any, Any]]", **settings: Any) -> TaskApart:
    """Makes an environment, as `TaskApart` with these settings."""
    return TaskApart(make(), **settings)
