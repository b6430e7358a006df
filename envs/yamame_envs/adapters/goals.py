"""Gymnasium's environments with goals: dictionaries of ``observation``, ``desired_goal`` and
``achieved_goal``.

Such an environment (Plappert et al., arXiv 1802.09464; Gymnasium-Robotics) becomes one with an
instruction of a single goal, in the format of `yamame.goals`, so that `yamame.replay.Relabel` can
give its trajectories other goals.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from yamame.checks import require
from yamame.keys import GOAL_COMPLETED, GOAL_PAD

from yamame_envs.adapters.gym import Gym
from yamame_envs.adapters.registered import make_registered
from yamame_envs.adapters.spaces import Array
from yamame_envs.adapters.workers import Workers

_GOALS = ("desired_goal", "achieved_goal")


class SingleGoal(gymnasium.Wrapper):
    """An environment with goals as one that pays 1, and ends with success, where its goal is
    reached.

    Its observation has the entries ``goal`` ``[1, d]``, ``achieved`` ``[1, d]`` and
    ``achieved_mask`` ``[1]``, and all others of the environment's. Goals are told in radii, from
    where the episode of seed 0 begins, so that networks see numbers around zero and a goal is
    reached at a distance of 1. What holds at the start does not count.

    Args:
        env: The environment.
        radius: Largest Euclidean distance at which a goal is reached; None: the environment's own
            ``distance_threshold``.
        owner: Whose it is, for messages.

    Raises:
        ValueError: The environment has no such goals, or no radius is known, or ``compute_reward``
            has another one.
    """

    def __init__(self, env: "gymnasium.Env[Any, Any]", *, radius: float | None, owner: str) -> None:
        super().__init__(env)
        space = env.observation_space
        entries = dict(space.spaces) if isinstance(space, spaces.Dict) else {}
        boxes = [entries.get(name) for name in _GOALS]
        shapes = [box.shape if isinstance(box, spaces.Box) else None for box in boxes]
        good = shapes[0] == shapes[1] and shapes[0] is not None and len(shapes[0]) == 1
        wanted = f"have the entries {' and '.join(_GOALS)}, Box spaces of one shape (d,); env=gym takes all others"
        require(owner, "observation_space", sorted(entries) or str(space), good, wanted)
        radius = getattr(env.unwrapped, "distance_threshold", None) if radius is None else radius
        known = radius is not None and 0.0 < float(radius) < np.inf
        require(
            owner,
            "radius",
            radius,
            known,
            "be given and positive, as env.radius=0.05: the environment tells none",
        )
        self.radius = float(radius)  # type: ignore[arg-type]
        self._check_reward(env.unwrapped, shapes[0], owner)
        self._origin = np.asarray(env.reset(seed=0)[0][_GOALS[1]], np.float64)
        goals = spaces.Box(-np.inf, np.inf, (1, *shapes[0]), np.float32)  # type: ignore[misc]
        others = {name: part for name, part in entries.items() if name not in _GOALS}
        self.observation_space = spaces.Dict(
            {**others, "goal": goals, "achieved": goals, "achieved_mask": spaces.MultiBinary(1)}
        )

    def _check_reward(self, env: Any, shape: Any, owner: str) -> None:
        """Refuses a radius that is not that of the environment's own reward."""
        if not callable(getattr(env, "compute_reward", None)):
            return
        goal, direction = np.zeros(shape), np.full(shape, 1.0 / np.sqrt(shape[0]))
        places = [goal + share * self.radius * direction for share in (0.0, 0.9, 1.1, 2.0)]
        paid = [float(np.asarray(env.compute_reward(place, goal, {}))) for place in places]
        good = paid[0] == paid[1] > paid[2] == paid[3]
        condition = (
            "be that within which compute_reward pays its best; set env.radius, or a sparse reward"
        )
        got = f"{self.radius:g}, where rewards at 0, 0.9, 1.1 and 2 times it are {paid}"
        require(owner, "radius", got, good, condition)

    def reset(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begins an episode."""
        observation, info = self.env.reset(**options)
        return self._shown(observation, reached=False), info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Pays 1 and ends where the goal is reached."""
        observation, _, terminated, truncated, info = self.env.step(action)
        goal, achieved = (self._goal(observation[name]).astype(np.float64) for name in _GOALS)
        reached = bool(np.square(achieved - goal).sum() <= 1.0)
        info = {**info, "success": reached}
        seen = self._shown(observation, reached=reached)
        return seen, float(reached), bool(terminated) or reached, bool(truncated), info

    def _shown(self, observation: Mapping[str, Any], *, reached: bool) -> dict[str, Any]:
        others = {name: value for name, value in observation.items() if name not in _GOALS}
        goal, achieved = (self._goal(observation[name])[None] for name in _GOALS)
        goal = np.full_like(goal, GOAL_COMPLETED) if reached else goal
        return {**others, "goal": goal, "achieved": achieved, "achieved_mask": np.ones(1, np.int8)}

    def _goal(self, value: Any) -> Array:
        """A goal ``[d]`` as it is told; one that looks like an unused slot is moved by the least
        that can be told.
        """
        goal = ((np.asarray(value, np.float64) - self._origin) / self.radius).astype(np.float32)
        return np.nextafter(goal, np.float32(0)) if bool((goal == GOAL_PAD).all()) else goal


def make_with_goal(
    id: str, settings: Mapping[str, Any], *, limited: bool, radius: float | None, owner: str
) -> SingleGoal:
    """Makes an environment that is registered with Gymnasium, as `SingleGoal`."""
    return SingleGoal(make_registered(id, settings, limited=limited), radius=radius, owner=owner)


class GymGoals(Gym):
    """Environments of one Gymnasium id whose observations are dictionaries with goals, see
    `SingleGoal`.

    Args:
        id, settings, time_limit, num_envs, seed, device, workers: As for `Gym`.
        radius: Largest Euclidean distance at which a goal is reached; None: the environment's own
            ``distance_threshold``.

    Attributes:
        goal_radius: The radius in the unit of the goals that are told, 1; hindsight relabelling
            must know it.

    Raises:
        ValueError: As `Gym` and `SingleGoal`.
    """

    _generic = False
    goal_radius = 1.0

    def __init__(
        self,
        *,
        id: str = "FetchReach-v4",
        settings: Mapping[str, Any] = MappingProxyType({}),
        time_limit: int | Literal["registered"] | None = "registered",
        radius: float | None = None,
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008 (immutable)
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
        )

    @property
    def label(self) -> str:
        """What errors call this environment."""
        return f"GymGoals({self._id!r})"

    def _maker(self, *, limited: bool) -> "partial[Any]":
        options: dict[str, Any] = {"limited": limited, "radius": self._radius, "owner": self.label}
        return partial(make_with_goal, self._id, self._settings, **options)
