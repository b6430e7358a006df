"""Features over time -> context: the swappable sequence models."""

from yamame.trajectory.adapters.hf import HFEncoder as HFEncoder
from yamame.trajectory.adapters.mamba import MambaEncoder as MambaEncoder
from yamame.trajectory.base import TrajectoryEncoder as TrajectoryEncoder
from yamame.trajectory.base import TrajectoryKeys as TrajectoryKeys
from yamame.trajectory.blocks import BlockEncoder as BlockEncoder
from yamame.trajectory.blocks import RecurrentBlock as RecurrentBlock
from yamame.trajectory.delta_net import DeltaNetEncoder as DeltaNetEncoder
from yamame.trajectory.ffm import FFMEncoder as FFMEncoder
from yamame.trajectory.linear_recurrent import LinearRecurrentEncoder as LinearRecurrentEncoder
from yamame.trajectory.lru import LRUEncoder as LRUEncoder
from yamame.trajectory.matrix_memory import MatrixMemoryEncoder as MatrixMemoryEncoder
from yamame.trajectory.memoryless import MemorylessEncoder as MemorylessEncoder
from yamame.trajectory.mlstm import MLSTMEncoder as MLSTMEncoder
from yamame.trajectory.recurrent import GRUEncoder as GRUEncoder
from yamame.trajectory.recurrent import LSTMEncoder as LSTMEncoder
from yamame.trajectory.recurrent import RecurrentEncoder as RecurrentEncoder
from yamame.trajectory.segments.memo import MemoEncoder as MemoEncoder
from yamame.trajectory.segments.rsm import RSMEncoder as RSMEncoder
from yamame.trajectory.sigma import SigmaReparamLinear as SigmaReparamLinear
from yamame.trajectory.steps import segment_positions as segment_positions
from yamame.trajectory.steps import segment_starts as segment_starts
from yamame.trajectory.streams import separate_memory as separate_memory
from yamame.trajectory.transformer import TransformerEncoder as TransformerEncoder
from yamame.trajectory.window import WindowEncoder as WindowEncoder
