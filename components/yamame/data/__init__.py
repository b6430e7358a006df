"""Existing trajectories as sources of batches, alone or mixed with collected ones."""

from yamame.data.format import TrajectoryFormat as TrajectoryFormat
from yamame.data.lerobot_export import write_lerobot as write_lerobot
from yamame.data.source import DataSource as DataSource
from yamame.data.source import MemoryStore as MemoryStore
from yamame.data.source import Mixture as Mixture
from yamame.data.source import TrajectoryDataset as TrajectoryDataset
from yamame.data.sources import amago as amago
from yamame.data.sources import hdf5 as hdf5
from yamame.data.sources import lerobot as lerobot
from yamame.data.sources import minari as minari
from yamame.data.sources import npz as npz
from yamame.data.sources import runs as runs
from yamame.data.sources import torchrl as torchrl
