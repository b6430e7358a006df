"""Annealed noise on the actions of a policy, applied while learning and never while evaluating."""

from yamame.exploration.base import Exploration as Exploration
from yamame.exploration.base import disable_exploration as disable_exploration
from yamame.exploration.edges import EdgeEpsilon as EdgeEpsilon
from yamame.exploration.epsilon import BilevelEpsilon as BilevelEpsilon
from yamame.exploration.epsilon import EpsilonGreedy as EpsilonGreedy
from yamame.exploration.epsilon import GaussianNoise as GaussianNoise
