"""The GRU encoder: the reference's size, and starts inside sequences against a plain loop."""

import itertools

import pytest
import torch
from yamame.trajectory import GRUEncoder, segment_positions


def test_the_number_of_parameters_is_that_of_the_reference() -> None:
    assert sum(p.numel() for p in GRUEncoder(256, hidden_size=256, out_features=256).parameters()) == 855_808


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.6, 1.0])
def test_starts_inside_sequences_agree_with_a_loop_over_segments(chance: float) -> None:
    torch.manual_seed(0)
    encoder = GRUEncoder(3, hidden_size=5, num_layers=2, out_features=4)
    x = torch.randn(4, 20, 3)
    starts = torch.rand(4, 20) < chance
    starts[:, 0] = True
    found = encoder.parallel(x, segment_positions(starts), starts)
    for b in range(4):
        bounds = [*starts[b].nonzero().flatten().tolist(), 20]
        for begin, end in itertools.pairwise(bounds):
            expected = encoder.norm(encoder.out(encoder.gru(x[b : b + 1, begin:end])[0]))[0]
            assert torch.allclose(found[b, begin:end], expected, atol=1e-6)


def test_gradients_through_segments_agree_with_a_loop_over_them() -> None:
    torch.manual_seed(0)
    encoder = GRUEncoder(3, hidden_size=5, num_layers=1, out_features=4)
    starts = torch.tensor([[1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 1]]).bool()
    x = torch.randn(2, 6, 3, requires_grad=True)
    weights = torch.randn(2, 6, 4)
    found = torch.autograd.grad((encoder.parallel(x, x[..., 0].long(), starts) * weights).sum(), x)[0]
    parts = []
    for b, bounds in enumerate(([0, 3, 6], [0, 1, 5, 6])):
        for begin, end in itertools.pairwise(bounds):
            h = encoder.norm(encoder.out(encoder.gru(x[b : b + 1, begin:end])[0]))[0]
            parts.append((h * weights[b, begin:end]).sum())
    expected = torch.autograd.grad(sum(parts), x)[0]
    assert torch.allclose(found, expected, atol=1e-6)


def test_nan_left_behind_by_an_episode_never_reaches_the_next() -> None:
    torch.manual_seed(0)
    encoder = GRUEncoder(3, hidden_size=5, out_features=4)
    clean, everything = torch.randn(2, 3), torch.ones(2).bool()
    expected = encoder.step(clean, None, everything)
    found = encoder.step(torch.full((2, 3), torch.nan), None, ~everything)
    assert found.isnan().all()
    assert torch.equal(encoder.step(clean, None, everything), expected)


def test_memory_has_the_same_size_at_any_length() -> None:
    encoder = GRUEncoder(3, hidden_size=5, num_layers=2)
    for _ in range(50):
        encoder.step(torch.randn(4, 3), None, torch.zeros(4).bool())
    assert encoder.memory_state_dict()["hidden"].shape == (2, 4, 5)
    assert encoder.context_length is None


@pytest.mark.parametrize("argument", ["hidden_size", "num_layers"])
def test_sizes_must_be_positive(argument: str) -> None:
    with pytest.raises(ValueError, match=f"GRUEncoder: {argument} must be at least 1, got 0"):
        GRUEncoder(3, **{argument: 0})
