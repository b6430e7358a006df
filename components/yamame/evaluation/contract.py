"""What published evaluations measure: a number per task, and what several seeds say of it on the same tasks.

A seed is trained, then every task of a fixed list is played once (`yamame.evaluation.evaluate` with ``task_seeds``).
The estimate is the mean over tasks, then over seeds. Its interval draws seeds and tasks again, both at once: a resample
has the same tasks for each of its seeds, so what a task is worth for all of them is no noise of one of them.

Source: the protocol of RSM (https://github.com/Jiaweeeeeen/RSM-ICLR, docs/EXPERIMENTS.md).
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from yamame.checks import require, require_at_least, require_choice
from yamame.evaluation.result import EvaluationResult

Outcome = Literal["above", "comparable", "below"]


def _success(result: EvaluationResult) -> Tensor:
    require("measure", "endpoint", "success", result.success is not None, "be told by the environment")
    assert result.success is not None
    return result.success


def _goals(result: EvaluationResult) -> Tensor:
    require("measure", "endpoint", "goals", result.num_goals is not None, "be of an environment with goals")
    assert result.num_goals is not None
    return result.returns / result.num_goals


ENDPOINTS: Mapping[str, Callable[[EvaluationResult], Tensor]] = {
    "accuracy": lambda result: (result.returns + 1) / 2,
    "doors": lambda result: (result.trial_returns >= 2).sum(1),
    "goals": _goals,
    "return": lambda result: result.returns,
    "success": _success,
}
"""What is measured of a task: the share of right answers where right and wrong ones pay as much, 1 and -1 in all; the
trials in which the key and the door were found; the share of its goals; the return; success."""


def measure(result: EvaluationResult, endpoint: str) -> Tensor:
    """An endpoint of every task, ``[E]`` float64.

    Raises:
        ValueError: There is no such endpoint, or the environment does not tell it.
    """
    require_choice("measure", "endpoint", endpoint, tuple(ENDPOINTS))
    return ENDPOINTS[endpoint](result).double()


class JointEstimate(NamedTuple):
    """A mean over tasks and seeds, its interval over both, and the mean of every seed."""

    value: float
    low: float
    high: float
    seeds: list[float]


def joint_estimate(
    scores: ArrayLike, *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> JointEstimate:
    """The mean of scores with the percentiles of a bootstrap over seeds and tasks.

    Args:
        scores: ``[seeds, tasks]``, finite.
        confidence: Coverage, in (0, 1).
        num_resamples: Resamples, of seeds and of tasks with replacement.
        seed: Of a generator of its own.

    Raises:
        ValueError: An argument is out of its range.

    >>> joint_estimate([[0.0, 1.0], [0.0, 1.0]]).seeds
    [0.5, 0.5]
    """
    table = np.asarray(scores, np.float64)
    good = table.ndim == 2 and table.size > 0 and bool(np.isfinite(table).all())
    require("joint_estimate", "scores", table.shape, good, "be finite [seeds, tasks]")
    require("joint_estimate", "confidence", confidence, 0.0 < confidence < 1.0, "be in (0, 1)")
    require_at_least("joint_estimate", 2, num_resamples=num_resamples)
    rng, (num_seeds, num_tasks) = np.random.default_rng(seed), table.shape
    means = [
        table[np.ix_(rng.integers(num_seeds, size=num_seeds), rng.integers(num_tasks, size=num_tasks))].mean()
        for _ in range(num_resamples)
    ]
    low, high = np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return JointEstimate(float(table.mean()), float(low), float(high), table.mean(1).tolist())


def judge(ours: float, published: float, margin: float) -> Outcome:
    """Whether two means lie within a margin; a closeness, no test.

    >>> judge(29.0, 29.8, 1.0), judge(31.0, 29.8, 1.0)
    ('comparable', 'above')
    """
    difference = ours - published
    return "comparable" if abs(difference) <= margin else "above" if difference > 0 else "below"
