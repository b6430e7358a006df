"""The LSTM encoder: its size, and starts inside sequences against a plain loop."""

import itertools

import pytest
import torch
from yamame.trajectory import LSTMEncoder, segment_positions


@torch.no_grad()
def step(encoder, x, is_init, step_index=None):
    """One timestep from the memory that the encoder keeps."""
    context, encoder.memory = encoder.step(x, encoder.ready_memory(is_init), is_init, step_index)
    return context


def test_the_number_of_parameters_is_four_gates_per_layer() -> None:
    # Per layer 4 (128 x 128) twice and 4 x 128 twice; the linear map; the LayerNorm.
    expected = 2 * (2 * 4 * 128 * 128 + 2 * 4 * 128) + 128 * 128 + 128 + 2 * 128
    assert sum(p.numel() for p in LSTMEncoder(128, num_layers=2).parameters()) == expected


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.6, 1.0])
def test_starts_inside_sequences_agree_with_a_loop_over_segments(chance: float) -> None:
    torch.manual_seed(0)
    encoder = LSTMEncoder(3, hidden_size=5, num_layers=2, out_features=4)
    layers = torch.nn.LSTM(3, 5, 2, batch_first=True)
    layers.load_state_dict(encoder.layers.state_dict())
    x = torch.randn(4, 20, 3)
    starts = torch.rand(4, 20) < chance
    starts[:, 0] = True
    found = encoder.parallel(x, segment_positions(starts), starts)
    for b in range(4):
        bounds = [*starts[b].nonzero().flatten().tolist(), 20]
        for begin, end in itertools.pairwise(bounds):
            expected = encoder.norm(encoder.out(layers(x[b : b + 1, begin:end])[0]))[0]
            assert torch.allclose(found[b, begin:end], expected, atol=1e-6)


def test_nan_left_behind_by_an_episode_never_reaches_the_next() -> None:
    torch.manual_seed(0)
    encoder = LSTMEncoder(3, hidden_size=5, out_features=4)
    clean, everything = torch.randn(2, 3), torch.ones(2).bool()
    expected = step(encoder, clean, everything)
    found = step(encoder, torch.full((2, 3), torch.nan), ~everything)
    assert found.isnan().all()
    assert torch.equal(step(encoder, clean, everything), expected)


def test_memory_has_the_same_size_at_any_length() -> None:
    encoder = LSTMEncoder(3, hidden_size=5, num_layers=2)
    for _ in range(50):
        step(encoder, torch.randn(4, 3), torch.zeros(4).bool())
    assert encoder.memory["hidden"].shape == encoder.memory["cell"].shape == (4, 2, 5)
    assert encoder.context_length is None
