"""Protocol of published evaluations: one number per task, and what several seeds say on the same
tasks.

A seed is trained, then every task of a fixed list is played once (`yamame.evaluation.evaluate` with
``task_seeds``). The estimate is the mean over tasks, then over seeds. It has two intervals:

- The one of the published protocol, a percentile bootstrap that resamples seeds and tasks. A
  resample has the same tasks for all of its seeds, so the difficulty of a task is not taken for
  noise of a seed. With three to five seeds it is too narrow, because so few seeds cannot be
  resampled in many ways. It is there to be compared with published ones.
- Student's over the means of the seeds, which covers the mean of all possible seeds on these tasks,
  for few seeds too.

If the seeds do not differ, there is no interval over seeds, only one over tasks.

Source: the protocol of RSM (https://github.com/Jiaweeeeeen/RSM-ICLR, docs/EXPERIMENTS.md).
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from yamame.checks import require, require_at_least, require_choice
from yamame.evaluation.intervals import Interval, mean_interval, tasks_interval, with_width
from yamame.evaluation.result import EvaluationResult

Outcome = Literal["above", "comparable", "below"]


def _success(result: EvaluationResult) -> Tensor:
    require(
        "measure",
        "endpoint",
        "success",
        result.success is not None,
        "be reported by the environment",
    )
    assert result.success is not None
    return result.success


def _goals(result: EvaluationResult) -> Tensor:
    require(
        "measure",
        "endpoint",
        "goals",
        result.num_goals is not None,
        "be of an environment with goals",
    )
    assert result.num_goals is not None
    return result.returns / result.num_goals


ENDPOINTS: Mapping[str, Callable[[EvaluationResult], Tensor]] = {
    "accuracy": lambda result: (result.returns + 1) / 2,
    "doors": lambda result: (result.trial_returns >= 2).sum(1),
    "goals": _goals,
    "return": lambda result: result.returns,
    "success": _success,
}
"""Measures of a task: the share of right answers, where these pay 1 in all and wrong ones -1; the
number of trials in which the key and the door were found; the share of its goals; the return;
success."""


def measure(result: EvaluationResult, endpoint: str) -> Tensor:
    """Compute an endpoint of every task, ``[E]`` float64.

    Raises:
        ValueError: There is no such endpoint, or the environment does not report it.
    """
    require_choice("measure", "endpoint", endpoint, tuple(ENDPOINTS))
    return ENDPOINTS[endpoint](result).double()


class JointEstimate(NamedTuple):
    """A mean over tasks and seeds with its intervals.

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


def joint_estimate(
    scores: ArrayLike, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> JointEstimate:
    """Estimate the mean score of several seeds on the same tasks.

    Args:
        scores: ``[seeds, tasks]``, finite.
        confidence: Coverage of all intervals, in (0, 1).
        num_resamples: Number of bootstrap resamples, of seeds and of tasks with replacement.
        seed: Seed of the generator that draws the resamples.

    Raises:
        ValueError: An argument is out of its range.
        ImportError: SciPy is not installed.

    >>> found = joint_estimate([[0.0, 1.0], [1.0, 1.0]])
    >>> found.value, found.seeds, found.bootstrap
    (0.75, [0.5, 1.0], (0.0, 1.0))
    """
    table = np.asarray(scores, np.float64)
    good = table.ndim == 2 and table.size > 0 and bool(np.isfinite(table).all())
    require("joint_estimate", "scores", table.shape, good, "be finite [seeds, tasks]")
    require("joint_estimate", "confidence", confidence, 0.0 < confidence < 1.0, "be in (0, 1)")
    require_at_least("joint_estimate", 2, num_resamples=num_resamples)
    num_seeds, num_tasks = table.shape
    value, of_seeds = float(table.mean()), table.mean(1)
    if num_seeds < 2:
        return JointEstimate(value, None, None, of_seeds.tolist())

    rng, means = np.random.default_rng(seed), []
    for _ in range(num_resamples):
        drawn = np.ix_(
            rng.integers(num_seeds, size=num_seeds), rng.integers(num_tasks, size=num_tasks)
        )
        means.append(table[drawn].mean())
    low, high = np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2])
    student = with_width(*mean_interval(torch.from_numpy(of_seeds), confidence=confidence))
    bootstrap = with_width(float(low), float(high))
    over_tasks = tasks_interval(table.mean(0), confidence=confidence)
    return JointEstimate(value, student, bootstrap, of_seeds.tolist(), over_tasks)


def judge(ours: float, published: float, margin: float) -> Outcome:
    """Compare two means: ``comparable`` within a margin, else ``above`` or ``below``. No test of
    significance.

    >>> judge(29.0, 29.8, 1.0), judge(31.0, 29.8, 1.0)
    ('comparable', 'above')
    """
    difference = ours - published
    return "comparable" if abs(difference) <= margin else "above" if difference > 0 else "below"
