"""How long a gated memory remembers before anything is learnt.

A gate that keeps a share sigmoid(b) of the memory at every timestep forgets with the time constant T = 1 + exp(b).
With the usual biases near zero T is about 2, and over a hundred timesteps no gradient is left to learn from. Spread
over all lengths that matter, channels of every T are there from the beginning (arXiv 1804.11188, which draws T evenly;
on a logarithmic scale there are fast channels as well, and what is seen now is acted upon at once).
"""

import math

import torch
from torch import Tensor


def keep_bias(size: int, *, longest: float) -> Tensor:
    """Biases ``[size]`` of gates that keep, with time constants drawn evenly between 1 and ``longest`` timesteps on a
    logarithmic scale.

    Raises:
        ValueError: If ``longest`` is below 1.

    >>> _ = torch.manual_seed(0)
    >>> time_constant = 1 + keep_bias(10_000, longest=101.0).exp()
    >>> round(time_constant.mean().item()), round(time_constant.max().item())
    (22, 101)
    """
    if not longest >= 1:
        raise ValueError(f"keep_bias: longest must be at least 1, got {longest}")
    time_constant = torch.empty(size).uniform_(0.0, math.log(longest)).exp()
    return (time_constant - 1).clamp(min=0.1).log()
