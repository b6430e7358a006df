"""The window encoder: its formula against a plain loop, and the exact end of its memory."""

import pytest
import torch
from torch.nn import functional as F
from yamame.trajectory import WindowEncoder, segment_positions


@torch.no_grad()
def step(encoder, x, is_init, step_index=None):
    """One timestep from the memory that the encoder keeps."""
    context, encoder.memory = encoder.step(x, encoder.ready_memory(is_init), is_init, step_index)
    return context


def test_the_network_is_the_formula() -> None:
    torch.manual_seed(0)
    encoder = WindowEncoder(3, window=4, d_model=6, activation="gelu")
    x, starts = torch.randn(3, 12, 3), torch.rand(3, 12) < 0.2
    starts[:, 0] = True
    position = segment_positions(starts)
    found = encoder.parallel(x, position, starts)
    for b in range(3):
        for t in range(12):
            window = torch.zeros(4, 4)
            for behind in range(min(4, int(position[b, t]) + 1)):
                window[3 - behind] = torch.cat((x[b, t - behind], torch.ones(1)))
            embedded = F.gelu(encoder.embed(window.flatten())).view(1, 1, 6)
            nothing = torch.zeros(1, 1)
            expected = encoder.network.parallel(embedded, nothing.long(), nothing.bool())[0, 0]
            assert torch.allclose(found[b, t], expected, atol=1e-5)


@pytest.mark.parametrize("window", [1, 3, 20])
def test_memory_ends_exactly_with_the_window_in_both_passes(window: int) -> None:
    torch.manual_seed(0)
    encoder = WindowEncoder(3, window=window, d_model=8).eval()
    x, starts = torch.randn(1, 10, 3), torch.arange(10).eq(0).unsqueeze(0)

    def act(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([step(encoder, x[:, t], starts[:, t]) for t in range(10)], 1)

    def parallel(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return encoder.parallel(x, segment_positions(starts), starts)

    for run in (act, parallel):
        expected = run(x)[:, -1]
        for t in range(10):
            changed = x.clone()
            changed[:, t] += 1
            differs = not torch.allclose(run(changed)[:, -1], expected, atol=1e-6)
            assert differs == (t > 9 - window)


def test_an_absent_timestep_is_told_from_one_whose_features_are_zero() -> None:
    torch.manual_seed(0)
    encoder = WindowEncoder(3, window=2, d_model=8).eval()
    x, present = torch.zeros(1, 2, 3), torch.tensor([[True, False]])
    with torch.no_grad():
        first, second = encoder.parallel(x, x[..., 0].long(), present)[0]
    assert not torch.allclose(first, second, atol=1e-3)


def test_acting_is_exact_when_the_ring_has_turned_often() -> None:
    torch.manual_seed(0)
    encoder = WindowEncoder(3, window=5, d_model=8).eval()
    x, starts = torch.randn(4, 60, 3), torch.rand(4, 60) < 0.05
    starts[:, 0] = True
    with torch.no_grad():
        expected = encoder.parallel(x, segment_positions(starts), starts)
    found = torch.stack([step(encoder, x[:, t], starts[:, t]) for t in range(60)], 1)
    assert torch.allclose(found, expected, atol=1e-5)
    assert encoder.memory["features"].shape == (4, 5, 4)
    assert encoder.context_length is None


def test_nan_left_behind_by_an_episode_never_reaches_the_next() -> None:
    torch.manual_seed(0)
    encoder = WindowEncoder(3, window=4, d_model=8).eval()
    clean, everything = torch.randn(2, 3), torch.ones(2).bool()
    expected = step(encoder, clean, everything)
    assert step(encoder, torch.full((2, 3), torch.nan), ~everything).isnan().all()
    assert torch.equal(step(encoder, clean, everything), expected)


def test_a_training_pass_moves_every_parameter() -> None:
    torch.manual_seed(0)
    encoder = WindowEncoder(3, window=4, d_model=8)
    starts = torch.arange(6).eq(0).expand(2, 6)
    encoder.parallel(torch.randn(2, 6, 3), segment_positions(starts), starts).pow(
        3
    ).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())


def test_dropout_acts_in_training_only() -> None:
    encoder = WindowEncoder(3, window=4, d_model=8, dropout=0.5)
    x, starts = torch.randn(2, 3), torch.ones(2).bool()
    assert not torch.equal(step(encoder, x, starts), step(encoder, x, starts))
    encoder.eval()
    assert torch.equal(step(encoder, x, starts), step(encoder, x, starts))
