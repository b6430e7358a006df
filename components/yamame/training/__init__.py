"""Updates and the state of a run: learner, guard, budget, progress, seeds."""

from yamame.system.budget import Budget as Budget
from yamame.training.averaging import AveragedWeights as AveragedWeights
from yamame.training.guard import NonFiniteGuard as NonFiniteGuard
from yamame.training.learner import Learner as Learner
from yamame.training.muon import MuonAdamW as MuonAdamW
from yamame.training.prefetch import Prefetcher as Prefetcher
from yamame.training.progress import Progress as Progress
from yamame.training.regulator import OverfittingRegulator as OverfittingRegulator
from yamame.training.seeding import GlobalRNGState as GlobalRNGState
from yamame.training.seeding import seed_everything as seed_everything
