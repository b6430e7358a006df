"""Diagnoses of an agent's memory, measured on recorded episodes."""

from yamame.evaluation.diagnosis.episodes import record_episodes as record_episodes
from yamame.evaluation.diagnosis.probes import ProbeCurve as ProbeCurve
from yamame.evaluation.diagnosis.probes import probe as probe
from yamame.evaluation.diagnosis.recall import RecallCurve as RecallCurve
from yamame.evaluation.diagnosis.recall import recall_density as recall_density
