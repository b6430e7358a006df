"""POPGym: forty-two small tasks that need memory.

Source: Morad et al., "POPGym: Benchmarking Partially Observable Reinforcement Learning", arXiv
2303.01859. Every observation is one vector; returns lie in [-1, 1].

In the cart-poles with velocities only, POPGym shows the positions at the first timestep. This is
not changed.
"""

from difflib import get_close_matches
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from yamame_envs.adapters.extras import import_extra

Vector = npt.NDArray[np.float32]

_PREFIX, _VERSION = "popgym-", "-v0"


def _short(name: str) -> str:
    return name.removeprefix(_PREFIX).removesuffix(_VERSION)


def names() -> list[str]:
    """Return the short names of all environments, for example RepeatPreviousEasy."""
    return [_short(entry["id"]) for entry in _registered().values()]


def _registered() -> dict[Any, dict[str, str]]:
    registered: dict[Any, dict[str, str]] = import_extra(
        "popgym", extra="popgym", owner="POPGym"
    ).envs.ALL
    return registered


def _named(name: str) -> Any:
    """Return the class of an environment, named with or without ``popgym-`` and ``-v0``."""
    kinds = {_short(entry["id"]): kind for kind, entry in _registered().items()}
    if _short(name) not in kinds:
        close = get_close_matches(_short(name), kinds, n=4, cutoff=0.5) or list(kinds)
        known = f"one of POPGym's {len(kinds)} environments, such as {', '.join(close)}"
        raise ValueError(f"POPGym: id must be {known}, got {name!r}")
    return kinds[_short(name)]


class POPGymTask(gymnasium.Env[Vector, Any]):
    """Environment of POPGym with a flattened observation.

    An observation is a float32 vector: categories are one-hot, several of them concatenated.

    Args:
        id: Name, with or without ``popgym-`` and ``-v0``.
        multi_discrete: Keep actions of several choices. Otherwise they become one choice among all
            combinations, the last choice changing fastest.

    Attributes:
        longest: Steps of the longest episode.

    Raises:
        ValueError: There is no such environment.
        ImportError: If POPGym is not installed.
    """

    def __init__(self, id: str, *, multi_discrete: bool = False) -> None:
        self._env = _named(id)()
        size = spaces.flatdim(self._env.observation_space)
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), dtype=np.float32)
        self.action_space = self._env.action_space
        self._choices: tuple[int, ...] | None = None
        if isinstance(self.action_space, spaces.MultiDiscrete) and not multi_discrete:
            self._choices = tuple(int(n) for n in self.action_space.nvec)
            self.action_space = spaces.Discrete(int(np.prod(self._choices)))
        self.longest = _longest(self._env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Begin an episode; the seed decides all of it."""
        seen, _ = self._env.reset(seed=seed, options=options)
        return self._flat(seen), {}

    def step(self, action: Any) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        if self._choices is not None:
            action = np.array(np.unravel_index(int(action), self._choices))
        seen, reward, terminated, truncated, _ = self._env.step(action)
        return self._flat(seen), float(reward), bool(terminated), bool(truncated), {}

    def _flat(self, seen: Any) -> Vector:
        return np.asarray(spaces.flatten(self._env.observation_space, seen), dtype=np.float32)


def _longest(env: Any) -> int:
    """Return the steps of the longest episode."""
    for attribute in ("max_episode_length", "episode_length"):
        if hasattr(env, attribute):
            return int(getattr(env, attribute))
    # HigherLower has no such attribute, but deals a card of its deck per step.
    return int(env.deck_size) - 1
