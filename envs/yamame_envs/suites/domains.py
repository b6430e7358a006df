"""Several Gymnasium environments behind one observation and one action: every episode plays one of
them.

Observations are flattened (one-hot where they are discrete) and filled up with zeros. What is
continuous is acted on in [-1, 1], further numbers are ignored; discrete actions are counted
through, further ones do something by chance.
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

from yamame_envs.suites.global_random import GlobalRandom

_SEEDED = ("gymnasium.", "yamame_envs.")
"""Modules whose environments never draw from the generators of the whole process."""


@dataclass(frozen=True, slots=True)
class CommonSpaces:
    """What domains have in common.

    Attributes:
        ids: Their identifiers.
        observation_size: Size of the largest flattened observation.
        action_sizes: Actions of each domain, or the length of its action vector.
        discrete: Whether actions are discrete.
        limit: The longest of their step limits, None where one is unknown.
    """

    ids: tuple[str, ...]
    observation_size: int
    action_sizes: tuple[int, ...]
    discrete: bool
    limit: int | None


def _decoder(space: spaces.Space[Any], name: str) -> tuple[bool, int, Callable[[Any], Any]]:
    """Whether a space is discrete, its size, and what makes one of its values of an index or a
    vector.
    """
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return True, int(space.n), lambda index: index + start
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
        "MultiDomain: action spaces must be Discrete, MultiDiscrete, MultiBinary or a Box with finite bounds, "
        f"got {space} of {name!r}"
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
            with suppress(TypeError):  # some name the mode but take no such argument
                env = gymnasium.make(name, disable_env_checker=True, render_mode="rgb_array")
    except (gymnasium.error.Error, ImportError) as error:
        message = (
            f"MultiDomain: ids must name environments that can be made, got {name!r} ({error})"
        )
        raise ValueError(message) from error
    return env


class Domain:
    """One environment, flattened.

    Args:
        name: Its identifier, with the module that registers it before a colon where that must be
            imported.

    Raises:
        ValueError: If it cannot be made or flattened.
    """

    def __init__(self, name: str) -> None:
        self.env = _make(name)
        try:
            self.observation_size = int(spaces.flatdim(self.env.observation_space))
        except (NotImplementedError, ValueError) as error:
            message = f"MultiDomain: observations must have a fixed size, got {self.env.observation_space}"
            raise ValueError(f"{message} of {name!r}") from error
        self.discrete, self.action_size, self._decode = _decoder(self.env.action_space, name)
        inner = self.env.unwrapped
        seeded = type(inner).__module__.startswith(_SEEDED)
        self._random: GlobalRandom | None = None if seeded else GlobalRandom()
        registered = None if self.env.spec is None else self.env.spec.max_episode_steps
        self.limit: int | None = registered or getattr(inner, "max_episode_length", None)

    def reset(self, seed: int) -> npt.NDArray[np.float32]:
        """Begins the episode of a seed."""
        if self._random is not None:
            self._random.seed(seed)
            self.env.action_space.seed(seed)
            self.env.observation_space.seed(seed)
        with self._random or nullcontext():
            seen, _ = self.env.reset(seed=seed)
        return self._flat(seen)

    def step(self, action: Any) -> tuple[npt.NDArray[np.float32], float, bool, dict[str, Any]]:
        """Plays one step; returns the observation, the reward, whether the episode is over, and the
        info.
        """
        with self._random or nullcontext():
            seen, reward, terminated, truncated, info = self.env.step(self._decode(action))
        return self._flat(seen), float(reward), bool(terminated or truncated), info

    def _flat(self, seen: Any) -> npt.NDArray[np.float32]:
        return np.asarray(spaces.flatten(self.env.observation_space, seen), dtype=np.float32)


def survey(ids: tuple[str, ...]) -> CommonSpaces:
    """Finds out what domains have in common.

    Raises:
        ValueError: If they cannot be mixed.
    """
    domains = [Domain(name) for name in ids]
    for domain in domains:
        domain.env.close()
    kinds = {domain.discrete: name for domain, name in zip(domains, ids, strict=True)}
    if len(kinds) > 1:
        raise ValueError(
            "MultiDomain: ids must have either discrete or continuous actions, got discrete ones in "
            f"{kinds[True]!r} and continuous ones in {kinds[False]!r}"
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
    """One env: every episode plays a domain drawn from the seed.

    Args:
        common: What the domains have in common.
        show_domain: Whether there is an entry ``domain``.
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
        """Begins an episode."""
        super().reset(seed=seed)
        self._index = int(self.np_random.integers(len(self._common.ids)))
        if self._index not in self._built:
            self._built[self._index] = Domain(self._common.ids[self._index])
        self._domain = self._built[self._index]
        seen = self._domain.reset(int(self.np_random.integers(2**31)))
        return self._observation(seen, valid=True), {"domain": self._common.ids[self._index]}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Plays one step; a domain's own time limit ends the episode like its other ends."""
        size, valid = self._domain.action_size, True
        if self._common.discrete:
            valid = int(action) < size
            chosen: Any = int(action) if valid else int(self.np_random.integers(size))
        else:
            chosen = np.asarray(action)[:size]
        seen, reward, over, info = self._domain.step(chosen)
        return self._observation(seen, valid=valid), reward, over, False, info

    def render(self) -> Any:
        """The picture of the domain that is played."""
        return self._domain.env.render()

    def close(self) -> None:
        """Closes all domains."""
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
