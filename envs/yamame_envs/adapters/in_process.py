"""Gymnasium environments that are played in one process, with stacked NumPy arrays as results.

A failure of an env (an exception, or values that are not finite or not in its spaces) costs that
env its episode and nothing else: the failure is returned, and the next episode begins in a new
environment. The vector environments of Gymnasium cannot do that: an exception leaves their batch
half stepped, and `gymnasium.vector.utils.concatenate` does not report which env returned a wrong
observation. So observations are written one by one.

Besides small modules of Yamame, this module imports only NumPy and Gymnasium.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
from yamame.spaces import Spaces
from yamame.spaces.arrays import SpaceError
from yamame.system.messages import OutsideError, print_stderr
from yamame.system.user_code import UserCodeError, formatted, is_failure

from yamame_envs.adapters.spaces import Array
from yamame_envs.adapters.values import (
    read_flag,
    read_info,
    read_reward,
    split_reset,
    split_step,
    success_key_of,
)

Make = Callable[[], gymnasium.Env[Any, Any]]

ENV_ERRORS = BaseException
"""Errors of an environment that cost it its episode, if `is_failure`."""
_SUCCESS_REMEDY = "env.success names another key, and env.success=null none"


class RemoteError(Exception):
    """Traceback of an error in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Failure:
    """Reason why the episode of an env cannot continue.

    Attributes:
        summary: Description of one line.
        cause: Error, if it happened in this process.
        details: Traceback of an error that happened in another process.
        file: File that raised the error; empty if none did, or if it is one of Yamame.
        line: Line of this file.
    """

    summary: str
    cause: BaseException | None = None
    details: str = ""
    file: str = ""
    line: int = 0

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Describe the error of an environment; requests to end the process are re-raised."""
        if not is_failure(error):
            raise error
        place = UserCodeError.of("", error)
        return cls(place.reason, error, file=place.file, line=place.line)

    def portable(self) -> "Failure":
        """Return the failure for another process, where its error may not be importable."""
        if self.cause is None:
            return self
        return replace(self, cause=None, details=formatted(self.cause))

    def error(self) -> BaseException | None:
        """Return the cause of errors about this failure."""
        return RemoteError(self.details) if self.details else self.cause

    def describe(self, what: str) -> OutsideError:
        """Return an error about this failure, to be raised from its cause.

        Args:
            what: What has failed, and when.
        """
        if self.file:
            return UserCodeError(what, self.summary, self.file, self.line)
        return OutsideError(f"{what}: {self.summary}")


@dataclass(frozen=True, eq=False)
class EnvSpaces(Spaces):
    """Observations and actions of all envs.

    Attributes:
        success_key: Key of the success in the info of a step; None if there is none.
        seeks_success: Whether a key of success in the info of a last step is to be reported,
            because none was in that of a first step.
    """

    success_key: str | None
    seeks_success: bool = False


@dataclass(slots=True)
class Outcome:
    """Result of a reset or a step of R envs. Entries of envs that failed are undefined.

    Attributes:
        leaves: Arrays of the observation, ``[R, *stored_shape]`` each.
        reward: ``[R]`` float32. After a reset, this and the following are zeros.
        terminated: ``[R]`` bool.
        truncated: ``[R]`` bool.
        success: ``[R]`` bool.
        failures: Failures by position among the R envs.
        has_success_key: True if the info of any step had the key of success.
        late_key: Key of success in the info of a last step, if the spaces seek one.
        remarks: First value of each observation entry outside of its bounds, if these are to be
            reported, by the number of the entry: position and message.
    """

    leaves: list[Array]
    reward: Array
    terminated: Array
    truncated: Array
    success: Array
    failures: dict[int, Failure]
    has_success_key: bool = False
    late_key: str | None = None
    remarks: dict[int, tuple[int, str]] = field(default_factory=dict)

    @classmethod
    def zeros(cls, env_spaces: EnvSpaces, num_envs: int, failures: dict[int, Failure]) -> "Outcome":
        """Return an outcome of zeros with these failures."""
        leaves = []
        for entry in env_spaces.observations:
            leaves.append(np.zeros((num_envs, *entry.stored_shape), entry.dtype))
        return cls(
            leaves,
            reward=np.zeros(num_envs, np.float32),
            terminated=np.zeros(num_envs, np.bool_),
            truncated=np.zeros(num_envs, np.bool_),
            success=np.zeros(num_envs, np.bool_),
            failures=failures,
        )

    @classmethod
    def concatenate(cls, parts: Sequence["Outcome"]) -> "Outcome":
        """Concatenate the outcomes of consecutive envs."""
        if len(parts) == 1:
            return parts[0]

        failures: dict[int, Failure] = {}
        remarks: dict[int, tuple[int, str]] = {}
        start = 0
        for part in parts:
            for position, failure in part.failures.items():
                failures[start + position] = failure
            for number, (position, text) in part.remarks.items():
                remarks.setdefault(number, (start + position, text))
            start += len(part.reward)

        leaves = []
        for number in range(len(parts[0].leaves)):
            leaves.append(np.concatenate([part.leaves[number] for part in parts]))
        return cls(
            leaves,
            reward=np.concatenate([part.reward for part in parts]),
            terminated=np.concatenate([part.terminated for part in parts]),
            truncated=np.concatenate([part.truncated for part in parts]),
            success=np.concatenate([part.success for part in parts]),
            failures=failures,
            has_success_key=any(part.has_success_key for part in parts),
            late_key=next((part.late_key for part in parts if part.late_key is not None), None),
            remarks=remarks,
        )


class InProcessEnvs:
    """Plays several envs in this process.

    Every env has its own environment, which is made at its first reset.

    Args:
        make: Makes the environment of one env.
        num_envs: Number of envs.
        env_spaces: Observations and actions of all envs.

    Attributes:
        interrupted: Failures of envs whose episode was lost though they were not stepped. Always
            empty in this process, see `yamame_envs.adapters.workers.Pool`.
    """

    def __init__(self, make: Make, num_envs: int, env_spaces: EnvSpaces) -> None:
        self.interrupted: dict[int, Failure] = {}
        self._make = make
        self._spaces = env_spaces
        self._has_failed_to_close = False
        self._envs: list[Any] = [None] * num_envs
        # Plain tuples: they are read for every entry of every step.
        self._entries = []
        for entry in env_spaces.observations:
            self._entries.append((entry.path, entry.shape, entry.raw_dtype, entry.accepted))
        # Numbers of entries with a value outside of its bounds, which are reported once.
        self._remarked: set[int] = set()
        key = env_spaces.success_key
        self._success_name = f"info[{key!r}]"

    def reset(self, env_ids: Sequence[int], seeds: Sequence[int]) -> Outcome:
        """Begin an episode in some envs, in increasing order, with a seed each."""
        failures: dict[int, Failure] = {}
        arrays = self._raw_arrays(len(env_ids))
        for position, (env_id, seed) in enumerate(zip(env_ids, seeds, strict=True)):
            try:
                if self._envs[env_id] is None:
                    self._envs[env_id] = self._make()
                observation, _ = split_reset(self._envs[env_id].reset(seed=seed))
                self._write(observation, position, arrays)
            except SpaceError as error:
                failures[position] = Failure(str(error))
            except ENV_ERRORS as error:
                failures[position] = Failure.of(error)
        outcome = Outcome.zeros(self._spaces, len(env_ids), failures)
        self._finish(env_ids, arrays, outcome)
        return outcome

    def step(self, env_ids: Sequence[int], actions: Array) -> Outcome:
        """Step some envs, in increasing order, with actions ``[R, ...]`` within their bounds."""
        count = len(env_ids)
        failures: dict[int, Failure] = {}
        arrays = self._raw_arrays(count)
        # Lists, because setting single elements of arrays is slow.
        rewards = [0.0] * count
        terminated = [False] * count
        truncated = [False] * count
        success = [False] * count
        success_key = self._spaces.success_key
        has_success_key = False
        seeks_success = self._spaces.seeks_success
        late_key: str | None = None
        values = self._spaces.action.values(actions)
        for position, env_id in enumerate(env_ids):
            try:
                step = split_step(self._envs[env_id].step(values[position]))
                observation, reward, is_terminated, is_truncated, info = step
                self._write(observation, position, arrays)
                rewards[position] = read_reward(reward)
                terminated[position] = read_flag(is_terminated, "terminated")
                truncated[position] = read_flag(is_truncated, "truncated")
                if success_key is not None:
                    entries = read_info(info)
                    if success_key in entries:
                        has_success_key = True
                        flag = entries[success_key]
                        success[position] = read_flag(
                            flag, self._success_name, remedy=_SUCCESS_REMEDY
                        )
                elif seeks_success and (terminated[position] or truncated[position]):
                    late_key = success_key_of(info) or late_key
            except SpaceError as error:
                failures[position] = Failure(str(error))
            except ENV_ERRORS as error:
                failures[position] = Failure.of(error)

        outcome = Outcome(
            [],
            reward=np.array(rewards, np.float32),
            terminated=np.array(terminated, np.bool_),
            truncated=np.array(truncated, np.bool_),
            success=np.array(success, np.bool_),
            failures=failures,
            has_success_key=has_success_key,
            late_key=late_key,
        )
        self._finish(env_ids, arrays, outcome)
        return outcome

    def render(self, env_id: int) -> Array | Failure:
        """Return the picture of an env, ``[H, W, 3]`` uint8, or the reason why there is none."""
        env = self._envs[env_id]
        try:
            picture = np.asarray(env.render())
            if picture.dtype != np.uint8 or picture.ndim != 3:
                mode = getattr(env, "render_mode", None)
                return Failure(f"render_mode {mode!r} gives no picture")
        except NotImplementedError:
            # Raised by gymnasium.Env itself.
            return Failure("it has no method render()")
        except ENV_ERRORS as error:
            return Failure.of(error)
        return picture

    def task_hashes(self) -> list[int | None]:
        """Return the hash of each env's task, or None where it is unknown.

        Environments report it by a method ``played_task_hash()``.
        """
        return [None if env is None else _task_hash(env) for env in self._envs]

    def close(self) -> None:
        """Close all environments."""
        for env_id in range(len(self._envs)):
            self._drop(env_id)

    def _raw_arrays(self, count: int) -> list[Array]:
        return [np.zeros((count, *shape), dtype) for _, shape, dtype, _ in self._entries]

    def _write(self, observation: Any, position: int, arrays: list[Array]) -> None:
        """Write the observation of one env to its row; raise if it is not in its space."""
        for entry, array in zip(self._entries, arrays, strict=True):
            path, shape, dtype, accepted = entry
            value = observation
            try:
                for key in path:
                    value = value[key]
            except (KeyError, IndexError, TypeError):
                where = "observation" + "".join(f"[{key!r}]" for key in path)
                raise SpaceError(where, "exist, as in its space", "none") from None
            is_exact = type(value) is np.ndarray and value.shape == shape and value.dtype == dtype
            # Most values need no conversion, which is slower than writing them.
            array[position] = value if is_exact else accepted(value)

    def _finish(self, env_ids: Sequence[int], arrays: list[Array], outcome: Outcome) -> None:
        """Convert raw observations to stored ones, and drop the environments that failed."""
        outcome.leaves = []
        for number, entry in enumerate(self._spaces.observations):
            reports = number not in self._remarked
            leaf, faults, remarks = entry.finish(arrays[number], reports=reports)
            outcome.leaves.append(leaf)
            for position, text in faults.items():
                outcome.failures.setdefault(position, Failure(text))
            if remarks:
                self._remarked.add(number)
                outcome.remarks[number] = next(iter(remarks.items()))
        for position in outcome.failures:
            self._drop(env_ids[position])

    def _drop(self, env_id: int) -> None:
        env = self._envs[env_id]
        self._envs[env_id] = None
        if env is None:
            return
        try:
            env.close()
        except ENV_ERRORS as error:
            failure = Failure.of(error)
            # It is not used again, and one message about all of them is enough.
            if not self._has_failed_to_close:
                self._has_failed_to_close = True
                print_stderr(failure.describe(f"{_name_of(env)}: env {env_id} could not be closed"))


def _name_of(env: Any) -> str:
    """Return the class of an environment below its wrappers."""
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
    return type(env).__name__


def _task_hash(env: Any) -> int | None:
    try:
        task_hash = env.get_wrapper_attr("played_task_hash")()
    except ENV_ERRORS as error:
        if not is_failure(error):
            raise
        # Without the method, or where it fails, evaluations do without hashes.
        return None
    if task_hash is None:
        return None
    # Modulo 2**64, in the range of int64.
    return (int(task_hash) + 2**63) % 2**64 - 2**63
