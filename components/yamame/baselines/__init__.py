"""Learners of other kinds, to compare in-context agents with and to distil into them."""

from yamame.baselines.histories import learning_histories as learning_histories
from yamame.baselines.learner import Learner as Learner
from yamame.baselines.learner import LearningTask as LearningTask
from yamame.baselines.recurrent_ppo import RecurrentPPO as RecurrentPPO
from yamame.baselines.tabular import TabularQLearning as TabularQLearning
