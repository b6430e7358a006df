"""Acting in two streams with one module, such as an evaluation during training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from yamame.trajectory.base import TrajectoryEncoder


@contextmanager
def separate_memory(module: nn.Module) -> Iterator[None]:
    """Start with fresh memories inside, and restore the former ones afterwards.

    Args:
        module: Module whose trajectory encoders are affected.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from yamame.trajectory import GRUEncoder
    >>> encoder = GRUEncoder(3, hidden_size=8, out_features=4)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> with separate_memory(encoder):
    ...     _ = encoder(envs)
    >>> encoder.memory is None
    True
    """
    encoders = [part for part in module.modules() if isinstance(part, TrajectoryEncoder)]
    memories = []
    last_steps = []
    # Normal tensors even under inference mode.
    with torch.inference_mode(False):
        for encoder in encoders:
            # A copy: recorded steps keep writing into the tensors of the original.
            memory = None if encoder.memory is None else encoder.memory.clone()
            memories.append(memory)
            last_steps.append(encoder.last_step)
            encoder.memory = None
    try:
        yield
    finally:
        for encoder, memory, last_step in zip(encoders, memories, last_steps, strict=True):
            encoder.memory = memory
            encoder.last_step = last_step
