"""The gated linear recurrence: its formula, long sequences, its first time constants and its
memory.
"""

import torch
from torch.nn import functional as F
from yamame.trajectory import LinearRecurrentEncoder, segment_positions


@torch.no_grad()
def step(encoder, x, is_init, step_index=None):
    """One timestep from the memory that the encoder keeps."""
    context, encoder.memory = encoder.step(x, encoder.ready_memory(is_init), is_init, step_index)
    return context


def drawn(length: int, *, chance: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    starts = torch.rand(3, length) < chance
    starts[:, 0] = True
    return torch.randn(3, length, 4), starts


def test_the_network_is_the_formula() -> None:
    x, starts = drawn(12, chance=0.2)
    encoder = LinearRecurrentEncoder(4, d_model=6, num_layers=2, activation="gelu")
    found = encoder.parallel(x, segment_positions(starts), starts)
    h = encoder.embed(x)
    for block in encoder.blocks:
        gate, value = block.gate_and_value(block.norm1(h)).chunk(2, -1)
        z, states, state = gate.sigmoid(), [], torch.zeros(3, 6)
        for t in range(12):
            state = torch.where(starts[:, t, None], torch.zeros(3, 6), state)
            state = (1 - z[:, t]) * state + z[:, t] * value[:, t]
            states.append(state)
        h = h + block.out(torch.stack(states, 1))
        h = h + block.down(F.gelu(block.up(block.norm2(h))))
    assert torch.allclose(found, encoder.norm(h), atol=1e-5)


def test_acting_equals_the_parallel_pass_over_a_thousand_steps() -> None:
    x, starts = drawn(1024, chance=0.002)
    encoder = LinearRecurrentEncoder(4, d_model=16, max_time_constant=1000.0).eval()
    with torch.no_grad():
        found = torch.stack([step(encoder, x[:, t], starts[:, t]) for t in range(1024)], 1)
        expected = encoder.parallel(x, segment_positions(starts), starts)
    assert torch.allclose(found, expected, atol=1e-5, rtol=0)


def test_time_constants_begin_between_one_and_the_longest() -> None:
    torch.manual_seed(0)
    block = LinearRecurrentEncoder(4, d_model=512, max_time_constant=50.0).blocks[0]
    constants = 1 / block.gate_and_value.bias[:512].sigmoid()
    # Drawn evenly, the smallest and the largest of 512 lie within a tenth of the ends.
    assert 1 <= constants.min() < 6
    assert 45 < constants.max() <= 50.01


def test_a_training_pass_moves_every_parameter() -> None:
    x, starts = drawn(9)
    encoder = LinearRecurrentEncoder(4, d_model=8)
    encoder.parallel(x, segment_positions(starts), starts).pow(3).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())


def test_nan_left_behind_by_an_episode_never_reaches_the_next() -> None:
    torch.manual_seed(0)
    encoder = LinearRecurrentEncoder(4, d_model=8).eval()
    clean, everything = torch.randn(2, 4), torch.ones(2).bool()
    expected = step(encoder, clean, everything)
    assert step(encoder, torch.full((2, 4), torch.nan), ~everything).isnan().all()
    assert torch.equal(step(encoder, clean, everything), expected)


def test_memory_has_the_same_size_at_any_length_and_single_precision_at_least() -> None:
    encoder = LinearRecurrentEncoder(4, d_model=8, num_layers=3).bfloat16()
    for _ in range(50):
        step(encoder, torch.randn(2, 4).bfloat16(), torch.zeros(2).bool())
    state = encoder.memory["state"]
    assert state.shape == (2, 3, 8)
    assert state.dtype == torch.float32
    assert encoder.context_length is None
