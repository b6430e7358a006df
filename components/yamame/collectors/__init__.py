"""Collectors: a policy acts in environments, and whole trajectories are stored in replay."""

from yamame.collectors.assembly import TrajectoryAssembler as TrajectoryAssembler
from yamame.collectors.base import Collector as Collector
from yamame.collectors.base import Episodes as Episodes
from yamame.collectors.base import PreparesToAct as PreparesToAct
from yamame.collectors.base import Remembers as Remembers
from yamame.collectors.cluster import RayCollector as RayCollector
from yamame.collectors.episodes import EpisodeCollector as EpisodeCollector
from yamame.collectors.sync import SyncCollector as SyncCollector
from yamame.execution.recorded_steps import Capturable as Capturable
