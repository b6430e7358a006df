"""Test of how much memory a task needs, by agents that see different numbers of past timesteps.

Several agents are trained for each window, one per seed. The mean score of one training is one
observation, so the noise between trainings is measured, not assumed. Tukey's test (honestly
significant difference) compares all pairs of windows at once.

A window is *short* if a different one is ahead of it by more than the margin, *enough* if none is.
Both need an interval that excludes the opposite; other windows are *unclear*.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike

from yamame.checks import Bounds, check_bounds, require
from yamame.evaluation.intervals import (
    Array,
    Confidence,
    student_quantile,
    tasks_interval,
    tukey_quantile,
    with_width,
)

FEWEST_SEEDS = 3
"""Trainings per window that a verdict needs.

If trainings either succeed or fail, two may agree by luck.
"""

Standing = Literal["enough", "short", "unclear"]
Outcome = Literal["needed", "not needed", "no difference", "not settled", "nothing learnt"]


@dataclass(frozen=True)
class Mean:
    """A mean and its interval; both ends are the mean if there is no spread."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if with_width(self.low, self.high) is None:
            return f"{self.value:.3g} [-]"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Reached:
    """Scores of the agents with one window.

    Attributes:
        window: Number of timesteps that they see, the present one included; None for all.
        score: Mean score. Its interval is over seeds; with one seed, or if seeds do not differ,
            over tasks.
        behind: Distance to the best window. With several seeds the intervals of all windows hold
            together.
        standing: ``short``, ``enough`` or ``unclear``, see the module.
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
        shortest = self.reached[0]
        best = max(self.reached, key=lambda one: one.score.value)  # the shortest of equals
        longest = self.reached[-1]
        scores = {}  # a window that is named twice is printed once
        for one in (shortest, best, longest):
            scores[one.window] = f"{_describe_window(one.window)} {one.score}"
        return f"{self._verdict()}; scores: {', '.join(scores.values())}, random {self.random}"

    def _verdict(self) -> str:
        num_seeds = len(self.reached[0].seeds)
        if num_seeds < FEWEST_SEEDS:
            plural = "" if num_seeds == 1 else "s"
            return (
                f"no verdict: {num_seeds} training{plural} per window cannot show how much "
                f"trainings differ by chance, {FEWEST_SEEDS} are needed"
            )
        if len(self.reached) == 1:
            return "no verdict: there is one window, and nothing to compare it with"
        if self.outcome == "needed":
            return f"this task needs memory: {_describe_range(self.at_least, self.at_most)}"
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
            needed = _describe_range(1, self.at_most)
            return f"not settled: {needed} may be needed; more seeds may settle it"
        return "not settled: the differences are within the noise; more seeds may settle it"


def distinct_windows(
    windows: Iterable[int | None], longest: int | None, context_length: int
) -> list[int | None]:
    """Return the windows that differ for agents, in ascending order, from 1 on.

    Args:
        windows: Numbers of timesteps; None for all.
        longest: Timesteps of the longest episode; None if unknown. Windows that cover a whole
            episode are merged into one of that length.
        context_length: Longest window that an agent can have.

    >>> distinct_windows([9, 4, None], longest=6, context_length=1024)
    [1, 4, 6]
    """
    known = math.inf if longest is None else longest
    whole = longest if known <= context_length else None
    distinct = set()
    for window in (1, *windows):
        covers_all = window is None or window >= known
        distinct.add(whole if covers_all else window)
    return sorted(distinct, key=lambda window: math.inf if window is None else window)


@check_bounds
def judge_memory(
    windows: Sequence[int | None],
    scores: ArrayLike,
    random: ArrayLike,
    *,
    margin: Annotated[float, Bounds(least=0, below=1)] = 0.1,
    confidence: Confidence = 0.95,
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
        highest: Highest possible score, such as 1 for success; None: never ``not needed``.

    Raises:
        ArgumentError: The shapes do not match, a score is not finite, or an argument is out of its
            range.
        ImportError: SciPy is not installed.

    >>> sides = np.arange(40) % 2
    >>> found = judge_memory([1, None], [[sides] * 3, [sides * 0 + 1] * 3], sides * 0)
    >>> found.outcome, found.at_least, found.at_most
    ('needed', 2, None)
    """
    table = np.asarray(scores, np.float64)
    chance = np.asarray(random, np.float64)
    _check(windows, table, chance)
    lead, radius = _lead(table, chance, confidence)
    allowed = margin * max(0.0, lead)
    is_compared = len(windows) > 1 and table.shape[1] >= FEWEST_SEEDS
    is_decidable = is_compared and lead - radius > 0

    is_solved = [False] * len(windows)
    standings: list[Standing] = ["unclear"] * len(windows)
    if is_decidable:
        is_solved = _is_solved(table, highest, allowed, confidence)
        standings = _standings(table, is_solved, allowed, confidence)

    at_most = None
    if "enough" in standings:
        at_most = windows[standings.index("enough")]
    outcome = _outcome(standings[0], is_solved=is_solved[0])
    if is_compared and not is_decidable:
        outcome = "nothing learnt"
    is_rate = _is_rate(table, highest)
    return NeededMemory(
        outcome=outcome,
        at_least=_longest_short(windows, standings) + 1,
        at_most=at_most,
        reached=_reached(windows, table, standings, confidence, is_rate=is_rate),
        random=_over_tasks(chance, confidence, is_rate=is_rate),
    )


def _standings(
    table: Array, is_solved: Sequence[bool], allowed: float, confidence: float
) -> list[Standing]:
    ahead, radii = _differences(table, confidence)
    standings: list[Standing] = []
    for index, solved in enumerate(is_solved):
        if solved or (ahead[index] + radii[index] <= allowed).all():
            standings.append("enough")
        elif (ahead[index] - radii[index] > allowed).any():
            standings.append("short")
        else:
            standings.append("unclear")
    return standings


def _reached(
    windows: Sequence[int | None],
    table: Array,
    standings: Sequence[Standing],
    confidence: float,
    *,
    is_rate: bool,
) -> list[Reached]:
    ahead, radii = _differences(table, confidence)
    scores = _scores(table, confidence, is_rate=is_rate)
    best = int(table.mean((1, 2)).argmax())
    reached = []
    for index, window in enumerate(windows):
        gap = float(ahead[index, best])
        radius = float(radii[index, best])
        behind = Mean(gap, gap - radius, gap + radius)
        seed_means = table[index].mean(1).tolist()
        reached.append(Reached(window, scores[index], behind, standings[index], seed_means))
    return reached


def _longest_short(windows: Sequence[int | None], standings: Sequence[Standing]) -> int:
    """Return the longest window that is too short; 0 if there is none."""
    # Longer windows contain shorter ones, so only an unbroken row of short windows, from 1 on,
    # bounds the need.
    longest = 0
    for window, standing in zip(windows, standings, strict=True):
        if standing != "short" or window is None:
            break
        longest = window
    return longest


def _is_rate(table: Array, highest: float | None) -> bool:
    """Return whether scores are successes, or rates of success, whose intervals end in [0, 1]."""
    # A task that was played more than once has a rate.
    return bool(np.isin(table, (0, 1)).all()) or (highest == 1 and bool(table.min() >= 0))


def _outcome(shortest: Standing, *, is_solved: bool) -> Outcome:
    """Return the outcome by the standing of the shortest window."""
    if shortest == "short":
        return "needed"
    if shortest == "enough":
        return "not needed" if is_solved else "no difference"
    return "not settled"


def _check(windows: Sequence[int | None], table: Array, chance: Array) -> None:
    owner = "judge_memory"
    fits = table.ndim == 3 and table.size > 0
    if fits:
        num_windows, _, num_tasks = table.shape
        fits = num_windows == len(windows) and num_tasks == chance.size
    is_finite = bool(np.isfinite(table).all())
    holds = fits and is_finite
    require(owner, "scores", table.shape, holds, "be finite and fit [windows, seeds, tasks]")
    require(owner, "scores", table.shape, chance.size > 1, "be of several tasks")
    require(owner, "random", chance.shape, bool(np.isfinite(chance).all()), "be finite")

    lengths = [math.inf if window is None else window for window in windows]
    rises = lengths[0] == 1 and lengths == sorted(set(lengths))
    require(owner, "windows", windows, rises, "begin with 1 and rise")


def _seed_variances(table: Array) -> Array:
    """Estimate the variance ``[W]`` of each window's mean score, from the scatter of trainings."""
    num_seeds = table.shape[1]
    own = table.mean(2).var(1, ddof=1)
    # Two or three trainings estimate a variance badly, and may agree by luck, so all windows are
    # pooled. A window that scatters more than the pool keeps its own variance.
    return np.maximum(own, own.mean()) / num_seeds


def _differences(table: Array, confidence: float) -> tuple[Array, Array]:
    """Compute leads ``[i, j]`` of window ``j`` over window ``i``, and radii of their intervals."""
    num_windows, num_seeds, num_tasks = table.shape
    task_means = table.mean(1)
    gaps = task_means[None] - task_means[:, None]  # [W, W, tasks]
    # The error of playing a finite number of tasks. Without it, two trainings that happen to score
    # the same would look free of noise.
    variances = gaps.var(2, ddof=1) / num_tasks
    if num_seeds == 1:
        # Only over tasks, each interval by itself.
        quantile = student_quantile(num_tasks - 1, confidence)
    else:
        quantile = tukey_quantile(num_windows, num_windows * (num_seeds - 1), confidence)
        seed_variances = _seed_variances(table)
        between = seed_variances[None] + seed_variances[:, None]
        np.fill_diagonal(between, 0.0)
        variances = variances + between
    return gaps.mean(2), quantile * np.sqrt(variances)


def _lead(table: Array, chance: Array, confidence: float) -> tuple[float, float]:
    """Compute the best window's lead over a random policy, and the radius of its interval."""
    num_windows, num_seeds, num_tasks = table.shape
    best = int(table.mean((1, 2)).argmax())
    gap = table[best].mean(0) - chance
    variance = gap.var(ddof=1) / num_tasks
    freedom = num_tasks - 1
    if num_seeds > 1:
        variance = variance + _seed_variances(table)[best]
        freedom = num_windows * (num_seeds - 1)
    # Bonferroni: the best of several windows is ahead by luck more often than one is.
    quantile = student_quantile(freedom, 1 - (1 - confidence) / num_windows)
    return float(gap.mean()), float(quantile * np.sqrt(variance))


def _is_solved(
    table: Array, highest: float | None, allowed: float, confidence: float
) -> list[bool]:
    """Return flags of windows that no other can be ahead of by more than ``allowed``.

    Their scores are too close to the highest possible one.
    """
    num_windows, num_seeds, num_tasks = table.shape
    if highest is None:
        return [False] * num_windows
    variances = _seed_variances(table) + table.mean(1).var(1, ddof=1) / num_tasks
    quantile = tukey_quantile(num_windows, num_windows * (num_seeds - 1), confidence)
    lows = table.mean((1, 2)) - quantile * np.sqrt(variances)
    return (lows >= highest - allowed).tolist()


def _scores(table: Array, confidence: float, *, is_rate: bool) -> list[Mean]:
    """Compute each window's mean score, with Student's interval over seeds.

    With one seed, or if no two trainings with one window differ, the interval is over tasks.
    """
    num_windows, num_seeds, _ = table.shape
    if num_seeds == 1:
        return [_over_tasks(own[0], confidence, is_rate=is_rate) for own in table]

    quantile = student_quantile(num_windows * (num_seeds - 1), confidence)
    radii = quantile * np.sqrt(_seed_variances(table))
    scores = []
    for own, mean, radius in zip(table, table.mean((1, 2)), radii, strict=True):
        score = _mean(mean, mean - radius, mean + radius, is_rate=is_rate)
        if with_width(score.low, score.high) is None:
            score = _over_tasks(own.mean(0), confidence, is_rate=is_rate)
        scores.append(score)
    return scores


def _over_tasks(values: Array, confidence: float, *, is_rate: bool) -> Mean:
    """Compute the mean of one score per task, with its interval."""
    mean = float(values.mean())
    low, high = tasks_interval(values, confidence=confidence) or (mean, mean)
    return _mean(mean, low, high, is_rate=is_rate)


def _mean(value: float, low: float, high: float, *, is_rate: bool) -> Mean:
    if is_rate:
        low = max(low, 0.0)
        high = min(high, 1.0)
    return Mean(float(value), float(low), float(high))


def _describe_window(window: int | None) -> str:
    if window is None:
        return "all timesteps"
    return "1 timestep" if window == 1 else f"{window} timesteps"


def _describe_range(low: int, high: int | None) -> str:
    if high is None:
        return f"at least {low} timesteps"
    return f"between {low} and {high} timesteps" if low < high else f"{high} timesteps"
