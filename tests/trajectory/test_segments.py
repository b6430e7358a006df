"""Segments that lie side by side are computed as each of them alone."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from yamame.execution.capturing import recording
from yamame.trajectory.recurrent import segment_outputs


def average(rows: torch.Tensor) -> torch.Tensor:
    """A causal function: the mean so far."""
    return rows.cumsum(1) / torch.arange(1, rows.shape[1] + 1).view(1, -1, 1)


def by_loop(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(x)
    for row in range(len(x)):
        bounds = [*starts[row].nonzero().flatten().tolist(), x.shape[1]]
        for begin, end in itertools.pairwise(bounds):
            found[row, begin:end] = average(x[row : row + 1, begin:end])[0]
    return found


def drawn(chance: float) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    starts = torch.rand(4, 40) < chance
    starts[:, 0] = True
    return torch.randn(4, 40, 3), starts


@pytest.mark.parametrize("chance", [0.0, 0.05, 0.4, 1.0])
def test_outputs_are_those_of_a_loop_over_segments(chance):
    x, starts = drawn(chance)
    assert torch.allclose(segment_outputs(average, x, starts), by_loop(x, starts), atol=1e-6)
    if chance:
        assert not torch.allclose(average(x), by_loop(x, starts), atol=1e-2)


def test_gradients_are_those_of_a_loop_over_segments():
    x, starts = drawn(0.2)
    weights = torch.randn_like(x)
    x.requires_grad_()
    found = torch.autograd.grad((segment_outputs(average, x, starts) * weights).sum(), x)[0]
    expected = torch.autograd.grad((by_loop(x, starts) * weights).sum(), x)[0]
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("chance", [0.0, 0.05, 0.4, 1.0])
@pytest.mark.parametrize("spare", [0, 3])
def test_where_their_number_is_known_nothing_is_read_back_and_outputs_are_the_same(
    nothing_read_back, chance, spare
):
    x, starts = drawn(chance)
    weights, expected, number = torch.randn_like(x), by_loop(x, starts), int(starts.sum()) + spare
    x.requires_grad_()
    with recording(), nothing_read_back():
        found = segment_outputs(average, x, starts, number)
    assert torch.allclose(found, expected, atol=1e-6)
    gradients = (
        torch.autograd.grad((out * weights).sum(), x)[0] for out in (found, by_loop(x, starts))
    )
    assert torch.allclose(*gradients, atol=1e-6)
    for context in (recording(), nullcontext()):  # where it is not known, and where a CPU may look
        with (
            context,
            pytest.raises(AssertionError, match="in what is recorded"),
            nothing_read_back(),
        ):
            segment_outputs(average, x, starts)


@pytest.mark.parametrize("chance", [0.05, 0.4])
def test_less_than_half_of_what_is_computed_is_padding(chance):
    x, starts = drawn(chance)
    starts[0, 1:] = False
    computed = []

    def counted(rows: torch.Tensor) -> torch.Tensor:
        computed.append(rows.shape[:2].numel())
        return average(rows)

    segment_outputs(counted, x, starts)
    assert starts.numel() <= sum(computed) < 2 * starts.numel()
    padded_to_the_longest = int(starts.sum()) * starts.shape[1]
    assert padded_to_the_longest > 2 * starts.numel()
