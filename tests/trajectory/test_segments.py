"""Segments that lie side by side are computed as each of them alone."""

import itertools
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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


def drawn(rows: list[set[int]], length: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw rows in which segments begin at 0 and at these timesteps."""
    torch.manual_seed(0)
    starts = torch.zeros(len(rows), length, dtype=torch.bool)
    starts[:, 0] = True
    for row, timesteps in enumerate(rows):
        starts[row, [t for t in timesteps if t < length]] = True
    return torch.randn(len(rows), length, 3), starts


STARTS = st.one_of(
    st.just(set(range(40))),
    st.sets(st.integers(1, 39), max_size=4),
    st.sets(st.integers(1, 39), min_size=10),
)


@given(
    rows=st.lists(STARTS, min_size=1, max_size=4),
    length=st.sampled_from([1, 13, 40]),
    spare=st.sampled_from([0, 3]),
)
@settings(deadline=None, max_examples=30, derandomize=True, database=None)
def test_outputs_and_gradients_are_those_of_a_loop_over_segments(
    nothing_read_back, rows, length, spare
):
    x, starts = drawn(rows, length)
    weights = torch.randn_like(x)
    x.requires_grad_()
    expected = by_loop(x, starts)
    gradient = torch.autograd.grad((expected * weights).sum(), x)[0]
    found = segment_outputs(average, x, starts)
    number = int(starts.sum()) + spare
    with recording(), nothing_read_back():
        recorded = segment_outputs(average, x, starts, number)
    for out in (found, recorded):
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            torch.autograd.grad((out * weights).sum(), x)[0], gradient, rtol=1e-5, atol=1e-6
        )
    if starts[:, 1:].any():
        assert not torch.allclose(average(x), expected, atol=1e-6)


def test_a_number_of_segments_that_is_not_known_is_read_back(nothing_read_back):
    x, starts = drawn([{5}, {7, 9}])
    for context in (recording(), nullcontext()):  # a CPU may look, too
        with (
            context,
            pytest.raises(AssertionError, match="in what is recorded"),
            nothing_read_back(),
        ):
            segment_outputs(average, x, starts)


@pytest.mark.parametrize("count", [3, 12])
def test_less_than_half_of_what_is_computed_is_padding(count):
    random = np.random.default_rng(0)
    x, starts = drawn([set(random.integers(1, 40, count).tolist()) for _ in range(4)])
    starts[0, 1:] = False
    computed = []

    def counted(rows: torch.Tensor) -> torch.Tensor:
        computed.append(rows.shape[:2].numel())
        return average(rows)

    segment_outputs(counted, x, starts)
    assert starts.numel() <= sum(computed) < 2 * starts.numel()
    padded_to_the_longest = int(starts.sum()) * starts.shape[1]
    assert padded_to_the_longest > 2 * starts.numel()
