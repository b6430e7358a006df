"""The LSTM encoder: its size, starts inside sequences against a plain loop, and its prepared step."""

import itertools

import pytest
import torch
from yamame.trajectory import LSTMEncoder, segment_positions


def test_the_number_of_parameters_is_four_gates_per_layer() -> None:
    # Per layer 4 (128 x 128) twice and 4 x 128 twice; the linear map; the LayerNorm.
    expected = 2 * (2 * 4 * 128 * 128 + 2 * 4 * 128) + 128 * 128 + 128 + 2 * 128
    assert sum(p.numel() for p in LSTMEncoder(128).parameters()) == expected


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.6, 1.0])
def test_starts_inside_sequences_agree_with_a_loop_over_segments(chance: float) -> None:
    torch.manual_seed(0)
    encoder = LSTMEncoder(3, hidden_size=5, num_layers=2, out_features=4)
    x = torch.randn(4, 20, 3)
    starts = torch.rand(4, 20) < chance
    starts[:, 0] = True
    found = encoder.parallel(x, segment_positions(starts), starts)
    for b in range(4):
        bounds = [*starts[b].nonzero().flatten().tolist(), 20]
        for begin, end in itertools.pairwise(bounds):
            expected = encoder.norm(encoder.out(encoder.lstm(x[b : b + 1, begin:end])[0]))[0]
            assert torch.allclose(found[b, begin:end], expected, atol=1e-6)


def test_nan_left_behind_by_an_episode_never_reaches_the_next() -> None:
    torch.manual_seed(0)
    encoder = LSTMEncoder(3, hidden_size=5, out_features=4)
    clean, everything = torch.randn(2, 3), torch.ones(2).bool()
    expected = encoder.step(clean, None, everything)
    found = encoder.step(torch.full((2, 3), torch.nan), None, ~everything)
    assert found.isnan().all()
    assert torch.equal(encoder.step(clean, None, everything), expected)


def acted(encoder: LSTMEncoder) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    encoder.reset_memory()
    draws = [
        (torch.randn(4, 3, generator=generator), torch.rand(4, generator=generator) < 0.1) for _ in range(30)
    ]
    return torch.stack([encoder.step(x, None, starts) for x, starts in draws], 1)


def test_prepared_steps_equal_plain_ones_and_use_the_weights_of_their_preparation() -> None:
    torch.manual_seed(0)
    encoder = LSTMEncoder(3, hidden_size=5, out_features=4).eval()
    expected = acted(encoder)
    encoder.prepare()
    assert encoder._prepared is not None
    # The same products in another order: equal up to rounding.
    assert torch.allclose(acted(encoder), expected, atol=1e-5)
    with torch.no_grad():
        for parameter in encoder.lstm.parameters():
            parameter.mul_(1.3)
    encoder.prepare()
    found = acted(encoder)
    encoder.train().eval()
    assert torch.allclose(found, acted(encoder), atol=1e-5)
    assert not torch.allclose(found, expected, atol=1e-3)


def test_products_in_lower_precision_change_little_and_the_memory_keeps_its_own() -> None:
    torch.manual_seed(0)
    encoder = LSTMEncoder(3, hidden_size=5, out_features=4).eval()
    expected = acted(encoder)
    encoder.prepare(torch.bfloat16)
    found = acted(encoder)
    # bfloat16 keeps 8 bits: errors of a few times 2^-8 on outputs of order one.
    assert 1e-5 < (found - expected).abs().max() < 0.1
    assert {value.dtype for value in encoder.memory_state_dict().values()} == {torch.int64, torch.float32}


def test_memory_has_the_same_size_at_any_length() -> None:
    encoder = LSTMEncoder(3, hidden_size=5, num_layers=2)
    for _ in range(50):
        encoder.step(torch.randn(4, 3), None, torch.zeros(4).bool())
    memory = encoder.memory_state_dict()
    assert memory["hidden"].shape == memory["cell"].shape == (2, 4, 5)
    assert encoder.context_length is None


@pytest.mark.parametrize("argument", ["hidden_size", "num_layers"])
def test_sizes_must_be_positive(argument: str) -> None:
    with pytest.raises(ValueError, match=f"LSTMEncoder: {argument} must be at least 1, got 0"):
        LSTMEncoder(3, **{argument: 0})
