"""Gymnasium environments with goals.

Their observations are dictionaries of ``observation``, ``desired_goal`` and ``achieved_goal``
(Plappert et al., arXiv 1802.09464; Gymnasium-Robotics). They become environments with an
instruction of a single goal in the format of `yamame.goals`, so that `yamame.replay.Relabel` can
relabel their trajectories.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from yamame.checks import ArgumentError, PositiveInt, check_bounds, require
from yamame.keys import GOAL_COMPLETED, GOAL_PAD
from yamame.spaces.arrays import Outside
from yamame.system.messages import described

from yamame_envs.adapters.gym import Gym
from yamame_envs.adapters.registered import make_registered
from yamame_envs.adapters.spaces import Array
from yamame_envs.adapters.values import read_flag, read_info
from yamame_envs.adapters.workers import Workers

_GOALS = ("desired_goal", "achieved_goal")


class SingleGoal(gymnasium.Wrapper):
    """Wrapper that pays 1, and ends the episode with success, when the goal is reached.

    The observation has the entries ``goal`` ``[1, d]``, ``achieved`` ``[1, d]`` and
    ``achieved_mask`` ``[1]``, and all other entries of the environment. Goals are in units of the
    radius, relative to the start of the episode of seed 0, so that networks see numbers around zero
    and a goal is reached at a distance of 1. A goal that holds at the start does not count.

    Args:
        env: Environment with goals.
        radius: Largest Euclidean distance at which a goal is reached. None: the
            ``distance_threshold`` of the environment.
        owner: Name of the environment in messages.

    Raises:
        ArgumentError: The environment has no such goals, no radius is known, or ``compute_reward``
            has another one or needs more than the goals.
    """

    def __init__(self, env: "gymnasium.Env[Any, Any]", *, radius: float | None, owner: str) -> None:
        super().__init__(env)
        space = env.observation_space
        entries = dict(space.spaces) if isinstance(space, spaces.Dict) else {}
        shape = _goal_shape(entries)
        condition = f"have the entries {' and '.join(_GOALS)}, Box spaces of one shape (d,)"
        got = sorted(entries) or str(space)
        remedy = "env=gym takes all other environments"
        require(owner, "observation_space", got, shape is not None, condition, remedy=remedy)

        if radius is None:
            radius = getattr(env.unwrapped, "distance_threshold", None)
        is_known = radius is not None and 0.0 < float(radius) < np.inf
        condition = "be given and positive, as env.radius=0.05: the environment has none"
        require(owner, "radius", radius, is_known, condition)
        self.radius = float(radius)  # type: ignore[arg-type]
        self._check_reward(env.unwrapped, shape, owner)

        start, _ = env.reset(seed=0)
        self._origin = np.asarray(start["achieved_goal"], np.float64)
        goals = spaces.Box(-np.inf, np.inf, (1, *shape), np.float32)  # type: ignore[misc]
        shown = {name: part for name, part in entries.items() if name not in _GOALS}
        shown |= {"goal": goals, "achieved": goals, "achieved_mask": spaces.MultiBinary(1)}
        self.observation_space = spaces.Dict(shown)

    def _check_reward(self, env: Any, shape: Any, owner: str) -> None:
        """Raise if the reward of the environment has another radius."""
        if not callable(getattr(env, "compute_reward", None)):
            return
        goal = np.zeros(shape)
        direction = np.full(shape, 1.0 / np.sqrt(shape[0]))
        # A dense reward differs at 0 and 0.9. With another radius, the reward is not best at 0.9 or
        # not worst at 1.1.
        rewards = []
        for share in (0.0, 0.9, 1.1, 2.0):
            place = goal + share * self.radius * direction
            rewards.append(_reward_of_goals(env, place, goal, owner))
        inside, almost, outside, far = rewards
        is_same = inside == almost > outside == far
        condition = "be the distance within which compute_reward pays its best"
        remedy = "set env.radius, or a sparse reward"
        got = f"{self.radius:g}, where rewards at 0, 0.9, 1.1 and 2 times it are {rewards}"
        require(owner, "radius", got, is_same, condition, remedy=remedy)

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(**options)
        return self._shown(observation, reached=False), info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Step, and pay 1 and terminate where the goal is reached."""
        observation, _, terminated, truncated, info = self.env.step(action)
        # In the same precision as relabelling, which sees the float32 goals.
        goal = self._scaled(observation["desired_goal"]).astype(np.float64)
        achieved = self._scaled(observation["achieved_goal"]).astype(np.float64)
        reached = bool(np.square(achieved - goal).sum() <= 1.0)
        info = {**read_info(info), "success": reached}
        shown = self._shown(observation, reached=reached)
        is_over = read_flag(terminated, "terminated") or reached
        return shown, float(reached), is_over, read_flag(truncated, "truncated"), info

    def _shown(self, observation: Mapping[str, Any], *, reached: bool) -> dict[str, Any]:
        shown = {name: value for name, value in observation.items() if name not in _GOALS}
        goal = self._scaled(observation["desired_goal"])[None]
        shown["goal"] = np.full_like(goal, GOAL_COMPLETED) if reached else goal
        shown["achieved"] = self._scaled(observation["achieved_goal"])[None]
        shown["achieved_mask"] = np.ones(1, np.int8)
        return shown

    def _scaled(self, value: Any) -> Array:
        """Return a goal ``[d]`` in radii, as float32."""
        # In float64, because the difference of near numbers would lose digits in float32.
        offset = np.asarray(value, np.float64) - self._origin
        goal = (offset / self.radius).astype(np.float32)
        if bool((goal == GOAL_PAD).all()):
            # It would look like an unused slot, so it is moved by the least possible distance.
            return np.nextafter(goal, np.float32(0))
        return goal


def _reward_of_goals(env: Any, achieved: Array, desired: Array, owner: str) -> float:
    """Return the reward that an environment computes from two goals and an empty info.

    Raises:
        ArgumentError: It cannot compute it from the goals alone.
    """
    try:
        reward = np.asarray(env.compute_reward(achieved, desired, {}), np.float64)
        return float(reward.reshape(()))
    # Code of the user may raise anything.
    except Exception as error:
        raise ArgumentError(
            owner,
            "compute_reward",
            described(error),
            "return one number for two goals and an empty info: the reward of another goal must "
            "follow from the goals alone",
            remedy="leave out terms that read info, or train without relabelling: env=gym",
        ) from error


def _goal_shape(entries: Mapping[str, spaces.Space[Any]]) -> tuple[int] | None:
    """Return the shape (d,) that both goals have; None if there is no such shape."""
    shapes = set()
    for name in _GOALS:
        space = entries.get(name)
        shapes.add(space.shape if isinstance(space, spaces.Box) else None)
    shape = shapes.pop()
    if shapes or shape is None or len(shape) != 1:
        return None
    return shape


def make_with_goal(
    id: str,
    settings: Mapping[str, Any],
    *,
    limited: bool,
    radius: float | None,
    owner: str,
) -> SingleGoal:
    """Make an environment that is registered with Gymnasium, as `SingleGoal`."""
    env = make_registered(id, settings, limited=limited)
    return SingleGoal(env, radius=radius, owner=owner)


class GymGoals(Gym):
    """Environments of one Gymnasium id whose observations are dictionaries with goals.

    See `SingleGoal`.

    Args:
        id, settings, time_limit, num_envs, seed, device, workers, bounds: As for `Gym`.
        radius: Largest Euclidean distance at which a goal is reached. None: the
            ``distance_threshold`` of the environment.

    Attributes:
        goal_radius: Radius in the unit of the observed goals, 1. Hindsight relabelling uses it.

    Raises:
        ArgumentError: As `Gym` and `SingleGoal`.
    """

    _generic = False
    goal_radius = 1.0

    @check_bounds
    def __init__(
        self,
        *,
        id: str = "gymnasium_robotics:FetchReach-v4",
        settings: Mapping[str, Any] = MappingProxyType({}),
        time_limit: int | Literal["registered"] | None = "registered",
        radius: float | None = None,
        num_envs: PositiveInt = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008 (immutable)
        bounds: Outside = "warn",
    ) -> None:
        self._radius = radius
        super().__init__(
            id=id,
            settings=settings,
            time_limit=time_limit,
            success="success",
            num_envs=num_envs,
            seed=seed,
            device=device,
            workers=workers,
            bounds=bounds,
        )

    @property
    def label(self) -> str:
        """Name of this environment in messages."""
        return f"GymGoals({self._id!r})"

    def _maker(self, *, limited: bool) -> "partial[Any]":
        return partial(
            make_with_goal,
            self._id,
            self._settings,
            limited=limited,
            radius=self._radius,
            owner=self.label,
        )
