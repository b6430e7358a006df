"""Complete episodes on a fixed roster of tasks, in-context curves and intervals."""

from yamame.evaluation.describe import describe_step as describe_step
from yamame.evaluation.describe import describe_timestep as describe_timestep
from yamame.evaluation.episode import play_episode as play_episode
from yamame.evaluation.film import film as film
from yamame.evaluation.intervals import bootstrap_interval as bootstrap_interval
from yamame.evaluation.intervals import wilson_interval as wilson_interval
from yamame.evaluation.result import EvaluationResult as EvaluationResult
from yamame.evaluation.roster import evaluate as evaluate
