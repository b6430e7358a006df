"""Meta-World's meta-learning benchmarks: a robot arm, and a goal that has to be found out.

Source: Yu et al., "Meta-World: A Benchmark and Evaluation for Multi-Task and Meta Reinforcement
Learning", arXiv 1910.10897; ML25 and the two versions of the reward are those of "Meta-World+"
(NeurIPS 2025). Tasks and their 50 goals per split are those of the official ``ML1(name, seed)``,
``ML10(seed)``, ``ML25(seed)`` and ``ML45(seed)``, number for number.

An arm is a compiled MuJoCo model of some 20 MB, and compiling takes longer than resetting. So the
envs of a process share what they have: arms are built when a task is first played, and idle ones
are kept, though not many of one task. The official way of drawing goals plays the arm's start
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
"""Steps of an attempt; the arm refuses more."""

_FAMILIES = ("ML10", "ML25", "ML45")

_FEW = 24

_idle: dict[str, list[Any]] = {}
"""Arms of this process that no env is using, by task name: any number up to `_FEW`, else one per
task.
"""


def _library() -> Any:
    return import_extra("metaworld", extra="metaworld", owner="MetaWorld")


def task_names(benchmark: str, split: Split) -> tuple[str, ...]:
    """The names of a benchmark's tasks.

    Raises:
        ValueError: If there is no such benchmark or split.
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
            f"MetaWorld: benchmark must be one of {', '.join(_FAMILIES)} or ML1-<task>, such as {known}, "
            f"got {benchmark!r}"
        )
    return (singles[benchmark],)


def _take(name: str) -> Any:
    """An arm with this task: an idle one if there is one."""
    if _idle.get(name):
        return _idle[name].pop()
    return _library().env_dict.ALL_V3_ENVIRONMENTS[name](render_mode="rgb_array")


def _give_back(name: str, arm: Any) -> None:
    if _idle.get(name) and sum(map(len, _idle.values())) >= _FEW:
        arm.close()
    else:
        _idle.setdefault(name, []).append(arm)


def _draw(names: tuple[str, ...], seed: int) -> Iterator[tuple[str, Goals]]:
    """The goals of one task after the other, as the official benchmarks draw them.

    Those seed NumPy's global generator; a generator of the same kind, handed to the arms, gives the
    same numbers. Where the hand is has no influence on them, so it is not moved to its start
    position.
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
    """The goals of a benchmark's tasks, drawn when first asked for."""

    def __init__(self, names: tuple[str, ...], seed: int) -> None:
        self._drawn: dict[str, Goals] = {}
        self._rest = _draw(names, seed)

    def of(self, name: str) -> Goals:
        """The goals of one task: ``[NUM_GOALS, *]``."""
        while name not in self._drawn:
            drawn, goals = next(self._rest)
            self._drawn[drawn] = goals
        return self._drawn[name]


@cache
def _goal_lists(benchmark: str, split: Split, goal_seed: int) -> _GoalLists:
    other = (
        split == "test" and benchmark not in _FAMILIES
    )  # the same task: it must have other goals
    return _GoalLists(task_names(benchmark, split), goal_seed + int(other))


class MetaWorldTask(gymnasium.Env[Vector, Vector]):
    """A Meta-World arm whose task and goal are drawn at every reset; the goal is hidden.

    Args:
        benchmark: ``ML10``, ``ML25``, ``ML45``, or ``ML1-`` and a task such as ``ML1-reach-v3``.
        split: Tasks and goals to train with, or those to test with.
        goal_seed: Which goals there are.
        reward_function_version: Which rewards of Meta-World are paid, ``v1`` or ``v2``.

    Attributes:
        task_name: The task being played.
        goal: Its goal: the random numbers that Meta-World places objects and targets with.
        arm: Meta-World's own environment; None before the first reset.
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
        """Draws a task uniformly, then one of its goals uniformly."""
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
        """Plays one step."""
        seen, reward, terminated, truncated, info = self.arm.step(action)
        info_out = {"success": bool(info["success"])}
        return seen.astype(np.float32), float(reward), bool(terminated), bool(truncated), info_out

    def _hold(self, name: str) -> None:
        if name == self.task_name:
            return
        if self.arm is not None:
            _give_back(self.task_name, self.arm)
        self.arm, self.task_name = _take(name), name
        self.arm.reward_function_version = (
            self._reward_version
        )  # envs of another version had it before

    def render(self) -> npt.NDArray[np.uint8]:
        """The picture: ``[480, 480, 3]``."""
        require_display()
        picture: npt.NDArray[np.uint8] = self.arm.render()
        return picture

    def close(self) -> None:
        """Ends the arm, which may be broken, so that no other env gets it."""
        if self.arm is not None:
            self.arm.close()
        self.arm, self.task_name = None, ""
