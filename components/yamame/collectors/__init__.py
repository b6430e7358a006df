"""From a policy and environments to whole trajectories in replay."""

from yamame.collectors.assembly import TrajectoryAssembler as TrajectoryAssembler
from yamame.collectors.asynchronous import AsyncCollector as AsyncCollector
from yamame.collectors.base import Collector as Collector
from yamame.collectors.base import Episodes as Episodes
from yamame.collectors.episodes import EpisodeCollector as EpisodeCollector
from yamame.collectors.player import Player as Player
from yamame.collectors.sync import SyncCollector as SyncCollector
