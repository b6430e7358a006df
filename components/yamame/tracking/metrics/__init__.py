"""Descriptions of all logged metrics: the one place that defines what each of them means.

The page ``docs/metrics.md`` and the labels of the report's plots are made from `METRICS`.
"""

from functools import lru_cache

from yamame.tracking.metrics.entry import Metric
from yamame.tracking.metrics.evaluation import EVALUATION
from yamame.tracking.metrics.running import RUNNING
from yamame.tracking.metrics.training import TRAINING

METRICS = EVALUATION + TRAINING + RUNNING
"""All metrics, in the order of the page."""


def matching(name: str) -> list[Metric]:
    """Return the descriptions that a logged name fits; exactly one for metrics of this package.

    >>> [metric.meaning for metric in matching("eval/return_mean_trial_2")]
    ['mean return of a trial']
    >>> matching("train/of_a_custom_loss")
    []
    """
    return [metric for metric in METRICS if metric.pattern.fullmatch(name)]


@lru_cache(maxsize=1024)
def label_of(name: str) -> str:
    """Return the label of an axis for a logged name; for unknown metrics the name in words.

    >>> label_of("eval/success_mean"), label_of("eval/energy_used")
    ('success, share of episodes', 'energy used')
    """
    found = matching(name)
    if found:
        return found[0].label
    return name.partition("/")[2].replace("_", " ")
