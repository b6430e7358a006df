"""What memory is for: to tell at the end of twenty timesteps what was seen at the first of them."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from yamame.trajectory import LinearRecurrentEncoder, LSTMEncoder, TrajectoryEncoder, WindowEncoder

LENGTH = 20


def draw(num_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, steps, starts, and the sign to remember: shown at first, followed by noise."""
    step = torch.arange(LENGTH).expand(num_rows, LENGTH)
    sign = torch.randint(2, (num_rows, 1)).float()
    shown = torch.where(step == 0, 2 * sign - 1, torch.randn(num_rows, LENGTH))
    return torch.stack((shown, (step == 0).float()), -1), step, step == 0, sign


def recalled(make: Callable[[], TrajectoryEncoder], num_updates: int = 200) -> float:
    """The share of signs that a trained encoder recalls at the last timestep."""
    torch.manual_seed(0)
    encoder = make()
    head = nn.Linear(encoder.out_features, 1)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-2)
    for _ in range(num_updates):
        *inputs, sign = draw(32)
        logits = head(encoder.parallel(*inputs)).squeeze(-1)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits, sign.expand_as(logits)).backward()
        optimizer.step()
    *inputs, sign = draw(512)
    with torch.no_grad():
        guess = head(encoder.parallel(*inputs))[:, -1] > 0
    return float((guess == sign.bool()).float().mean())


RECURRENT = {
    "lstm": lambda: LSTMEncoder(2, hidden_size=16, num_layers=1, out_features=16),
    "linear_recurrent": lambda: LinearRecurrentEncoder(2, d_model=16, num_layers=1),
    "window of all": lambda: WindowEncoder(2, window=LENGTH, d_model=16),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_an_encoder_whose_memory_is_long_enough_learns_to_recall(name):
    assert recalled(RECURRENT[name]) > 0.95


def test_a_window_that_has_passed_knows_nothing():
    # A guess is right in half of 512 cases; 0.1 is more than four standard deviations.
    assert abs(recalled(lambda: WindowEncoder(2, window=4, d_model=16)) - 0.5) < 0.1
