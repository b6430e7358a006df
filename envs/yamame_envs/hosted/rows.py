"""Several Gymnasium environments played in one process: NumPy arrays in, stacked NumPy arrays out.

A row whose environment fails (an exception, or values that are not finite or not of its spaces) costs that row
its episode and nothing else: the failure is reported, and the row's next episode begins in an environment that
is made anew. Only NumPy and Gymnasium are needed here.
"""

import contextlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from yamame_envs.hosted.actions import ActionLayout
from yamame_envs.hosted.spaces import Array, Leaf

Make = Callable[[], "gymnasium.Env[Any, Any]"]

_LARGEST = float(np.finfo(np.float32).max)


class RemoteError(Exception):
    """The traceback of an error in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Fault:
    """Why a row's episode cannot go on.

    Attributes:
        summary: One line.
        cause: The error, where it happened in this process.
        details: The traceback of an error that happened in another process.
    """

    summary: str
    cause: BaseException | None = None
    details: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "Fault":
        """The fault that an error is."""
        text = " ".join(str(error).split())
        return cls(f"{type(error).__name__}: {text}" if text else type(error).__name__, error)

    def portable(self) -> "Fault":
        """The same for another process."""
        if self.cause is None:
            return self
        return Fault(self.summary, None, "".join(traceback.format_exception(self.cause)))

    def error(self) -> BaseException | None:
        """What an error about this fault is raised from."""
        return RemoteError(self.details) if self.details else self.cause


@dataclass(frozen=True)
class Layout:
    """What all rows return and take.

    Attributes:
        leaves: The arrays of an observation.
        actions: How actions are taken apart.
        tells_success: Whether the info's ``success`` is read.
    """

    leaves: tuple[Leaf, ...]
    actions: ActionLayout
    tells_success: bool


@dataclass(slots=True)
class Outcome:
    """What a reset or a step of R rows gave; of rows with a fault, nothing of it means anything.

    Attributes:
        leaves: The arrays of the observation, ``[R, *form]`` each.
        reward: ``[R]`` float32; zeros after a reset, as the following.
        terminated: ``[R]`` bool.
        truncated: ``[R]`` bool.
        success: ``[R]`` bool.
        faults: Faults by their position in the R rows.
    """

    leaves: list[Array]
    reward: Array
    terminated: Array
    truncated: Array
    success: Array
    faults: dict[int, Fault]

    @classmethod
    def nothing(cls, layout: Layout, rows: int, faults: dict[int, Fault]) -> "Outcome":
        """Zeros."""
        dtypes = [np.float32 if leaf.kind == "one_hot" else leaf.raw for leaf in layout.leaves]
        leaves = [
            np.zeros((rows, *leaf.form), kind) for leaf, kind in zip(layout.leaves, dtypes, strict=True)
        ]
        ends, cuts, wins = (np.zeros(rows, np.bool_) for _ in range(3))
        return cls(leaves, np.zeros(rows, np.float32), ends, cuts, wins, faults)

    @classmethod
    def joined(cls, parts: Sequence["Outcome"]) -> "Outcome":
        """The outcomes of consecutive rows as one."""
        if len(parts) == 1:
            return parts[0]
        faults: dict[int, Fault] = {}
        start = 0
        for part in parts:
            faults |= {start + position: fault for position, fault in part.faults.items()}
            start += len(part.reward)
        leaves = [np.concatenate(leaf) for leaf in zip(*(part.leaves for part in parts), strict=True)]
        return cls(
            leaves,
            np.concatenate([part.reward for part in parts]),
            np.concatenate([part.terminated for part in parts]),
            np.concatenate([part.truncated for part in parts]),
            np.concatenate([part.success for part in parts]),
            faults,
        )


class Rows:
    """Plays some rows; every row has an environment of its own, which is made when it is first reset.

    Args:
        make: Makes the environment of one row.
        num_rows: Rows.
        layout: What they return and take.
    """

    lost: dict[int, Fault]
    """Rows whose episode was lost though they were not asked for anything; never any in this process."""

    def __init__(self, make: Make, num_rows: int, layout: Layout) -> None:
        self.lost = {}
        self._make, self._layout = make, layout
        self._envs: list[Any] = [None] * num_rows
        self._writes = [(leaf.path, leaf.shape, leaf.raw, leaf.accepted) for leaf in layout.leaves]

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Outcome:
        """Begins an episode in some rows, in increasing order, each with its seed."""
        faults: dict[int, Fault] = {}
        raws = self._raws(len(rows))
        for position, (row, seed) in enumerate(zip(rows, seeds, strict=True)):
            try:
                if self._envs[row] is None:
                    self._envs[row] = self._make()
                observation, _ = self._envs[row].reset(seed=seed)
                self._write(observation, position, raws)
            except Exception as error:
                faults[position] = Fault.of(error)
        outcome = Outcome.nothing(self._layout, len(rows), faults)
        self._finish(rows, raws, outcome)
        return outcome

    def step(self, rows: Sequence[int], actions: Array) -> Outcome:
        """Steps some rows, in increasing order; ``actions`` ``[R, ...]`` must be within their bounds."""
        faults: dict[int, Fault] = {}
        raws, count = self._raws(len(rows)), len(rows)
        rewards, ends, cuts, wins = [0.0] * count, [False] * count, [False] * count, [False] * count
        envs, write, tells_success = self._envs, self._write, self._layout.tells_success
        for position, (row, action) in enumerate(
            zip(rows, self._layout.actions.values(actions), strict=True)
        ):
            try:
                observation, reward, end, cut, info = envs[row].step(action)
                write(observation, position, raws)
                rewards[position], ends[position], cuts[position] = float(reward), bool(end), bool(cut)
                if tells_success:
                    wins[position] = bool(info.get("success", False))
            except Exception as error:
                faults[position] = Fault.of(error)
        reward = np.array(rewards)
        wild = ~(np.abs(reward) <= _LARGEST)
        if wild.any():
            for position in wild.nonzero()[0].tolist():
                faults.setdefault(position, Fault(f"reward must be finite, got {rewards[position]}"))
            reward[wild] = 0.0
        terminated, truncated, success = (np.array(flags, np.bool_) for flags in (ends, cuts, wins))
        outcome = Outcome([], reward.astype(np.float32), terminated, truncated, success, faults)
        self._finish(rows, raws, outcome)
        return outcome

    def render(self, row: int) -> Array | Fault:
        """The picture of a row, ``[H, W, 3]`` uint8, or why there is none."""
        try:
            picture = np.asarray(self._envs[row].render())
            if picture.dtype != np.uint8 or picture.ndim != 3:
                mode = getattr(self._envs[row], "render_mode", None)
                return Fault(f"render_mode {mode!r} gives no picture")
        except Exception as error:
            return Fault.of(error)
        return picture

    def close(self) -> None:
        """Closes all environments."""
        for row in range(len(self._envs)):
            self._drop(row)

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

    def _finish(self, rows: Sequence[int], raws: list[Array], outcome: Outcome) -> None:
        outcome.leaves = []
        for leaf, raw in zip(self._layout.leaves, raws, strict=True):
            array, bad = leaf.finish(raw)
            outcome.leaves.append(array)
            for position, text in bad.items():
                outcome.faults.setdefault(position, Fault(text))
        for position in outcome.faults:
            self._drop(rows[position])

    def _drop(self, row: int) -> None:
        env, self._envs[row] = self._envs[row], None
        if env is not None:
            with contextlib.suppress(Exception):  # it is of no further use, and may be broken
                env.close()
