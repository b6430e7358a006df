"""How long a memory a task needs, told from what agents reach that see different numbers of past timesteps.

All agents play the same tasks, so their differences are taken task by task. With several seeds an interval is over
seeds, as `Resampling` makes it. With one it is over tasks, and says nothing of what another seed would learn.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from yamame.checks import require
from yamame.evaluation.intervals import Array, Resampling, wilson_interval

_DEFAULT = Resampling()
Standing = Literal["enough", "short", "unclear"]
Outcome = Literal["needed", "not needed", "undecided", "nothing learnt"]


@dataclass(frozen=True)
class Mean:
    """A mean and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Reached:
    """What agents reach that see so many timesteps.

    Attributes:
        window: The timesteps, the present one included; None for all.
        score: Theirs.
        behind: What the best agents are ahead by.
        standing: Whether that is within the margin for certain, beyond it for certain, or neither.
    """

    window: int | None
    score: Mean
    behind: Mean
    standing: Standing


@dataclass(frozen=True)
class NeededMemory:
    """The verdict.

    Attributes:
        outcome: What it is in a word.
        at_least: The task needs so many timesteps at least, for agents that see fewer fall short of the best.
        at_most: It needs so many at most, for agents that see them do as well as the best; None for all.
        reached: What every window reaches, shortest first.
        random: What a random policy reaches.
    """

    outcome: Outcome
    at_least: int
    at_most: int | None
    reached: list[Reached]
    random: Mean

    def __str__(self) -> str:
        best = max(self.reached, key=lambda one: one.score.value)  # the shortest of equals
        enough = next(one for one in self.reached if one.window == self.at_most)
        told = "; ".join(
            f"{_sight(one.window)} reaches {one.score}"
            for one in dict.fromkeys((self.reached[0], enough, best, self.reached[-1]))
        )
        up_to = _timesteps(self.at_least, self.at_most)
        if self.outcome == "nothing learnt":
            return f"undecided: nobody learnt; a random policy reaches {self.random}, {told}"
        if self.outcome == "undecided":
            return f"undecided: {up_to} may do, more seeds or evaluation.num_episodes would tell; {told}"
        if self.outcome == "not needed":
            return f"memory brought nothing here within this budget; {told}"
        return f"this task needs memory: {up_to}; {told}"


def judge_memory(
    windows: Sequence[int | None],
    scores: ArrayLike,
    random: ArrayLike,
    *,
    margin: float = 0.1,
    resampling: Resampling = _DEFAULT,
) -> NeededMemory:
    """Which is the shortest memory that does as well as the best.

    Args:
        windows: How many timesteps agents see, from 1 to the most; None for all.
        scores: ``[windows, seeds, tasks]``, finite; more is better.
        random: ``[tasks]``, those of a random policy.
        margin: Differences up to this share of what the best agents are ahead of a random policy count for nothing.
        resampling: How intervals are made.

    Raises:
        ValueError: Sizes do not fit, something is not finite, or the margin is negative.

    >>> halves = np.arange(20) % 2
    >>> found = judge_memory([1, None], [[halves], [halves * 0 + 1]], halves * 0)
    >>> found.outcome, found.at_least, found.at_most
    ('needed', 2, None)
    """
    table, chance = np.asarray(scores, np.float64), np.asarray(random, np.float64)
    fits = table.ndim == 3 and table.size > 0 and (len(table), table.shape[2]) == (len(windows), chance.size)
    require(
        "judge_memory", "scores", table.shape, fits and bool(np.isfinite(table).all()), "be finite and fit"
    )
    require("judge_memory", "margin", margin, margin >= 0, "be at least 0")
    lengths = [math.inf if window is None else window for window in windows]
    rises = lengths[0] == 1 and lengths == sorted(set(lengths))
    require("judge_memory", "windows", windows, rises, "begin with 1 and rise")
    holds = bool(np.isfinite(chance).all())
    require("judge_memory", "random", "what is not", holds, "be finite")
    require("judge_memory", "scores", table.shape, table[0].size > 1, "be of several tasks or seeds")
    best = table[int(table.mean((1, 2)).argmax())]
    # The best of several is ahead by chance more often than one is, of a random policy and of the others.
    strict = replace(resampling, confidence=1 - (1 - resampling.confidence) / len(windows))
    ahead = _mean(best - chance, strict)
    allowed = margin * max(0.0, ahead.value)
    reached = []
    for window, own in zip(windows, table, strict=True):
        behind = _mean(best - own, resampling)
        standing: Standing = "unclear"
        if behind.high <= allowed:
            standing = "enough"
        elif _mean(best - own, strict).low > allowed:
            standing = "short"
        reached.append(Reached(window, _score(own, resampling), behind, standing))
    enough = next(place for place, one in enumerate(reached) if one.standing == "enough")
    short = [one.window or 0 for one in reached[:enough] if one.standing == "short"]
    outcome: Outcome = "needed" if short else "not needed" if enough == 0 else "undecided"
    if ahead.low <= 0:
        outcome = "nothing learnt"
    random_score = _score(chance[None], resampling)
    return NeededMemory(outcome, max(short, default=0) + 1, windows[enough], reached, random_score)


def _score(values: Array, resampling: Resampling) -> Mean:
    """The mean of ``[seeds, tasks]``; that of successes of one seed with an interval that is no point at 0 and 1."""
    if len(values) > 1 or not np.isin(values, (0, 1)).all():
        return _mean(values, resampling)
    ends = wilson_interval(int(values.sum()), values.size, confidence=resampling.confidence)
    return Mean(float(values.mean()), *ends)


def _mean(values: Array, resampling: Resampling) -> Mean:
    """The mean of ``[seeds, tasks]``."""
    sample = values.mean(1) if len(values) > 1 else values[0]
    low, high = resampling.interval([sample], np.mean) if sample.size > 1 else (sample[0], sample[0])
    return Mean(float(sample.mean()), float(low), float(high))


def _sight(window: int | None) -> str:
    return {1: "an agent without any", None: "one with all"}.get(window, f"one of {window} timesteps")


def _timesteps(low: int, high: int | None) -> str:
    if high is None:
        return f"at least {low} timesteps"
    return f"between {low} and {high} timesteps" if low < high else f"{high} timesteps"
