"""Yamame: in-context reinforcement learning from composable TorchRL components."""

__version__ = "0.1.0"
