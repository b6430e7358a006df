"""Gated memories begin with time constants of all lengths: there is a gradient across a hundred
timesteps.
"""

import pytest
import torch
from yamame.trajectory import (
    DeltaNetEncoder,
    FFMEncoder,
    GRUEncoder,
    LinearRecurrentEncoder,
    LRUEncoder,
    LSTMEncoder,
    MLSTMEncoder,
)

MAKERS = {
    "gru": lambda longest: GRUEncoder(4, hidden_size=32, out_features=8, max_time_constant=longest),
    "lstm": lambda longest: LSTMEncoder(
        4, hidden_size=32, out_features=8, max_time_constant=longest
    ),
    "linear_recurrent": lambda longest: LinearRecurrentEncoder(
        4, d_model=32, max_time_constant=longest
    ),
    "lru": lambda longest: LRUEncoder(4, d_model=32, max_time_constant=longest),
    "ffm": lambda longest: FFMEncoder(4, d_model=32, max_time_constant=longest),
    "mlstm": lambda longest: MLSTMEncoder(4, d_model=32, max_time_constant=longest),
    "deltanet": lambda longest: DeltaNetEncoder(4, d_model=32, max_time_constant=longest),
}


def reach(name: str, longest: float, length: int = 101) -> float:
    """Size of the derivative of the last output by the first input, summed over outputs and
    sequences.
    """
    torch.manual_seed(0)
    x = torch.randn(16, length, 4, requires_grad=True)
    step = torch.arange(length).expand(16, length)
    torch.manual_seed(1)
    encoder = MAKERS[name](longest)
    weight = torch.randn(encoder.out_features)  # a LayerNorm's outputs sum to zero
    (encoder.parallel(x, step, step == 0)[:, -1] * weight).sum().backward()
    return float(x.grad[:, 0].norm())


@pytest.mark.parametrize("name", MAKERS)
def test_the_first_input_is_felt_a_hundred_steps_later_where_memories_begin_long(name):
    # With time constants of one or two steps what is left after a hundred is 2^-100 of it at most.
    assert reach(name, 128.0) > 1e6 * reach(name, 1.0)
    assert reach(name, 128.0) > 1e-3
