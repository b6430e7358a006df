"""Yamame: in-context reinforcement learning from composable TorchRL components."""

from yamame.config import conf_dir as conf_dir

__version__ = "0.1.0"
