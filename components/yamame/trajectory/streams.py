"""Acting in two streams with one module: an evaluation within training, a second set of
environments.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from yamame.trajectory.base import TrajectoryEncoder


@contextmanager
def separate_memory(module: nn.Module) -> Iterator[None]:
    """Inside, every trajectory encoder in ``module`` acts from a fresh memory; afterwards its own
    is back.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from yamame.trajectory import GRUEncoder
    >>> encoder = GRUEncoder(3, hidden_size=8, out_features=4)
    >>> with separate_memory(encoder):
    ...     _ = encoder(TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5]))
    >>> encoder.memory is None
    True
    """
    encoders = [part for part in module.modules() if isinstance(part, TrajectoryEncoder)]
    # Copies, for a recorded step goes on writing into its own tensors; normal ones even under
    # inference mode.
    with torch.inference_mode(False):
        memories = [
            None if encoder.memory is None else encoder.memory.clone() for encoder in encoders
        ]
    for encoder in encoders:
        encoder.memory = None
    try:
        yield
    finally:
        for encoder, memory in zip(encoders, memories, strict=True):
            encoder.memory = memory
