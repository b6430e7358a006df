"""Curricula over task seeds: which tasks training plays, by what was learned from them so far."""

from yamame.curriculum.base import Curriculum as Curriculum
from yamame.curriculum.base import PlayedEpisodes as PlayedEpisodes
from yamame.curriculum.base import TDErrors as TDErrors
from yamame.curriculum.prioritized import PrioritizedReplay as PrioritizedReplay
from yamame.curriculum.replay import ObservedReplay as ObservedReplay
from yamame.curriculum.scores import advantages as advantages
from yamame.curriculum.scores import positive_value_loss as positive_value_loss
from yamame.curriculum.scores import value_loss as value_loss
