"""The parallel scan against a plain loop: values, gradients, and decays anywhere between 0 and
1.
"""

import pytest
import torch
from yamame.trajectory.scan import complex_product, complex_scan, linear_scan, polar


def loop(decay: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    states = [values[:, 0]]
    for t in range(1, values.shape[1]):
        states.append(decay[:, t] * states[-1] + values[:, t])
    return torch.stack(states, 1)


LENGTHS = [1, 2, 3, 4, 7, 16, 17, 101]


@pytest.mark.parametrize("length", LENGTHS)
def test_states_and_gradients_are_those_of_a_loop_at_any_length(length):
    torch.manual_seed(0)
    decay, values, weights = (
        torch.rand(2, length, 3),
        torch.randn(2, length, 3),
        torch.randn(2, length, 3),
    )
    decay = decay.masked_fill(torch.rand(2, length, 1) < 0.1, 0)
    results = []
    for scan in (linear_scan, loop):
        inputs = decay.clone().requires_grad_(), values.clone().requires_grad_()
        states = scan(*inputs)
        of_decay, of_values = torch.autograd.grad(
            (states * weights).sum(), inputs, materialize_grads=True
        )
        results.append((states.detach(), of_decay, of_values))
    for found, expected in zip(*results, strict=True):
        # A few roundings of numbers of order ten.
        assert torch.allclose(found, expected, atol=1e-5)


def test_gradients_agree_with_differences():
    torch.manual_seed(0)
    inputs = [torch.rand(2, 11, 2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(linear_scan, inputs)


REMEMBERED = {"nothing": 1e-6, "little": 0.1, "half": 0.5, "much": 0.999, "nearly all": 1 - 1e-6}


@pytest.mark.parametrize("kept", [*REMEMBERED.values(), None], ids=[*REMEMBERED, "anything"])
def test_a_long_moving_average_is_as_exact_as_the_loop(kept):
    torch.manual_seed(0)
    decay = torch.rand(4, 1024, 8) if kept is None else torch.full((4, 1024, 8), kept)
    values = (1 - decay) * torch.randn(4, 1024, 8)
    # States are averages of order one; 1024 roundings of 6e-8, mostly forgotten or cancelling.
    assert torch.allclose(linear_scan(decay, values), loop(decay, values), atol=1e-5, rtol=0)


def test_decays_that_vanish_give_no_infinity_and_forget_exactly():
    decay, values = torch.full((1, 400, 2), 1e-30), torch.ones(1, 400, 2, requires_grad=True)
    decay[:, 200] = 0
    decay.requires_grad_()
    changed = values.detach().clone()
    changed[:, :200] *= 1e30
    states = linear_scan(decay, values)
    assert torch.equal(linear_scan(decay.detach(), changed)[:, 200:], states[:, 200:])
    assert not torch.equal(linear_scan(decay.detach(), changed)[:, :200], states[:, :200])
    states.sum().backward()
    assert decay.grad.isfinite().all()
    assert values.grad.isfinite().all()


def test_inputs_are_left_alone_and_need_not_be_contiguous():
    torch.manual_seed(0)
    decay, values = torch.rand(9, 2, 3).transpose(0, 1), torch.randn(9, 3, 2).permute(2, 0, 1)
    copies = decay.clone(), values.clone()
    assert torch.allclose(linear_scan(decay, values), loop(decay, values), atol=1e-6)
    assert torch.equal(decay, copies[0])
    assert torch.equal(values, copies[1])


def test_the_first_decay_is_multiplied_with_nothing():
    torch.manual_seed(0)
    decay, values = torch.rand(2, 9, 3), torch.randn(2, 9, 3)
    other = decay.clone()
    other[:, 0] = 0.123
    assert torch.equal(linear_scan(other, values), linear_scan(decay, values))
    other[:, 1] = 0.123
    assert not torch.equal(linear_scan(other, values), linear_scan(decay, values))


def test_the_number_of_dependent_steps_grows_with_the_root_of_the_length():
    counts = []
    for length in (100, 10_000):
        decay, values = torch.rand(1, length, 1), torch.rand(1, length, 1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            linear_scan(decay, values)
        counts.append(sum(event.name == "aten::addcmul_" for event in profile.events()))
    # Within chunks and between them: 9 + 9 and 99 + 99.
    assert counts == [18, 198]


@pytest.mark.parametrize("length", [1, 4, 17, 101])
def test_complex_states_are_those_of_a_loop_and_begin_at_every_start(length):
    torch.manual_seed(0)
    decay = polar(torch.rand(3), 6 * torch.rand(3))
    values = torch.randn(2, length, 3, 2)
    starts = torch.rand(2, length) < 0.1
    starts[:, 0] = True
    found = complex_scan(decay, values, starts)
    state, states = torch.zeros(2, 3, 2), []
    for t in range(length):
        state = state.masked_fill(starts[:, t].view(-1, 1, 1), 0)
        state = complex_product(decay, state) + values[:, t]
        states.append(state)
    assert torch.allclose(found, torch.stack(states, 1), atol=1e-5)


def test_gradients_of_complex_states_agree_with_differences():
    torch.manual_seed(0)
    decay = polar(torch.rand(2).double(), torch.rand(2).double()).requires_grad_()
    values = torch.randn(2, 11, 2, 2, dtype=torch.float64, requires_grad=True)
    starts = torch.zeros(2, 11).bool()
    starts[:, 0] = starts[1, 4] = True
    assert torch.autograd.gradcheck(lambda *inputs: complex_scan(*inputs, starts), (decay, values))
