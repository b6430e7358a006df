"""Check that the seed of a reset decides everything about an episode of an environment.

Episodes are replayed to resume a run, and equal seeds of a run give equal runs. Both need an
environment whose episodes depend on the seed and the actions alone. Whether they do shows only if
an episode is played twice: with another one in between, with other states of the global random
generators, and in a new instance.
"""

import contextlib
import copy
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from yamame.system.messages import is_in_run, print_once
from yamame.system.user_code import is_failure

from yamame_envs.adapters.in_process import ENV_ERRORS, Make

_NUM_STEPS = 12
_SEED, _OTHER_SEED = 11, 12
_MOST_SECONDS = 2.0
"""Time from the construction of an environment after which no further episode is begun."""

_checked: dict[Any, str | None] = {}
"""Report of each environment that was checked in this process; None if it has repeated itself."""

Step = tuple[Any, float, bool]
"""Observation, reward, and whether the episode ends."""


class RepeatCheck:
    """Check of one environment, made once per process and reported once per run.

    It prints one line if an episode comes out differently when it is repeated. An environment that
    fails or is slow is not judged. The global random generators keep their state.

    Args:
        make: Makes the environment.
        owner: Name of the environment in messages.
        enabled: Whether to check at all.
    """

    def __init__(self, make: Make, *, owner: str, enabled: bool = True) -> None:
        self._make = make
        self._owner = owner
        self._enabled = enabled
        self._started = time.monotonic()
        self._key: Any = None
        self._actions: list[Any] = []
        self._episode: list[Step] | None = None

    def _has_time(self) -> bool:
        return time.monotonic() - self._started < _MOST_SECONDS

    def compare_episodes(self, env: Any) -> None:
        """Play an episode twice in an environment, with another one in between."""
        if not self._enabled:
            return
        self._key = (self._owner, repr(self._make), type(env.unwrapped))
        if self._key in _checked:
            report = _checked[self._key]
            if report is not None and is_in_run():
                print_once(report)
            return
        _checked[self._key] = None
        if not self._has_time():
            return
        with _errors_ignored(), _generators_kept():
            env.action_space.seed(_SEED)
            self._actions = [env.action_space.sample() for _ in range(_NUM_STEPS)]
            first = self._play(env, _SEED)
            self._play(env, _OTHER_SEED)
            if not self._has_time():
                return
            again = self._play(env, _SEED, disturbs=True)
            difference = first_difference(first, again)
            if difference is not None:
                self._report(difference, self._cause(env))
                return
            # A draw from few values is often the same again, and may show much later.
            drawn = self._unseeded_generators(env)
            if drawn:
                self._report_drawn(drawn)
            else:
                self._episode = first

    def compare_instances(self) -> None:
        """Play the same episode in a new instance, after the former one was closed."""
        if self._episode is None or not self._has_time():
            return
        with _errors_ignored(), _generators_kept(), contextlib.closing(self._make()) as env:
            difference = first_difference(self._episode, self._play(env, _SEED))
            if difference is not None:
                self._report(difference, "it depends on the instance")

    def _play(self, env: Any, seed: int, *, disturbs: bool = False) -> list[Step]:
        """Play the first steps of an episode.

        Args:
            env: The environment.
            seed: Seed of the reset.
            disturbs: Whether the global random generators advance between steps, as they do when
                several environments take turns.
        """
        if disturbs:
            _draw()
        observation, _ = env.reset(seed=seed)
        # Copies, because environments may write into the same arrays again.
        steps: list[Step] = [(copy.deepcopy(observation), 0.0, False)]
        for action in self._actions:
            if disturbs:
                _draw()
            # A copy, because environments may clip an action in place.
            observation, reward, terminated, truncated, _ = env.step(copy.deepcopy(action))
            ends = bool(terminated) or bool(truncated)
            steps.append((copy.deepcopy(observation), float(reward), ends))
            if ends or not self._has_time():
                break
        return steps

    def _cause(self, env: Any) -> str:
        """Return why episodes differ, as far as more of them show it."""
        if not self._has_time():
            return "something besides the seed of reset decides it"
        episodes = []
        for seed in (_SEED, _OTHER_SEED, _SEED):
            _seed_generators(seed)
            episodes.append(self._play(env, _SEED))
        _seed_generators(_SEED)
        episodes.append(self._play(env, _SEED, disturbs=True))
        one, other, again, disturbed = episodes
        is_same = first_difference(one, again) is None
        follows = any(first_difference(one, played) is not None for played in (other, disturbed))
        if is_same and follows:
            return "it draws from a global random generator (random, numpy.random or torch)"
        return "reset leaves something of the episodes before, or does not seed a generator"

    def _unseeded_generators(self, env: Any) -> list[str]:
        """Return the global generators from which episodes draw without seeding them."""
        begins, ends = [], []
        for seed in (_SEED, _OTHER_SEED):
            if not self._has_time():
                return []
            _seed_generators(seed)
            begins.append(_states())
            self._play(env, _SEED)
            ends.append(_states())

        drawn = []
        for name in ends[0]:
            has_moved = all(
                not is_same_state(begin[name], end[name])
                for begin, end in zip(begins, ends, strict=True)
            )
            # A generator that `reset` seeds ends in the same state, wherever it began.
            if has_moved and not is_same_state(ends[0][name], ends[1][name]):
                drawn.append(name)
        return drawn

    def _report(self, difference: str, cause: str) -> None:
        self._print(f"{difference} when an episode is repeated, because {cause}")

    def _report_drawn(self, names: Sequence[str]) -> None:
        self._print(f"an episode draws from the global generator of {' and '.join(names)}")

    def _print(self, what: str) -> None:
        report = (
            f"{self._owner}: not reproducible from its seed: {what}; runs with equal seeds may "
            "differ, and a resumed run drops its unfinished episodes (draw from self.np_random, "
            "and set every field in reset)"
        )
        _checked[self._key] = report
        print_once(report)


def first_difference(first: Sequence[Step], second: Sequence[Step]) -> str | None:
    """Describe where two episodes differ; None if they are equal.

    Numbers are compared as float32, in which they are stored, and NaN equals NaN.
    """
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        place = "after reset" if index == 0 else f"after step {index}"
        if not is_equal(one[0], other[0]):
            return f"the observation {place} differs"
        if not is_equal(one[1], other[1]):
            return f"the reward {place} differs"
        if one[2] != other[2]:
            return f"the end {place} differs"
    return None


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two values of a space are equal.

    >>> is_equal({"a": np.array([np.nan])}, {"a": np.array([np.nan])})
    True
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(is_equal(left, right) for left, right in pairs)
    left, right = np.asarray(one), np.asarray(other)
    if left.dtype.kind not in "biuf" or right.dtype.kind not in "biuf":
        return True  # objects that no tensor holds, which the reading of spaces refuses
    with np.errstate(over="ignore"):
        return np.array_equal(left.astype(np.float32), right.astype(np.float32), equal_nan=True)


@contextlib.contextmanager
def _errors_ignored() -> Iterator[None]:
    """Ignore errors of an environment; they are reported where it is played."""
    try:
        yield
    except ENV_ERRORS as error:
        if not is_failure(error):
            raise


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    """Restore the state of the global random generators after the block."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _states() -> dict[str, Any]:
    """Return the states of the global random generators."""
    return {
        "random": random.getstate(),
        "numpy.random": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }


def is_same_state(one: Any, other: Any) -> bool:
    """Return whether two states of a generator are equal.

    >>> is_same_state(np.random.get_state(), np.random.get_state())
    True
    """
    if isinstance(one, tuple):
        pairs = zip(one, other, strict=True)
        return all(is_same_state(left, right) for left, right in pairs)
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def _draw() -> None:
    """Advance the global random generators."""
    random.random()
    np.random.random()
    torch.rand(1)


def _seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
