"""Several Gymnasium environments played in one process: NumPy arrays in, stacked NumPy arrays out.

An env whose environment fails (an exception, or values that are not finite or not of its spaces)
costs that env its episode and nothing else: the failure is reported, and the env's next episode
begins in an environment that is made anew. Only NumPy and Gymnasium are needed here.
"""

import contextlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from yamame.spaces import Spaces

from yamame_envs.adapters.spaces import Array

Make = Callable[[], "gymnasium.Env[Any, Any]"]

ENV_ERRORS = (Exception, SystemExit)
"""What an environment may raise that costs it its episode, if `is_own`."""
_LARGEST = float(np.finfo(np.float32).max)


def is_own(error: BaseException) -> bool:
    """Whether an environment raised an error: exits of other kinds come from a signal, and end the
    process.
    """
    return isinstance(error, Exception) or type(error) is SystemExit


class RemoteError(Exception):
    """The traceback of an error in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Failure:
    """Why an env's episode cannot go on.

    Attributes:
        summary: One line.
        cause: The error, where it happened in this process.
        details: The traceback of an error that happened in another process.
    """

    summary: str
    cause: BaseException | None = None
    details: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The failure that an error is; what no environment raised goes on."""
        if not is_own(error):
            raise error
        text = " ".join(str(error).split())
        return cls(f"{type(error).__name__}: {text}" if text else type(error).__name__, error)

    def portable(self) -> "Failure":
        """The same for another process."""
        if self.cause is None:
            return self
        return Failure(self.summary, None, "".join(traceback.format_exception(self.cause)))

    def error(self) -> BaseException | None:
        """What an error about this failure is raised from."""
        return RemoteError(self.details) if self.details else self.cause


@dataclass(frozen=True, eq=False)
class EnvSpaces(Spaces):
    """What all envs return and take.

    Attributes:
        success_key: Where the info tells of success; None where it does not.
    """

    success_key: str | None


@dataclass(slots=True)
class Outcome:
    """What a reset or a step of R envs gave; of envs with a failure, nothing of it means anything.

    Attributes:
        leaves: The arrays of the observation, ``[R, *stored_shape]`` each.
        reward: ``[R]`` float32; zeros after a reset, as the following.
        terminated: ``[R]`` bool.
        truncated: ``[R]`` bool.
        success: ``[R]`` bool.
        failures: Faults by their position in the R envs.
        tells_success: Whether the info of any step told of success.
    """

    leaves: list[Array]
    reward: Array
    terminated: Array
    truncated: Array
    success: Array
    failures: dict[int, Failure]
    tells_success: bool = False

    @classmethod
    def nothing(
        cls, env_spaces: EnvSpaces, num_envs: int, failures: dict[int, Failure]
    ) -> "Outcome":
        """Zeros."""
        leaves = [
            np.zeros((num_envs, *entry.stored_shape), entry.dtype)
            for entry in env_spaces.observations
        ]
        ends, cuts, wins = (np.zeros(num_envs, np.bool_) for _ in range(3))
        return cls(leaves, np.zeros(num_envs, np.float32), ends, cuts, wins, failures)

    @classmethod
    def joined(cls, parts: Sequence["Outcome"]) -> "Outcome":
        """The outcomes of consecutive envs as one."""
        if len(parts) == 1:
            return parts[0]
        failures: dict[int, Failure] = {}
        start = 0
        for part in parts:
            failures |= {start + position: failure for position, failure in part.failures.items()}
            start += len(part.reward)
        leaves = [
            np.concatenate(leaf) for leaf in zip(*(part.leaves for part in parts), strict=True)
        ]
        return cls(
            leaves,
            np.concatenate([part.reward for part in parts]),
            np.concatenate([part.terminated for part in parts]),
            np.concatenate([part.truncated for part in parts]),
            np.concatenate([part.success for part in parts]),
            failures,
            any(part.tells_success for part in parts),
        )


class InProcessEnvs:
    """Plays some envs; every env has an environment of its own, which is made when it is first
    reset.

    Args:
        make: Makes the environment of one env.
        num_envs: Envs.
        env_spaces: What they return and take.
    """

    interrupted: dict[int, Failure]
    """Envs whose episode was lost though they were not asked for anything; never any in this
    process.
    """

    def __init__(self, make: Make, num_envs: int, env_spaces: EnvSpaces) -> None:
        self.interrupted = {}
        self._make, self._spaces = make, env_spaces
        self._envs: list[Any] = [None] * num_envs
        self._writes = [
            (entry.path, entry.shape, entry.raw_dtype, entry.accepted)
            for entry in env_spaces.observations
        ]

    def reset(self, env_ids: Sequence[int], seeds: Sequence[int]) -> Outcome:
        """Begins an episode in some envs, in increasing order, each with its seed."""
        failures: dict[int, Failure] = {}
        raws = self._raws(len(env_ids))
        for position, (env_id, seed) in enumerate(zip(env_ids, seeds, strict=True)):
            try:
                if self._envs[env_id] is None:
                    self._envs[env_id] = self._make()
                observation, _ = self._envs[env_id].reset(seed=seed)
                self._write(observation, position, raws)
            except ENV_ERRORS as error:
                failures[position] = Failure.of(error)
        outcome = Outcome.nothing(self._spaces, len(env_ids), failures)
        self._finish(env_ids, raws, outcome)
        return outcome

    def step(self, env_ids: Sequence[int], actions: Array) -> Outcome:
        """Steps some envs, in increasing order; ``actions`` ``[R, ...]`` must be within their
        bounds.
        """
        failures: dict[int, Failure] = {}
        raws, count = self._raws(len(env_ids)), len(env_ids)
        rewards, ends, cuts, wins = [0.0] * count, [False] * count, [False] * count, [False] * count
        envs, write, success_key, tells = self._envs, self._write, self._spaces.success_key, False
        for position, (env_id, action) in enumerate(
            zip(env_ids, self._spaces.action.values(actions), strict=True)
        ):
            try:
                observation, reward, end, cut, info = envs[env_id].step(action)
                write(observation, position, raws)
                rewards[position], ends[position], cuts[position] = (
                    float(reward),
                    bool(end),
                    bool(cut),
                )
                if success_key is not None:
                    wins[position] = bool(info.get(success_key, False))
                    tells |= success_key in info
            except ENV_ERRORS as error:
                failures[position] = Failure.of(error)
        reward = np.array(rewards)
        wild = ~(np.abs(reward) <= _LARGEST)
        if wild.any():
            for position in wild.nonzero()[0].tolist():
                failures.setdefault(
                    position, Failure(f"reward must be finite, got {rewards[position]}")
                )
            reward[wild] = 0.0
        terminated, truncated, success = (np.array(flags, np.bool_) for flags in (ends, cuts, wins))
        outcome = Outcome(
            [], reward.astype(np.float32), terminated, truncated, success, failures, tells
        )
        self._finish(env_ids, raws, outcome)
        return outcome

    def render(self, env_id: int) -> Array | Failure:
        """The picture of an env, ``[H, W, 3]`` uint8, or why there is none."""
        try:
            picture = np.asarray(self._envs[env_id].render())
            if picture.dtype != np.uint8 or picture.ndim != 3:
                mode = getattr(self._envs[env_id], "render_mode", None)
                return Failure(f"render_mode {mode!r} gives no picture")
        except NotImplementedError:  # as gymnasium.Env has it
            return Failure("it has no method render()")
        except ENV_ERRORS as error:
            return Failure.of(error)
        return picture

    def task_hashes(self) -> list[int | None]:
        """Hash of each env's task, by its environment's ``played_task_hash()``; None where it is
        unknown.
        """
        return [None if env is None else _task_hash(env) for env in self._envs]

    def close(self) -> None:
        """Closes all environments."""
        for env_id in range(len(self._envs)):
            self._drop(env_id)

    def _raws(self, count: int) -> list[Array]:
        return [np.zeros((count, *shape), raw) for _, shape, raw, _ in self._writes]

    def _write(self, observation: Any, position: int, raws: list[Array]) -> None:
        for (path, shape, raw, accepted), target in zip(self._writes, raws, strict=True):
            value = observation
            for key in path:
                value = value[key]
            if type(value) is np.ndarray and value.shape == shape and value.dtype == raw:
                target[position] = value
            else:
                target[position] = accepted(value)

    def _finish(self, env_ids: Sequence[int], raws: list[Array], outcome: Outcome) -> None:
        outcome.leaves = []
        for entry, raw in zip(self._spaces.observations, raws, strict=True):
            array, bad = entry.finish(raw)
            outcome.leaves.append(array)
            for position, text in bad.items():
                outcome.failures.setdefault(position, Failure(text))
        for position in outcome.failures:
            self._drop(env_ids[position])

    def _drop(self, env_id: int) -> None:
        env, self._envs[env_id] = self._envs[env_id], None
        if env is not None:
            with contextlib.suppress(*ENV_ERRORS):  # it is of no further use, and may be broken
                env.close()


def _task_hash(env: Any) -> int | None:
    try:
        played = env.get_wrapper_attr("played_task_hash")()
    except ENV_ERRORS as error:  # it has no such method, or fails: results do without
        Failure.of(error)  # raises what no environment raised
        return None
    return None if played is None else _signed(int(played))


def _signed(number: int) -> int:
    """A whole number modulo ``2**64``, within the range of int64."""
    return (number + 2**63) % 2**64 - 2**63
