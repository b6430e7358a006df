"""Protocol of published evaluations: one score per task, for several seeds on the same tasks.

Each seed is trained, then plays every task of a fixed list once (`yamame.evaluation.evaluate` with
``task_seeds``). The estimate is the mean over tasks, then over seeds, with two intervals:

- That of the published protocol: a percentile bootstrap over seeds and tasks. It is too narrow for
  three to five seeds, because so few seeds cannot be resampled in many ways, and serves to compare
  with published intervals.
- Student's, over the means of the seeds. It covers the mean of all possible seeds on these tasks,
  also for few seeds.

Source: the protocol of RSM (https://github.com/Jiaweeeeeen/RSM-ICLR, docs/EXPERIMENTS.md).
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from yamame.checks import Bounds, check_bounds, require, require_choice
from yamame.evaluation.intervals import (
    Confidence,
    Interval,
    mean_interval,
    tasks_interval,
    with_width,
)
from yamame.evaluation.result import EvaluationResult

Outcome = Literal["above", "comparable", "below"]


def _accuracy(result: EvaluationResult) -> Tensor:
    # Right answers pay 1 in all, wrong answers -1.
    return (result.returns + 1) / 2


def _doors(result: EvaluationResult) -> Tensor:
    # A trial pays 1 for the key and 1 for the door.
    return (result.trial_returns >= 2).sum(1)


def _goals(result: EvaluationResult) -> Tensor:
    has_goals = result.num_goals is not None
    require("measure", "endpoint", "goals", has_goals, "be of an environment with goals")
    assert result.num_goals is not None
    return result.returns / result.num_goals


def _return(result: EvaluationResult) -> Tensor:
    return result.returns


def _success(result: EvaluationResult) -> Tensor:
    is_reported = result.success is not None
    require("measure", "endpoint", "success", is_reported, "be reported by the environment")
    assert result.success is not None
    return result.success


ENDPOINTS: Mapping[str, Callable[[EvaluationResult], Tensor]] = {
    "accuracy": _accuracy,
    "doors": _doors,
    "goals": _goals,
    "return": _return,
    "success": _success,
}
"""Measures of a task: the share of right answers; the number of trials in which both the key and
the door were found; the share of reached goals; the return; success."""


def measure(result: EvaluationResult, endpoint: str) -> Tensor:
    """Compute an endpoint of every task, ``[E]`` float64.

    Args:
        result: Result of one episode per task.
        endpoint: Name in `ENDPOINTS`.

    Raises:
        ArgumentError: The endpoint is unknown, or the environment does not report it.
    """
    require_choice("measure", "endpoint", endpoint, tuple(ENDPOINTS))
    return ENDPOINTS[endpoint](result).double()


class JointEstimate(NamedTuple):
    """Mean over tasks and seeds, with intervals.

    Attributes:
        value: Mean over tasks, then over seeds.
        student: Both ends of Student's interval over the means of the seeds; None with fewer than
            two seeds, or if their means are equal.
        bootstrap: Both ends of the percentile bootstrap over seeds and tasks; None with fewer than
            two seeds, or if all scores are equal.
        seeds: Mean of each seed.
        tasks: Both ends of the interval over tasks, of the mean of these seeds; None with fewer
            than two seeds, or if there is no spread.
    """

    value: float
    student: Interval | None
    bootstrap: Interval | None
    seeds: list[float]
    tasks: Interval | None = None


@check_bounds
def joint_estimate(
    scores: ArrayLike,
    *,
    confidence: Confidence = 0.95,
    num_resamples: Annotated[int, Bounds(least=2)] = 2000,
    seed: int = 0,
) -> JointEstimate:
    """Estimate the mean score of several seeds on the same tasks.

    Args:
        scores: ``[seeds, tasks]``, finite.
        confidence: Coverage of all intervals, in (0, 1).
        num_resamples: Number of bootstrap resamples, of seeds and of tasks with replacement.
        seed: Seed of the generator that draws the resamples.

    Raises:
        ArgumentError: An argument is out of its range.
        ImportError: SciPy is not installed.

    >>> found = joint_estimate([[0.0, 1.0], [1.0, 1.0]])
    >>> found.value, found.seeds, found.bootstrap
    (0.75, [0.5, 1.0], (0.0, 1.0))
    """
    table = np.asarray(scores, np.float64)
    is_table = table.ndim == 2 and table.size > 0
    is_finite = bool(np.isfinite(table).all())
    holds = is_table and is_finite
    require("joint_estimate", "scores", table.shape, holds, "be finite [seeds, tasks]")
    num_seeds, num_tasks = table.shape
    value = float(table.mean())
    seed_means = table.mean(1)
    if num_seeds < 2:
        return JointEstimate(value, None, None, seed_means.tolist())

    rng = np.random.default_rng(seed)
    means = []
    for _ in range(num_resamples):
        seeds = rng.integers(num_seeds, size=num_seeds)
        tasks = rng.integers(num_tasks, size=num_tasks)
        # The same tasks for all seeds, so that hard tasks are not taken for noise between seeds.
        resample = table[np.ix_(seeds, tasks)]
        means.append(resample.mean())
    low, high = np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2])

    student = mean_interval(torch.from_numpy(seed_means), confidence=confidence)
    return JointEstimate(
        value=value,
        student=with_width(*student),
        bootstrap=with_width(float(low), float(high)),
        seeds=seed_means.tolist(),
        tasks=tasks_interval(table.mean(0), confidence=confidence),
    )


def judge(ours: float, published: float, margin: float) -> Outcome:
    """Compare two means: ``comparable`` within a margin, else ``above`` or ``below``.

    This is no test of significance.

    >>> judge(29.0, 29.8, 1.0), judge(31.0, 29.8, 1.0)
    ('comparable', 'above')
    """
    difference = ours - published
    if abs(difference) <= margin:
        return "comparable"
    return "above" if difference > 0 else "below"


def judge_estimate(
    ours: JointEstimate, published: float, margin: float
) -> tuple[Outcome, bool] | None:
    """Compare an estimate with a published mean.

    Returns:
        The outcome of `judge`, and whether all of Student's interval has the same outcome; None
        with a single seed.
    """
    if len(ours.seeds) < 2:
        return None
    outcome = judge(ours.value, published, margin)
    ends = [judge(end, published, margin) for end in ours.student or ()]
    return outcome, bool(ends) and all(end == outcome for end in ends)


def judge_threshold(ours: JointEstimate, threshold: float) -> dict[str, Any]:
    """Compare the mean of every seed with a threshold.

    Returns:
        ``threshold``; ``reached``: for each seed, whether its mean over tasks is at least the
        threshold.

    >>> judge_threshold(JointEstimate(0.75, None, None, [0.5, 1.0]), 1.0)
    {'threshold': 1.0, 'reached': [False, True]}
    """
    return {"threshold": threshold, "reached": [mean >= threshold for mean in ours.seeds]}
