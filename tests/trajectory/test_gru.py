"""The GRU encoder: the reference's size, starts inside sequences against a plain loop, and what it
begins with.
"""

import itertools
from contextlib import nullcontext

import pytest
import torch
from yamame.execution.capturing import recording
from yamame.trajectory import GRUEncoder, LSTMEncoder, segment_positions


@torch.no_grad()
def step(encoder, x, is_init, step_index=None):
    """One timestep from the memory that the encoder keeps."""
    context, encoder.memory = encoder.step(x, encoder.ready_memory(is_init), is_init, step_index)
    return context


def test_the_number_of_parameters_is_that_of_the_reference() -> None:
    encoder = GRUEncoder(256, hidden_size=256, num_layers=2, out_features=256)
    assert sum(p.numel() for p in encoder.parameters()) == 855_808


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.6, 1.0])
def test_starts_inside_sequences_agree_with_a_loop_over_segments(chance: float) -> None:
    torch.manual_seed(0)
    encoder = GRUEncoder(3, hidden_size=5, num_layers=2, out_features=4)
    layers = torch.nn.GRU(3, 5, 2, batch_first=True)
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


def test_gradients_through_segments_agree_with_a_loop_over_them() -> None:
    torch.manual_seed(0)
    encoder = GRUEncoder(3, hidden_size=5, num_layers=1, out_features=4)
    layers = torch.nn.GRU(3, 5, 1, batch_first=True)
    layers.load_state_dict(encoder.layers.state_dict())
    starts = torch.tensor([[1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 1]]).bool()
    x = torch.randn(2, 6, 3, requires_grad=True)
    weights = torch.randn(2, 6, 4)
    found = torch.autograd.grad((encoder.parallel(x, x[..., 0].long(), starts) * weights).sum(), x)[
        0
    ]
    parts = []
    for b, bounds in enumerate(([0, 3, 6], [0, 1, 5, 6])):
        for begin, end in itertools.pairwise(bounds):
            h = encoder.norm(encoder.out(layers(x[b : b + 1, begin:end])[0]))[0]
            parts.append((h * weights[b, begin:end]).sum())
    expected = torch.autograd.grad(sum(parts), x)[0]
    assert torch.allclose(found, expected, atol=1e-6)


def test_nan_left_behind_by_an_episode_never_reaches_the_next() -> None:
    torch.manual_seed(0)
    encoder = GRUEncoder(3, hidden_size=5, out_features=4)
    clean, everything = torch.randn(2, 3), torch.ones(2).bool()
    expected = step(encoder, clean, everything)
    found = step(encoder, torch.full((2, 3), torch.nan), ~everything)
    assert found.isnan().all()
    assert torch.equal(step(encoder, clean, everything), expected)


def test_memory_has_the_same_size_at_any_length() -> None:
    encoder = GRUEncoder(3, hidden_size=5, num_layers=2)
    for _ in range(50):
        step(encoder, torch.randn(4, 3), torch.zeros(4).bool())
    assert encoder.memory["hidden"].shape == (4, 2, 5)
    assert encoder.context_length is None


def gained(gate_gain: float, kind: type = GRUEncoder) -> GRUEncoder | LSTMEncoder:
    torch.manual_seed(0)
    return kind(16, hidden_size=32, num_layers=2, out_features=32, gate_gain=gate_gain)


@pytest.mark.parametrize(("kind", "gates"), [(GRUEncoder, slice(32, 64)), (LSTMEncoder, slice(64))])
def test_the_gain_scales_how_gates_of_memory_depend_on_the_input(kind: type, gates: slice) -> None:
    plain, encoder = gained(1.0, kind).state_dict(), gained(8.0, kind).state_dict()
    for layer in ("l0", "l1"):
        plain[f"layers.weight_ih_{layer}"][gates] *= 8.0
    assert all(torch.equal(plain[key], value) for key, value in encoder.items())


def test_with_a_gain_what_was_seen_once_survives_a_hundred_equal_timesteps() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 101, 16)
    x[:, 1:] = torch.randn(16)
    starts = torch.arange(101).expand(2, -1) == 0
    left = []
    for gain in (1.0, 8.0):
        with torch.no_grad():
            first, second = gained(gain).parallel(x, segment_positions(starts), starts)[:, -1]
        left.append((first - second).norm())
    assert left[1] > 10 * left[0]


@pytest.mark.parametrize("kind", [GRUEncoder, LSTMEncoder])
def test_memory_is_rounded_after_every_timestep_and_between_layers(kind: type) -> None:
    torch.manual_seed(0)
    plain = kind(3, hidden_size=5, num_layers=2, out_features=4)
    encoder = kind(3, hidden_size=5, num_layers=2, out_features=4, memory_resolution=0.125)
    encoder.load_state_dict(plain.state_dict())
    states, is_init = None, torch.ones(2).bool()
    for _ in range(20):
        x = torch.randn(2, 3)
        found = step(encoder, x, is_init)
        if states is None:
            states = [[torch.zeros(2, 5) for _ in encoder.states] for _ in range(2)]
        for layer, weights in enumerate(plain.layers.all_weights):
            states[layer] = [
                (8 * state).round() / 8 for state in plain._cell(x, tuple(states[layer]), weights)
            ]
            x = states[layer][0]
        for index, name in enumerate(encoder.states):
            expected = torch.stack([states[0][index], states[1][index]], 1)
            assert torch.equal(encoder.memory[name], expected)
        torch.testing.assert_close(found, plain.norm(plain.out(x)))
        is_init = torch.zeros(2).bool()


def test_rounded_memory_keeps_for_ten_thousand_timesteps_what_it_has_seen_once() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 2, 16)
    x[:, 1] = torch.randn(16)  # equal for both rows from the second timestep on
    plain, encoder = gained(8.0), gained(8.0)
    encoder.memory_resolution = 0.25
    for one in (plain, encoder):
        step(one, x[:, 0], torch.ones(2).bool())
        for _ in range(10_000):
            step(one, x[:, 1], torch.zeros(2).bool())
    first, second = plain.memory["hidden"]
    assert torch.allclose(first, second, atol=1e-2)
    first, second = encoder.memory["hidden"]
    assert (first - second).abs().max() >= 0.25


@pytest.mark.parametrize("kind", [GRUEncoder, LSTMEncoder])
@pytest.mark.parametrize("recorded", [False, True])
def test_whole_sequences_do_not_depend_on_rounding(kind: type, recorded: bool) -> None:
    plain, encoder = gained(8.0, kind), gained(8.0, kind)
    encoder.memory_resolution = 0.25
    x, starts = torch.randn(2, 30, 16), torch.arange(30).expand(2, -1) % 9 == 0
    positions = segment_positions(starts)
    expected = plain.parallel(x, positions, starts)
    with recording() if recorded else nullcontext():
        found = encoder.parallel(x, positions, starts)
    torch.testing.assert_close(found, expected)
    gradients = [
        torch.autograd.grad(outputs.square().sum(), one.layers.weight_hh_l0)[0]
        for outputs, one in ((found, encoder), (expected, plain))
    ]
    assert gradients[1].abs().max() > 0
    torch.testing.assert_close(*gradients)


def test_gradients_pass_through_rounded_steps() -> None:
    encoder = gained(8.0)
    encoder.memory_resolution = 0.25
    memory = encoder.init_memory(2)
    for t in range(5):
        context, memory = encoder.step(torch.randn(2, 16), memory, torch.full((2,), t == 0))
    context.square().sum().backward()
    assert encoder.layers.weight_hh_l0.grad.abs().max() > 0


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [GRUEncoder, LSTMEncoder])
def test_on_a_gpu_recurrent_layers_compute_in_float32_under_autocast(kind, monkeypatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    encoder, results, calls, function = kind(3, hidden_size=8).to("cuda"), [], [], kind.function

    def noted(*inputs):
        calls.append(inputs)
        results.append(function(*inputs))
        return results[-1]

    monkeypatch.setattr(kind, "function", staticmethod(noted))
    x, starts = (
        torch.randn(4, 20, 3, device="cuda"),
        torch.zeros(4, 20, dtype=torch.bool, device="cuda"),
    )
    starts[:, 0] = True
    with torch.autocast("cuda", torch.bfloat16):
        encoder.parallel(x, segment_positions(starts), starts)
        beside = function(*calls[0])  # where nothing switches autocast off
    assert {tensor.dtype for tensor in results[0]} == {torch.float32}
    assert {tensor.dtype for tensor in beside} == {torch.float16}
    encoder.parallel(x, segment_positions(starts), starts)
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)
