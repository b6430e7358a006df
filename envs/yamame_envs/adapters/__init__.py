"""Gymnasium environments as batched TorchRL environments, in this process or in worker processes.

This module imports nothing. Worker processes need only the part that plays Gymnasium environments,
which imports neither torch nor TorchRL. `yamame_envs` exports the public names.
"""
