"""Decide how much memory a task needs, by comparing agents that see different numbers of past
timesteps.

Several agents are trained for each window, one per seed. The mean score of one training is one
observation, so the noise between trainings is measured, not assumed. All pairs of windows are
compared at once with Tukey's test (honestly significant difference), made more careful in two ways:

- A window whose trainings scatter more than those of the others counts with its own variance.
- The error of playing a finite number of tasks is added. Without it, two trainings that happen to
  score the same would look free of noise.

A window is *short* if another one is ahead of it by more than the margin, *enough* if none is. Both
need an interval that excludes the opposite. What neither interval excludes stays *unclear*, and the
verdict is then "not settled".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from yamame.checks import require
from yamame.evaluation.intervals import (
    Array,
    student_quantile,
    tasks_interval,
    tukey_quantile,
    with_width,
)

FEWEST_SEEDS = 3
"""Trainings per window that a verdict needs. Two may agree by luck where trainings either succeed
or fail.
"""

Standing = Literal["enough", "short", "unclear"]
Outcome = Literal["needed", "not needed", "no difference", "not settled", "nothing learnt"]


@dataclass(frozen=True)
class Mean:
    """A mean and its interval; both ends are the mean if there is no spread to compute an interval
    from.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        ends = with_width(self.low, self.high)
        return (
            f"{self.value:.3g} [-]"
            if ends is None
            else f"{self.value:.3g} [{ends[0]:.3g}, {ends[1]:.3g}]"
        )


@dataclass(frozen=True)
class Reached:
    """Scores of the agents with one window.

    Attributes:
        window: Number of timesteps that they see, the present one included; None for all.
        score: Mean score. Its interval is over seeds; with one seed, or if seeds do not differ,
            over tasks.
        behind: Distance to the best window. With several seeds the intervals of all windows hold
            together.
        standing: ``short`` if another window is ahead by more than the margin, ``enough`` if none
            is, else ``unclear``.
        seeds: Mean score of each training.
    """

    window: int | None
    score: Mean
    behind: Mean
    standing: Standing
    seeds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class NeededMemory:
    """Verdict of a probe.

    Attributes:
        outcome: ``needed``: agents without memory fall short. ``not needed``: agents without memory
            reach the highest possible score, within the margin. ``no difference``: agents without
            memory do as well as all others, which is also what agents look like that have not
            learnt to use their memory. ``not settled``: the noise is too large, or there are fewer
            than three seeds. ``nothing learnt``: no window is ahead of a random policy.
        at_least: Number of timesteps that the task needs at least, because all shorter windows are
            short.
        at_most: Shortest window that is enough; None if that is not settled or takes all timesteps.
        reached: Scores of every window, shortest first.
        random: Score of a random policy.
    """

    outcome: Outcome
    at_least: int
    at_most: int | None
    reached: list[Reached]
    random: Mean

    def __str__(self) -> str:
        best = max(self.reached, key=lambda one: one.score.value)  # the shortest of equals
        shown = dict.fromkeys([self.reached[0].window, best.window, self.reached[-1].window])
        scores = {one.window: one.score for one in self.reached}
        listed = ", ".join(f"{_sight(window)} {scores[window]}" for window in shown)
        return f"{self._verdict()}; scores: {listed}, random {self.random}"

    def _verdict(self) -> str:
        num_seeds = len(self.reached[0].seeds)
        if num_seeds < FEWEST_SEEDS:
            trainings = (
                "one training per window does"
                if num_seeds == 1
                else f"{num_seeds} trainings per window do"
            )
            return (
                f"no verdict: {trainings} not show how much trainings differ by chance, "
                f"{FEWEST_SEEDS} are needed"
            )
        if len(self.reached) == 1:
            return "no verdict: there is one window, and nothing to compare it with"
        if self.outcome == "needed":
            return f"this task needs memory: {_timesteps(self.at_least, self.at_most)}"
        if self.outcome == "not needed":
            return "this task needs no memory: agents without any reach the highest possible score"
        if self.outcome == "no difference":
            return (
                "no difference within this budget: either the task needs no memory, "
                "or no agent learnt to use it"
            )
        if self.outcome == "nothing learnt":
            return "not settled: no window is ahead of a random policy beyond chance"
        if self.at_most is not None:
            return f"not settled: {_timesteps(1, self.at_most)} may be needed; more seeds may tell"
        return "not settled: the differences are within the noise; more seeds may tell"


def judge_memory(
    windows: Sequence[int | None],
    scores: ArrayLike,
    random: ArrayLike,
    *,
    margin: float = 0.1,
    confidence: float = 0.95,
    highest: float | None = None,
) -> NeededMemory:
    """Decide how much memory a task needs.

    Args:
        windows: Number of timesteps that agents see, ascending, from 1; None for all.
        scores: ``[windows, seeds, tasks]``, finite; more is better. All agents play the same tasks.
            With fewer than three seeds there is no verdict.
        random: ``[tasks]``, scores of a random policy.
        margin: Differences up to this share, in [0, 1), of the lead of the best window over the
            random policy are ignored.
        confidence: Probability, in (0, 1), that all differences between windows lie in their
            intervals.
        highest: Highest possible score, such as 1 for success; None if unknown. Without it no task
            is called free of the need for memory.

    Raises:
        ValueError: The shapes do not match, a score is not finite, or an argument is out of its
            range.
        ImportError: SciPy is not installed.

    >>> sides = np.arange(40) % 2
    >>> found = judge_memory([1, None], [[sides] * 3, [sides * 0 + 1] * 3], sides * 0)
    >>> found.outcome, found.at_least, found.at_most
    ('needed', 2, None)
    """
    table, chance = np.asarray(scores, np.float64), np.asarray(random, np.float64)
    _check(windows, table, chance, margin=margin, confidence=confidence)
    lead, radius = _lead(table, chance, confidence)
    allowed = margin * max(0.0, lead)
    is_compared = len(windows) > 1 and table.shape[1] >= FEWEST_SEEDS
    is_decidable = is_compared and lead - radius > 0
    solved = (
        _solved(table, highest, allowed, confidence) if is_decidable else [False] * len(windows)
    )
    reached = _reached(windows, table, solved, allowed, confidence, is_decidable=is_decidable)

    # Longer windows contain shorter ones, so only an unbroken row of short windows, from 1 on,
    # bounds the need.
    short = [one.window or 0 for one in takewhile(lambda one: one.standing == "short", reached)]
    enough = [one.window for one in reached if one.standing == "enough"]
    outcome: Outcome = "not settled"
    if is_compared and not is_decidable:
        outcome = "nothing learnt"
    elif short:
        outcome = "needed"
    elif reached[0].standing == "enough":
        outcome = "not needed" if solved[0] else "no difference"
    at_least, at_most = max(short, default=0) + 1, enough[0] if enough else None
    return NeededMemory(outcome, at_least, at_most, reached, _over_tasks(chance, confidence))


def _reached(
    windows: Sequence[int | None],
    table: Array,
    solved: Sequence[bool],
    allowed: float,
    confidence: float,
    *,
    is_decidable: bool,
) -> list[Reached]:
    """Scores and standing of every window."""
    ahead, radii = _differences(table, confidence)
    best = int(table.mean((1, 2)).argmax())
    reached: list[Reached] = []
    for index, (window, score) in enumerate(zip(windows, _scores(table, confidence), strict=True)):
        standing: Standing = "unclear"
        if is_decidable:
            if solved[index] or (ahead[index] + radii[index] <= allowed).all():
                standing = "enough"
            elif (ahead[index] - radii[index] > allowed).any():
                standing = "short"
        gap, by = float(ahead[index, best]), float(radii[index, best])
        of_seeds = table[index].mean(1).tolist()
        reached.append(Reached(window, score, Mean(gap, gap - by, gap + by), standing, of_seeds))
    return reached


def _check(
    windows: Sequence[int | None], table: Array, chance: Array, *, margin: float, confidence: float
) -> None:
    name = "judge_memory"
    fits = (
        table.ndim == 3
        and table.size > 0
        and (len(table), table.shape[2]) == (len(windows), chance.size)
    )
    is_finite = fits and bool(np.isfinite(table).all())
    require(name, "scores", table.shape, is_finite, "be finite and fit [windows, seeds, tasks]")
    require(name, "scores", table.shape, chance.size > 1, "be of several tasks")
    require(name, "random", chance.shape, bool(np.isfinite(chance).all()), "be finite")
    require(name, "margin", margin, 0.0 <= margin < 1.0, "be in [0, 1)")
    require(name, "confidence", confidence, 0.0 < confidence < 1.0, "be in (0, 1)")
    lengths = [math.inf if window is None else window for window in windows]
    rises = lengths[0] == 1 and lengths == sorted(set(lengths))
    require(name, "windows", windows, rises, "begin with 1 and rise")


def _seed_variances(table: Array) -> Array:
    """Variances ``[W]`` of the mean score of a window, from the scatter of its trainings.

    Two or three trainings estimate a variance badly, and may agree by luck, so all windows are
    pooled. A window that scatters more than the pool has its own variance.
    """
    num_seeds = table.shape[1]
    own = table.mean(2).var(1, ddof=1)
    return np.maximum(own, own.mean()) / num_seeds


def _differences(table: Array, confidence: float) -> tuple[Array, Array]:
    """Leads ``[i, j]`` of window ``j`` over window ``i``, and half the widths of their intervals.

    With one seed the intervals are over tasks and each holds by itself.
    """
    num_windows, num_seeds, num_tasks = table.shape
    per_task = table.mean(1)
    gaps = per_task[None] - per_task[:, None]  # [W, W, tasks]
    variances = gaps.var(2, ddof=1) / num_tasks
    if num_seeds == 1:
        quantile = student_quantile(num_tasks - 1, confidence)
    else:
        quantile = tukey_quantile(num_windows, num_windows * (num_seeds - 1), confidence)
        of_seeds = _seed_variances(table)
        between = of_seeds[None] + of_seeds[:, None]
        np.fill_diagonal(between, 0.0)
        variances = variances + between
    return gaps.mean(2), quantile * np.sqrt(variances)


def _lead(table: Array, chance: Array, confidence: float) -> tuple[float, float]:
    """Lead of the best window over a random policy, and half the width of its interval.

    The best of several windows is ahead by luck more often than one is, hence the Bonferroni
    correction.
    """
    num_windows, num_seeds, num_tasks = table.shape
    best = int(table.mean((1, 2)).argmax())
    gap = table[best].mean(0) - chance
    variance, freedom = gap.var(ddof=1) / num_tasks, num_tasks - 1
    if num_seeds > 1:
        variance, freedom = variance + _seed_variances(table)[best], num_windows * (num_seeds - 1)
    quantile = student_quantile(freedom, 1 - (1 - confidence) / num_windows)
    return float(gap.mean()), float(quantile * np.sqrt(variance))


def _solved(table: Array, highest: float | None, allowed: float, confidence: float) -> list[bool]:
    """Flags of windows so close to the highest possible score that none can be ahead by more than
    ``allowed``.
    """
    num_windows, num_seeds, num_tasks = table.shape
    if highest is None:
        return [False] * num_windows
    variances = _seed_variances(table) + table.mean(1).var(1, ddof=1) / num_tasks
    quantile = tukey_quantile(num_windows, num_windows * (num_seeds - 1), confidence)
    lows = table.mean((1, 2)) - quantile * np.sqrt(variances)
    return (lows >= highest - allowed).tolist()


def _scores(table: Array, confidence: float) -> list[Mean]:
    """Mean score of each window, with Student's interval over seeds.

    With one seed, or if no two trainings with one window differ, the interval is over tasks.
    """
    num_windows, num_seeds, _ = table.shape
    if num_seeds == 1:
        return [_over_tasks(own[0], confidence) for own in table]
    radii = student_quantile(num_windows * (num_seeds - 1), confidence) * np.sqrt(
        _seed_variances(table)
    )
    means = table.mean((1, 2))
    lows, highs = means - radii, means + radii
    if np.isin(table, (0, 1)).all():  # success
        lows, highs = lows.clip(min=0.0), highs.clip(max=1.0)
    scores = []
    for own, mean, low, high in zip(table, means, lows, highs, strict=True):
        has_spread = with_width(float(low), float(high)) is not None
        over_seeds = Mean(float(mean), float(low), float(high))
        scores.append(over_seeds if has_spread else _over_tasks(own.mean(0), confidence))
    return scores


def _over_tasks(values: Array, confidence: float) -> Mean:
    """Mean of one score per task, with its interval."""
    mean = float(values.mean())
    return Mean(mean, *(tasks_interval(values, confidence=confidence) or (mean, mean)))


def _sight(window: int | None) -> str:
    if window is None:
        return "all timesteps"
    return f"{window} timestep{'' if window == 1 else 's'}"


def _timesteps(low: int, high: int | None) -> str:
    if high is None:
        return f"at least {low} timesteps"
    return f"between {low} and {high} timesteps" if low < high else f"{high} timesteps"
