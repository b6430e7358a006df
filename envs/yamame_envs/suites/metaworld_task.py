"""Meta-World's meta-learning benchmarks: a robot arm with a hidden goal.

Source: Yu et al., "Meta-World: A Benchmark and Evaluation for Multi-Task and Meta Reinforcement
Learning", arXiv 1910.10897; ML25 and the two versions of the reward are those of "Meta-World+"
(NeurIPS 2025). Tasks and their 50 goals per split are those of the official ``ML1(name, seed)``,
``ML10(seed)``, ``ML25(seed)`` and ``ML45(seed)``, number for number.

An arm is a compiled MuJoCo model of some 20 MB, and compiling takes longer than resetting. So the
envs of a process share their arms: they are built when a task is first played, and idle ones are
kept, though not many of one task. The official way of drawing goals plays the arm's start
position a hundred times per task; here only the random numbers are drawn.
"""

import pickle
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache, partial
from inspect import signature
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from yamame_envs.adapters.extras import MissingExtra, import_extra
from yamame_envs.suites.display import require_display

Vector = npt.NDArray[np.float32]
Goals = npt.NDArray[np.float64]
Split = Literal["train", "test"]
RewardVersion = Literal["v1", "v2"]

NUM_GOALS = 50
"""Goals per task and split."""

ATTEMPT = 500
"""Steps of an attempt; the arm raises after more."""

_FAMILIES = ("ML10", "ML25", "ML45")

_FEW = 24

_idle: dict[str, list[Any]] = {}
"""Idle arms of this process by task name: any number up to `_FEW`, else one per task."""


def _library() -> Any:
    return import_extra("metaworld", extra="metaworld", owner="MetaWorld")


def task_names(benchmark: str, split: Split) -> tuple[str, ...]:
    """Return the names of the tasks of a benchmark.

    Raises:
        ValueError: There is no such benchmark or split.
        MissingExtra: If Meta-World is not installed, or lacks ML25 or versions of the reward.
    """
    if split not in ("train", "test"):
        raise ValueError(f"MetaWorld: split must be train or test, got {split!r}")
    tables = _library().env_dict
    takes = signature(tables.ALL_V3_ENVIRONMENTS["reach-v3"]).parameters
    if not hasattr(tables, "ML25_V3") or "reward_function_version" not in takes:
        remedy = "run: pip install 'yamame[metaworld]'"
        raise MissingExtra(
            f"MetaWorld: metaworld must have ML25 and versions of the reward, {remedy}"
        )
    if benchmark in _FAMILIES:
        return tuple(getattr(tables, f"{benchmark}_V3")[split])
    singles = {f"ML1-{name}": name for name in tables.ALL_V3_ENVIRONMENTS}
    if benchmark not in singles:
        close = get_close_matches(benchmark, [*singles, *_FAMILIES], n=3, cutoff=0.5)
        known = ", ".join(close) or "ML1-reach-v3"
        raise ValueError(
            f"MetaWorld: benchmark must be one of {', '.join(_FAMILIES)} or ML1-<task>, "
            f"such as {known}, got {benchmark!r}"
        )
    return (singles[benchmark],)


def _take(name: str) -> Any:
    """Return an arm with this task, an idle one if possible."""
    if _idle.get(name):
        return _idle[name].pop()
    return _library().env_dict.ALL_V3_ENVIRONMENTS[name](render_mode="rgb_array")


def _give_back(name: str, arm: Any) -> None:
    if _idle.get(name) and sum(map(len, _idle.values())) >= _FEW:
        arm.close()
    else:
        _idle.setdefault(name, []).append(arm)


def _draw(names: tuple[str, ...], seed: int) -> Iterator[tuple[str, Goals]]:
    """Draw the goals of one task after the other, as the official benchmarks do.

    Those seed NumPy's global generator. A generator of the same kind, passed to the arms, gives the
    same numbers. The position of the hand does not influence them, so the hand is not moved to its
    start.
    """
    stream = np.random.RandomState(seed)
    for name in names:
        arm = _take(name)
        arm.np_random, arm.seeded_rand_vec, arm._freeze_rand_vec = stream, True, False
        arm._set_task_called = True
        arm._reset_hand = partial(type(arm)._reset_hand, arm, 1)
        goals = []
        for _ in range(NUM_GOALS):
            arm.reset()
            goals.append(arm._last_rand_vec)
        del arm._reset_hand
        arm.seeded_rand_vec = False
        _give_back(name, arm)
        yield name, np.array(goals)


class _GoalLists:
    """Goals of the tasks of a benchmark, drawn at the first access."""

    def __init__(self, names: tuple[str, ...], seed: int) -> None:
        self._drawn: dict[str, Goals] = {}
        self._rest = _draw(names, seed)

    def of(self, name: str) -> Goals:
        """Return the goals of one task: ``[NUM_GOALS, *]``."""
        while name not in self._drawn:
            drawn, goals = next(self._rest)
            self._drawn[drawn] = goals
        return self._drawn[name]


@cache
def _goal_lists(benchmark: str, split: Split, goal_seed: int) -> _GoalLists:
    # A single task is the same in both splits, so the goals must differ.
    is_other = split == "test" and benchmark not in _FAMILIES
    return _GoalLists(task_names(benchmark, split), goal_seed + int(is_other))


class MetaWorldTask(gymnasium.Env[Vector, Vector]):
    """Meta-World arm whose task and hidden goal are drawn at every reset.

    Args:
        benchmark: ``ML10``, ``ML25``, ``ML45``, or ``ML1-`` and a task such as ``ML1-reach-v3``.
        split: Tasks and goals to train with, or those to test with.
        goal_seed: Seed of the goals.
        reward_function_version: Version of the reward, ``v1`` or ``v2``.

    Attributes:
        task_name: Current task.
        goal: Random numbers by which Meta-World places objects and targets.
        arm: Environment of Meta-World; None before the first reset.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(
        self,
        benchmark: str,
        *,
        split: Split = "train",
        goal_seed: int = 0,
        reward_function_version: RewardVersion = "v2",
    ) -> None:
        self._names = task_names(benchmark, split)
        self._benchmark, self._split, self._goal_seed = benchmark, split, goal_seed
        self._reward_version = reward_function_version
        self.observation_space = spaces.Box(-np.inf, np.inf, (39,), dtype=np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (4,), dtype=np.float32)
        self.task_name = ""
        self.goal: Goals = np.zeros(0)
        self.arm: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Draw a task uniformly, then one of its goals uniformly."""
        super().reset(seed=seed)
        name = self._names[self.np_random.integers(len(self._names))]
        goals = _goal_lists(self._benchmark, self._split, self._goal_seed).of(name)
        self._hold(name)
        self.goal = goals[self.np_random.integers(NUM_GOALS)]
        what = {"env_cls": type(self.arm), "rand_vec": self.goal, "partially_observable": True}
        self.arm.set_task(_library().types.Task(env_name=name, data=pickle.dumps(what)))
        seen, _ = self.arm.reset()
        return seen.astype(np.float32), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        seen, reward, terminated, truncated, info = self.arm.step(action)
        info_out = {"success": bool(info["success"])}
        return seen.astype(np.float32), float(reward), bool(terminated), bool(truncated), info_out

    def _hold(self, name: str) -> None:
        if name == self.task_name:
            return
        if self.arm is not None:
            _give_back(self.task_name, self.arm)
        self.arm, self.task_name = _take(name), name
        # An env with another version may have used the arm before.
        self.arm.reward_function_version = self._reward_version

    def render(self) -> npt.NDArray[np.uint8]:
        """Return the picture: ``[480, 480, 3]``."""
        require_display()
        picture: npt.NDArray[np.uint8] = self.arm.render()
        return picture

    def close(self) -> None:
        """Close the arm. It may be broken, so no other env gets it."""
        if self.arm is not None:
            self.arm.close()
        self.arm, self.task_name = None, ""
