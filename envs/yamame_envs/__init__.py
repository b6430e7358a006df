"""Natively batched TorchRL environments for in-context reinforcement learning."""
