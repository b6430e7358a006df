"""Replay of whole trajectories: storage on disk, windows, packing and hindsight relabelling."""

from yamame.replay.disk.buffer import TrajectoryReplayBuffer as TrajectoryReplayBuffer
from yamame.replay.disk.buffer import TrajectorySampler as TrajectorySampler
from yamame.replay.disk.buffer import TrajectoryWriter as TrajectoryWriter
from yamame.replay.disk.storage import TrajectoryFollower as TrajectoryFollower
from yamame.replay.disk.storage import TrajectoryStorage as TrajectoryStorage
from yamame.replay.frequencies import GoalFrequencies as GoalFrequencies
from yamame.replay.hindsight import RelabelKeys as RelabelKeys
from yamame.replay.on_policy import OnPolicyBuffer as OnPolicyBuffer
from yamame.replay.on_policy import minibatches as minibatches
from yamame.replay.packing import pack as pack
from yamame.replay.relabel import Relabel as Relabel
from yamame.replay.sequence_packing import SequencePacking as SequencePacking
from yamame.replay.subsampling import TrialSubsampling as TrialSubsampling
from yamame.replay.tasks import RelabelTasks as RelabelTasks
from yamame.replay.window import Window as Window
