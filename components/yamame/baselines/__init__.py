"""Learners of other kinds: what in-context agents are compared with, and what they are distilled
from.
"""

from yamame.baselines.histories import learning_histories as learning_histories
from yamame.baselines.tabular import TabularQLearning as TabularQLearning
