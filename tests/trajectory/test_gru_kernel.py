"""Gated recurrent units compiled for sequences compute what PyTorch's do, forward and backward."""

import copy
import pickle

import pytest
import torch
from yamame.trajectory import GRUEncoder, segment_positions
from yamame.trajectory.gru import _cell
from yamame.trajectory.gru_kernel import GRUCell, gru_kernel, gru_layer

pytestmark = pytest.mark.usefixtures("compiler")


def layers(size: int, hidden: int) -> torch.nn.GRU:
    torch.manual_seed(0)
    gru = torch.nn.GRU(size, hidden, 2, batch_first=True)
    for parameter in gru.parameters():
        parameter.data.mul_(3.0)  # gates near their ends, too
    return gru


def compiled(gru: torch.nn.GRU, x: torch.Tensor) -> torch.Tensor:
    for layer in gru.all_weights:
        x = gru_layer(x, *layer)
    return x


@pytest.mark.parametrize("hidden", [1, 5, 16, 24, 32, 48])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 2), (8, 30), (13, 30)])
def test_values_and_gradients_are_those_of_the_library(batch, length, hidden):
    gru = layers(7, hidden)
    x, weights = torch.randn(batch, length, 7, requires_grad=True), torch.randn(batch, length, hidden)
    exact, found = gru.double()(x.double())[0], compiled(gru.float(), x)
    assert torch.allclose(found.double(), exact, atol=2e-6)
    inputs = [x, *gru.parameters()]
    found = torch.autograd.grad((found * weights).sum(), inputs)
    expected = torch.autograd.grad((gru(x)[0] * weights).sum(), inputs)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))
    with torch.no_grad():
        assert torch.equal(compiled(gru, x), compiled(gru, x.detach()))


def test_a_layer_that_learns_nothing_passes_gradients_on():
    gru = layers(4, 8).requires_grad_(False)
    x = torch.randn(2, 5, 4, requires_grad=True)
    found, expected = (
        torch.autograd.grad(f(x).square().sum(), x)[0]
        for f in (lambda x: compiled(gru, x), lambda x: gru(x)[0])
    )
    assert torch.allclose(found, expected, atol=1e-5)


def test_gradients_of_gradients_are_refused():
    gru, x = layers(4, 8), torch.randn(2, 5, 4, requires_grad=True)
    grad = torch.autograd.grad(compiled(gru, x).sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_views_and_threads_change_nothing():
    gru, threads = layers(4, 16), torch.get_num_threads()
    x, weights = torch.randn(100, 40, 4), torch.randn(40, 100, 16)
    found = []
    try:
        for number, given in ((1, x), (1, x.transpose(0, 1).contiguous().transpose(0, 1)), (3, x), (64, x)):
            torch.set_num_threads(number)
            given = given.detach().requires_grad_()
            states = compiled(gru, given)
            found.append([states, *torch.autograd.grad((states.transpose(0, 1) * weights).sum(), given)])
    finally:
        torch.set_num_threads(threads)
    inputs = x.requires_grad_()
    expected = torch.autograd.grad((gru(inputs)[0].transpose(0, 1) * weights).sum(), inputs)[0]
    assert torch.allclose(found[0][1], expected, atol=1e-4)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_what_is_no_number_stays_none_and_in_its_sequence():
    gru, x = layers(4, 8), torch.randn(3, 6, 4)
    x[1, 2] = torch.nan
    found = compiled(gru, x)
    assert found[1, 2:].isnan().all()
    assert not found[1, :2].isnan().any()
    assert not found[[0, 2]].isnan().any()


def test_gates_saturate_as_they_should():
    gru, x = layers(4, 8), 1e4 * torch.randn(3, 6, 4)
    assert torch.allclose(compiled(gru, x), gru(x)[0], atol=1e-6)


def make(**settings) -> GRUEncoder:
    torch.manual_seed(0)
    return GRUEncoder(3, hidden_size=16, out_features=4, **settings)


def test_an_encoder_compiled_or_not_is_the_same_encoder():
    plain, fast = make(), make(compiled=True)
    assert plain.state_dict().keys() == fast.state_dict().keys()
    x, starts = torch.randn(4, 20, 3), torch.rand(4, 20) < 0.1
    starts[:, 0] = True
    contexts = [encoder.parallel(x, segment_positions(starts), starts) for encoder in (plain, fast)]
    assert torch.allclose(*contexts, atol=1e-5)
    assert not torch.equal(*contexts)  # it was computed in another way
    for copied in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert torch.equal(copied.parallel(x, segment_positions(starts), starts), contexts[1])


def test_under_autocast_states_stay_in_float32():
    encoder, x = make(compiled=True), torch.randn(4, 20, 3)
    starts = torch.zeros(4, 20).bool()
    exact = encoder.parallel(x, segment_positions(starts), starts)
    with torch.autocast("cpu", torch.bfloat16):
        assert compiled(encoder.gru, x).dtype is torch.float32
        found = encoder.parallel(x, segment_positions(starts), starts)
    error = float((found.detach() - exact.detach()).norm() / exact.detach().norm())
    assert 2**-12 < error < 2**-5


def test_other_dtypes_and_devices_are_refused():
    starts = torch.zeros(2, 3).bool()
    for where, got in (({"dtype": torch.float64}, "float64"), ({"device": "meta"}, "meta")):
        encoder = make(compiled=True).to(**where)
        with pytest.raises(ValueError, match=f"GRUEncoder: compiled must be false unless .*{got}"):
            encoder.parallel(torch.zeros(2, 3, 3, **where), starts.long(), starts)


def test_without_a_compiler_an_encoder_is_refused(monkeypatch):
    monkeypatch.setenv("CC", "/nowhere/compiler")
    gru_kernel.cache_clear()
    with pytest.raises(ValueError, match="GRUEncoder: compiled must be false without a C compiler"):
        make(compiled=True)
    make()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hidden", [1, 5, 16, 48])
def test_a_cell_is_that_of_the_library(hidden, dtype):
    torch.manual_seed(0)
    of_input, of_state = (
        (4 * torch.randn(7, 3 * hidden)).to(dtype),
        (4 * torch.randn(7, 3 * hidden)).to(dtype),
    )
    of_input[1] *= 1e3  # gates at their ends
    of_state[2, 0] = torch.nan
    state = torch.rand(7, hidden)
    expected = _cell(of_input.clone(), of_state.clone(), state.clone())
    found = GRUCell(hidden, dtype)(of_input, of_state, state)
    assert found is state
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6, equal_nan=True)
    assert found[2, 0].isnan()
    assert not found[3:].isnan().any()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_steps_are_the_same_compiled_or_not(dtype):
    encoder, found = make(num_layers=2).eval(), []
    for compiled in (False, True):
        encoder.prepare(dtype, compiled=compiled)
        assert isinstance(encoder._prepared[1], GRUCell) is compiled
        encoder.reset_memory()
        generator = torch.Generator().manual_seed(1)
        steps = []
        for _ in range(20):
            x, starts = torch.randn(5, 3, generator=generator), torch.rand(5, generator=generator) < 0.2
            steps.append(encoder.step(x, None, starts))
        found.append(torch.stack(steps))
    torch.testing.assert_close(*found, rtol=0, atol=1e-5 if dtype is None else 0.02)
    assert not torch.equal(*found)


def test_steps_that_cannot_be_compiled_are_refused(monkeypatch):
    for where, got in (({"dtype": torch.float64}, "float64"), ({"device": "meta"}, "meta")):
        with pytest.raises(ValueError, match=f"compile_policy must be false unless weights .*{got}"):
            make().to(**where).eval().prepare(compiled=True)
    with pytest.raises(ValueError, match=r"compile_policy must be false in other dtypes .*float16"):
        make().eval().prepare(torch.float16, compiled=True)
    monkeypatch.setenv("CC", "/nowhere/compiler")
    gru_kernel.cache_clear()
    with pytest.raises(ValueError, match="compile_policy must be false without a C compiler"):
        make().eval().prepare(compiled=True)
