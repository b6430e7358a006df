"""Gymnasium environment that plays one of several others in every episode.

Observations are flattened (discrete ones to one-hots) and padded with zeros. Continuous actions are
in [-1, 1], and superfluous numbers are ignored. Discrete actions are enumerated, and superfluous
ones are replaced by a random action.
"""

import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from yamame_envs.adapters.values import read_flag, read_info, read_reward
from yamame_envs.suites.global_random import GlobalRandom

_SEEDED = ("gymnasium.", "yamame_envs.")
"""Modules whose environments never use the global random generators."""


@dataclass(frozen=True, slots=True)
class CommonSpaces:
    """Common observation and action space of all domains.

    Attributes:
        ids: Ids of the domains.
        observation_size: Size of the largest flattened observation.
        action_sizes: Number of actions of each domain, or the length of its action vector.
        discrete: True if actions are discrete.
        limit: Longest step limit; None if one is unknown.
    """

    ids: tuple[str, ...]
    observation_size: int
    action_sizes: tuple[int, ...]
    discrete: bool
    limit: int | None


def _decoder(space: spaces.Space[Any], name: str) -> tuple[bool, int, Callable[[Any], Any]]:
    """Return how to decode actions of a space.

    Returns:
        True if the space is discrete, its size, and the function that decodes an index or a vector.
    """
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        # As the space itself samples them.
        number = np.dtype(space.dtype).type
        return True, int(space.n), lambda index: number(index + start)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        counts = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
        starts = space.start if isinstance(space, spaces.MultiDiscrete) else 0
        sizes = tuple(counts.flatten().tolist())

        def nth(index: int) -> Any:
            value = np.array(np.unravel_index(index, sizes)).reshape(counts.shape) + starts
            return value.astype(space.dtype)

        return True, prod(sizes), nth
    if isinstance(space, spaces.Box) and space.is_bounded("both"):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)

        def scaled(vector: npt.NDArray[np.float32]) -> Any:
            value = low + (np.clip(vector, -1.0, 1.0).reshape(low.shape) + 1.0) / 2.0 * (high - low)
            return value.astype(space.dtype)

        return False, int(prod(space.shape)), scaled
    raise ValueError(
        "MultiDomain: action spaces must be Discrete, MultiDiscrete, MultiBinary or a Box with "
        f"finite bounds, got {space} of {name!r}"
    )


def _make(name: str) -> gymnasium.Env[Any, Any]:
    module, _, _ = name.rpartition(":")
    try:
        if module:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import_module(module)
        env: gymnasium.Env[Any, Any] = gymnasium.make(name, disable_env_checker=True)
        if "rgb_array" in env.metadata.get("render_modes", ()):
            # Some list the mode but do not accept the argument.
            with suppress(TypeError):
                env = gymnasium.make(name, disable_env_checker=True, render_mode="rgb_array")
    except (gymnasium.error.Error, ImportError) as error:
        message = (
            f"MultiDomain: ids must name environments that can be made, got {name!r} ({error})"
        )
        raise ValueError(message) from error
    return env


class Domain:
    """Environment with flattened observations and actions.

    Args:
        name: Registered id, or ``"module:id"`` to import a module first.

    Raises:
        ValueError: It cannot be made or flattened.
    """

    def __init__(self, name: str) -> None:
        self.env = _make(name)
        try:
            self.observation_size = int(spaces.flatdim(self.env.observation_space))
        except (NotImplementedError, ValueError) as error:
            raise ValueError(
                "MultiDomain: observations must have a fixed size, "
                f"got {self.env.observation_space} of {name!r}"
            ) from error
        self.discrete, self.action_size, self._decode = _decoder(self.env.action_space, name)
        inner = self.env.unwrapped
        seeded = type(inner).__module__.startswith(_SEEDED)
        self._random: GlobalRandom | None = None if seeded else GlobalRandom()
        registered = None if self.env.spec is None else self.env.spec.max_episode_steps
        self.limit: int | None = registered or getattr(inner, "max_episode_length", None)

    def reset(self, seed: int) -> npt.NDArray[np.float32]:
        """Begin the episode of a seed."""
        if self._random is not None:
            self._random.seed(seed)
            self.env.action_space.seed(seed)
            self.env.observation_space.seed(seed)
        with self._random or nullcontext():
            seen, _ = self.env.reset(seed=seed)
        return self._flat(seen)

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, dict[str, Any]]:
        """Step the environment; return the observation, the reward, the end flag and the info."""
        with self._random or nullcontext():
            seen, reward, terminated, truncated, info = self.env.step(self._decode(action))
        is_over = read_flag(terminated, "terminated") or read_flag(truncated, "truncated")
        return self._flat(seen), read_reward(reward), is_over, dict(read_info(info))

    def _flat(self, seen: Any) -> npt.NDArray[np.float32]:
        return np.asarray(spaces.flatten(self.env.observation_space, seen), dtype=np.float32)


def survey(ids: tuple[str, ...]) -> CommonSpaces:
    """Read the common spaces of domains.

    Raises:
        ValueError: They cannot be mixed.
    """
    domains = [Domain(name) for name in ids]
    for domain in domains:
        domain.env.close()
    kinds = {domain.discrete: name for domain, name in zip(domains, ids, strict=True)}
    if len(kinds) > 1:
        raise ValueError(
            "MultiDomain: ids must have either discrete or continuous actions, "
            f"got discrete ones in {kinds[True]!r} and continuous ones in {kinds[False]!r}"
        )
    limits = [domain.limit for domain in domains]
    return CommonSpaces(
        ids=ids,
        observation_size=max(domain.observation_size for domain in domains),
        action_sizes=tuple(domain.action_size for domain in domains),
        discrete=domains[0].discrete,
        limit=None if None in limits else max(limit for limit in limits if limit is not None),
    )


class Domains(gymnasium.Env[dict[str, Any], Any]):
    """Environment whose every episode plays a domain drawn from the seed.

    Args:
        common: Common spaces of the domains.
        show_domain: Add the entry ``domain``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, *, common: CommonSpaces, show_domain: bool) -> None:
        self._common = common
        self._show_domain = show_domain
        self._built: dict[int, Domain] = {}
        most = max(common.action_sizes)
        self._may_err = common.discrete and min(common.action_sizes) < most
        self.action_space = (
            spaces.Discrete(most)
            if common.discrete
            else spaces.Box(-1.0, 1.0, (most,), dtype=np.float32)
        )
        vector = spaces.Box(-np.inf, np.inf, (common.observation_size,), dtype=np.float32)
        entries: dict[str, spaces.Space[Any]] = {"observation": vector}
        if self._may_err:
            entries["valid_action"] = spaces.MultiBinary(1)
        if show_domain:
            entries["domain"] = spaces.Discrete(len(common.ids))
        self.observation_space = spaces.Dict(entries)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._index = int(self.np_random.integers(len(self._common.ids)))
        if self._index not in self._built:
            self._built[self._index] = Domain(self._common.ids[self._index])
        self._domain = self._built[self._index]
        seen = self._domain.reset(int(self.np_random.integers(2**31)))
        return self._observation(seen, valid=True), {"domain": self._common.ids[self._index]}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Step the domain; its own time limit terminates the episode like its other ends."""
        size, valid = self._domain.action_size, True
        if self._common.discrete:
            valid = int(action) < size
            chosen: Any = int(action) if valid else int(self.np_random.integers(size))
        else:
            chosen = np.asarray(action)[:size]
        seen, reward, over, info = self._domain.step(chosen)
        return self._observation(seen, valid=valid), reward, over, False, info

    def render(self) -> Any:
        """Return the picture of the current domain."""
        return self._domain.env.render()

    def close(self) -> None:
        """Close all domains."""
        for domain in self._built.values():
            domain.env.close()

    def _observation(self, seen: npt.NDArray[np.float32], *, valid: bool) -> dict[str, Any]:
        vector = np.zeros(self._common.observation_size, dtype=np.float32)
        vector[: len(seen)] = seen
        observation: dict[str, Any] = {"observation": vector}
        if self._may_err:
            observation["valid_action"] = np.array([valid], dtype=np.int8)
        if self._show_domain:
            observation["domain"] = self._index
        return observation
