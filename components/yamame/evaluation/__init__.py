"""Complete episodes on a fixed roster of tasks, in-context curves and intervals."""

from yamame.evaluation.film import film as film
from yamame.evaluation.intervals import bootstrap_interval as bootstrap_interval
from yamame.evaluation.intervals import interquartile_mean as interquartile_mean
from yamame.evaluation.intervals import wilson_interval as wilson_interval
from yamame.evaluation.result import EvaluationResult as EvaluationResult
from yamame.evaluation.roster import evaluate as evaluate
