"""Memory models whose blocks have a recurrence: the papers' formulas, long sequences, low
precision, and memory of constant size.
"""

import math

import pytest
import torch
from torch.nn import functional as F
from yamame.checks import ArgumentError
from yamame.trajectory import (
    DeltaNetEncoder,
    FFMEncoder,
    LinearRecurrentEncoder,
    LRUEncoder,
    MLSTMEncoder,
    segment_positions,
)

MAKE = {
    "mingru": lambda: LinearRecurrentEncoder(4, d_model=8, expansion=2, positive=True),
    "lru": lambda: LRUEncoder(4, d_model=8),
    "ffm": lambda: FFMEncoder(4, d_model=8, num_traces=6, num_contexts=3),
    "mlstm": lambda: MLSTMEncoder(4, d_model=16, num_heads=2),
    "deltanet": lambda: DeltaNetEncoder(4, d_model=16, num_heads=2),
}
every = pytest.mark.parametrize("name", MAKE)
STATES = {"mingru": (16,), "lru": (8, 2), "ffm": (6, 3, 2), "mlstm": (2, 8, 9)}
STATES |= {"deltanet": (2, 8, 8)}


def made(name):
    torch.manual_seed(0)
    return MAKE[name]().eval()


def drawn(length, *, chance=0.1):
    starts = torch.rand(3, length) < chance
    starts[:, 0] = True
    return torch.randn(3, length, 4), starts


def acted(encoder, x, starts):
    """Contexts of one step after the other, and the last memory."""
    memory, contexts = encoder.init_memory(len(x)), []
    for t in range(x.shape[1]):
        context, memory = encoder.step(x[:, t], memory, starts[:, t])
        contexts.append(context)
    return torch.stack(contexts, 1), memory


def mingru(block, x, before):
    gate, value = block.gate_and_value(x).chunk(2, -1)
    z = gate.sigmoid()
    candidate = torch.where(value >= 0, value + 0.5, value.sigmoid())
    h = (1 - z) * (0 if before is None else before) + z * candidate
    return block.out(h), h


def lru(block, x, before):
    lam = torch.exp(-block.log_rate.exp() + 1j * block.log_phase.exp())
    inputs = torch.view_as_complex(block.inputs(x).unflatten(-1, (8, 2)))
    h = block.log_gain.exp() * inputs + (0 if before is None else lam * before)
    c = torch.complex(block.out.weight[:, ::2], -block.out.weight[:, 1::2])
    return (h @ c.mT).real + block.out.bias + block.skip * x, h


def ffm(block, x, before):
    value, gate = block.inputs(x).chunk(2, -1)
    gamma = torch.exp(-block.alpha.abs().unsqueeze(1) + 1j * block.omega)
    added = (value * gate.sigmoid()).unsqueeze(-1).expand(-1, 6, 3) + 0j
    s = added + (0 if before is None else gamma * before)
    z = block.read(torch.view_as_real(s).flatten(1))
    g, skip = block.gate_and_skip(x).chunk(2, -1)
    g = g.sigmoid()
    return F.layer_norm(z, (8,)) * g + skip * (1 - g), s


def heads(block, x):
    q, k, v = block.qkv(x).chunk(3, -1)
    return tuple(part.unflatten(-1, (2, 8)) for part in (q, k, v)), block.gates(x).chunk(2, -1)


def scaled(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-2)


def mlstm(block, x, before):
    (q, k, v), (write, keep) = heads(block, x)
    k = k / math.sqrt(8)
    i = (15 * torch.tanh(write / 15)).exp()[..., None]
    f = keep.sigmoid()[..., None]
    c, n = (torch.zeros(3, 2, 8, 8), torch.zeros(3, 2, 8)) if before is None else before
    c = f[..., None] * c + i[..., None] * torch.einsum("bhv,bhk->bhvk", v, k)
    n = f * n + i * k
    total = torch.einsum("bhk,bhk->bh", n, q).abs().clamp(min=1)[..., None]
    h = scaled(torch.einsum("bhvk,bhk->bhv", c, q) / total)
    return block.out(block.output_gate(x).sigmoid() * h.flatten(1)), (c, n)


def deltanet(block, x, before):
    (q, k, v), (write, keep) = heads(block, x)
    q, k, v = F.normalize(F.silu(q), dim=-1), F.normalize(F.silu(k), dim=-1), F.silu(v)
    alpha, beta = keep.sigmoid()[..., None, None], write.sigmoid()[..., None, None]
    s = torch.zeros(3, 2, 8, 8) if before is None else before
    erase = torch.eye(8) - beta * torch.einsum("bhi,bhj->bhij", k, k)
    s = s @ (alpha * erase) + beta * torch.einsum("bhv,bhk->bhvk", v, k)
    o = scaled(torch.einsum("bhvk,bhk->bhv", s, q))
    return block.out(F.silu(block.output_gate(x)) * o.flatten(1)), s


FORMULAS = {"mingru": mingru, "lru": lru, "ffm": ffm, "mlstm": mlstm, "deltanet": deltanet}


@every
@torch.no_grad()
def test_the_network_is_the_formula(name):
    encoder = made(name)
    x, _ = drawn(12)
    starts = torch.zeros(3, 12).bool()
    starts[:, 0] = starts[:, 5] = True  # in all rows, so that the formula needs no mask
    found = encoder.parallel(x, segment_positions(starts), starts)

    h = encoder.embed(x)
    for block in encoder.blocks:
        outputs, before = [], None
        for t in range(12):
            before = None if starts[0, t] else before
            output, before = FORMULAS[name](block, block.norm1(h[:, t]), before)
            outputs.append(output)
        h = h + torch.stack(outputs, 1)
        h = h + block.down(F.leaky_relu(block.up(block.norm2(h))))
    assert torch.allclose(found, encoder.norm(h), atol=1e-5)


@every
@torch.no_grad()
def test_acting_equals_the_parallel_pass_over_a_thousand_steps(name):
    encoder = made(name)
    x, starts = drawn(1000, chance=0.004)
    steps, _ = acted(encoder, x, starts)
    expected = encoder.parallel(x, segment_positions(starts), starts)
    assert torch.allclose(steps, expected, atol=1e-5, rtol=0)


@every
@torch.no_grad()
def test_both_passes_agree_in_bfloat16_and_states_stay_in_single_precision(name):
    encoder = made(name)
    x, starts = drawn(100)
    exact = encoder.parallel(x, segment_positions(starts), starts)
    with torch.autocast("cpu", torch.bfloat16):
        steps, memory = acted(encoder, x, starts)
        expected = encoder.parallel(x, segment_positions(starts), starts)
    assert memory["state"].dtype == torch.float32
    # Layers round their inputs to 2^-9 of them in either pass, and then differ by some roundings.
    assert (steps - expected).abs().max() < 0.05
    assert 0 < (expected - exact).abs().max() < 0.5


@every
def test_memory_has_one_size_and_every_parameter_learns(name):
    encoder = made(name)
    x, starts = drawn(40)
    with torch.no_grad():
        _, memory = acted(encoder.bfloat16(), x.bfloat16(), starts)
    assert memory["state"].shape == (3, 2, *STATES[name])
    assert memory["state"].dtype == torch.float32
    assert encoder.context_length is None
    encoder = encoder.float()
    encoder.parallel(x, segment_positions(starts), starts).pow(3).sum().backward()
    unmoved = [n for n, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert unmoved == []


@every
@torch.no_grad()
def test_nan_left_behind_by_an_episode_never_reaches_the_next(name):
    encoder = made(name)
    clean, begins = torch.randn(2, 4), torch.ones(2).bool()
    expected, memory = encoder.step(clean, encoder.init_memory(2), begins)
    broken, memory = encoder.step(torch.full((2, 4), torch.nan), memory, ~begins)
    assert broken.isnan().all()
    found, _ = encoder.step(clean, memory, begins)
    assert torch.equal(found, expected)


@torch.no_grad()
def test_an_input_gate_that_opens_wide_leaves_numbers_finite():
    encoder = made("mlstm")
    x, starts = drawn(300, chance=0.0)
    for block in encoder.blocks:
        block.gates.bias[:2] = 1e4
    found = encoder.parallel(x, segment_positions(starts), starts)
    assert found.isfinite().all()
    assert torch.allclose(acted(encoder, x, starts)[0], found, atol=1e-3)


@pytest.mark.parametrize("kind", [MLSTMEncoder, DeltaNetEncoder])
def test_heads_divide_the_width(kind):
    with pytest.raises(ArgumentError, match="multiple of num_heads 3") as raised:
        kind(4, d_model=8, num_heads=3)
    assert (raised.value.owner, raised.value.name) == (kind.__name__, "d_model")


def test_channels_of_an_lru_begin_within_their_time_constants_and_phases():
    torch.manual_seed(0)
    block = LRUEncoder(4, d_model=512, max_time_constant=50.0, max_phase=1.0).blocks[0]
    constants, phases = (-block.log_rate).exp(), block.log_phase.exp()
    assert 1 <= constants.min() < 2
    assert 45 < constants.max() <= 50.01
    assert phases.min() > 0
    assert 0.95 < phases.max() <= 1.0


@pytest.mark.parametrize("longest", [10.0, 1e8, 1e12])
def test_gains_of_an_lru_begin_as_in_the_formula_however_long_it_keeps(longest):
    torch.manual_seed(0)
    block = LRUEncoder(4, d_model=64, max_time_constant=longest).blocks[0]
    magnitude = (-block.log_rate.double().exp()).exp()
    expected = (1 - magnitude.square()).sqrt().log()
    torch.testing.assert_close(block.log_gain.double(), expected, rtol=1e-4, atol=1e-4)
