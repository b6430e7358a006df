"""From a policy and environments to whole trajectories in replay."""

from yamame.collectors.assembly import TrajectoryAssembler as TrajectoryAssembler
from yamame.collectors.base import Collector as Collector
from yamame.collectors.base import Episodes as Episodes
from yamame.collectors.sync import SyncCollector as SyncCollector
