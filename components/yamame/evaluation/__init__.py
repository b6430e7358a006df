"""Evaluation on held-out tasks: complete episodes, in-context curves, intervals and videos."""

from yamame.evaluation.contract import joint_estimate as joint_estimate
from yamame.evaluation.contract import judge as judge
from yamame.evaluation.contract import measure as measure
from yamame.evaluation.episode import describe_step as describe_step
from yamame.evaluation.episode import describe_timestep as describe_timestep
from yamame.evaluation.episode import play_episode as play_episode
from yamame.evaluation.episode import render_video as render_video
from yamame.evaluation.held_out import evaluate as evaluate
from yamame.evaluation.intervals import mean_interval as mean_interval
from yamame.evaluation.intervals import wilson_interval as wilson_interval
from yamame.evaluation.needed_memory import NeededMemory as NeededMemory
from yamame.evaluation.needed_memory import judge_memory as judge_memory
from yamame.evaluation.result import EvaluationResult as EvaluationResult
