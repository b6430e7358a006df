"""Comparison of the two passes of an encoder around layers of another library."""

import torch
from torch import Tensor

from yamame.trajectory.base import TrajectoryEncoder
from yamame.trajectory.steps import segment_positions

PARITY = 1e-5
"""Largest allowed difference of the two passes in float32, after a norm."""


@torch.no_grad()
def difference_of_passes(encoder: TrajectoryEncoder, length: int) -> Tensor:
    """Return the largest difference between the parallel pass and steps, in eval mode.

    On two sequences of ``length`` timesteps, at least 2, of which the second has two starts. NaN if
    an output is NaN.
    """
    device = next(encoder.parameters(), torch.empty(0)).device
    x = torch.linspace(-1.0, 1.0, 2 * length * encoder.in_features, device=device)
    x = x.view(2, length, -1)
    is_init = torch.zeros(2, length, dtype=torch.bool, device=device)
    is_init[:, 0] = True
    is_init[1, length // 2] = True
    position = segment_positions(is_init)

    mode = encoder.training
    encoder.eval()  # without dropout
    parallel = encoder.parallel(x, position, is_init)
    steps = TrajectoryEncoder.parallel(encoder, x, position, is_init)
    encoder.train(mode)
    return (parallel - steps).abs().max()
