"""Completion times are the same in C and in NumPy, whatever is given."""

import numpy as np
import pytest
from yamame.goals import GOAL_PAD, GOAL_TOLERANCE
from yamame.goals.completion import _completed, completed, completion_kernel


@pytest.fixture
def calls(compiler, monkeypatch):
    """How often the function in C was used."""
    kernel, seen = completion_kernel(), []

    class Counting:
        @staticmethod
        def completed(*arguments):
            seen.append(arguments)
            kernel.completed(*arguments)

    assert kernel is not None
    monkeypatch.setattr("yamame.goals.completion.completion_kernel", lambda: Counting)
    return seen


def given(batch, slots, steps, many, size, *, seed=0, cells=3):
    """Goals and visits on a small grid, so that many meet; instructions of all lengths."""
    draw = np.random.default_rng(seed)
    instruction = draw.integers(0, cells, (batch, slots, size)).astype(np.float32)
    instruction[np.arange(slots) >= draw.integers(0, slots + 1, (batch, 1))] = GOAL_PAD
    achieved = draw.integers(0, cells, (batch, steps, many, size)).astype(np.float32)
    return instruction, achieved, draw.random((batch, steps, many)) < 0.7


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "sizes",
    [(24, 3, 60, 1, 2), (7, 5, 40, 3, 1), (1, 1, 1, 1, 1), (9, 2, 2, 4, 3), (3, 2, 5, 0, 2), (0, 2, 5, 1, 2)],
)
def test_both_find_the_same(sizes, seed, calls):
    parts = given(*sizes, seed=seed)
    found, expected = completed(*parts), _completed(*parts)
    assert found.dtype == expected.dtype == np.int64
    assert np.array_equal(found, expected)
    assert len(calls) == 1


def test_examples_hold_what_matters(calls):
    parts = given(24, 3, 60, 1, 2)
    times, number = completed(*parts), (parts[0] != GOAL_PAD).any(-1).sum(-1)
    complete = (times < 60).sum(-1)
    assert set(number) == {0, 1, 2, 3}
    assert (complete < number).any()
    assert (complete[number > 1] > 1).any()
    assert (times > 0).all()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999, 1.0, 1.001, 2.0, np.nan, np.inf, -np.inf])
def test_near_is_the_same_to_the_last_bit(share, calls):
    instruction = np.float32([[[0.3, 0.7]]])
    achieved = np.repeat(instruction[:, :, None], 200, axis=1).copy()
    achieved[..., 1] += np.float32(share * GOAL_TOLERANCE)
    if np.isfinite(share):  # then on the border itself, number by number
        bits = achieved[0, :, 0, 1].view(np.int32)
        bits += np.arange(200, dtype=np.int32) - 100
    valid = np.ones((1, 200, 1), bool)
    for first in range(1, 200):
        valid[:, :first] = False
        assert np.array_equal(
            completed(instruction, achieved, valid), _completed(instruction, achieved, valid)
        )
    assert calls


def test_what_is_no_number_is_never_reached(calls):
    instruction, achieved, valid = given(4, 2, 30, 1, 2)
    instruction[:, 0], achieved[:, ::2] = np.nan, np.nan
    assert np.array_equal(completed(instruction, achieved, valid), _completed(instruction, achieved, valid))
    assert (completed(instruction, achieved, valid) == 30).all()


def test_arrays_may_lie_anyhow(calls):
    instruction, achieved, valid = given(6, 3, 50, 2, 2)
    expected = completed(instruction, achieved, valid)
    turned = [np.asfortranarray(part) for part in (instruction, achieved, valid)]
    assert np.array_equal(completed(*turned), expected)
    wide = np.repeat(instruction[:, None], 9, axis=1)[:, 0]
    assert not wide.flags.c_contiguous
    assert np.array_equal(completed(wide, achieved, valid), expected)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_precisions_are_left_to_numpy(dtype, calls):
    instruction, achieved, valid = given(6, 3, 50, 2, 2)
    expected = completed(instruction, achieved, valid)
    calls.clear()
    assert np.array_equal(completed(instruction.astype(dtype), achieved.astype(dtype), valid), expected)
    assert not calls


def test_without_a_compiler_numpy_finds_the_same(monkeypatch):
    parts = given(6, 3, 50, 2, 2)
    expected = completed(*parts)
    monkeypatch.setenv("CC", "/nowhere/compiler")
    completion_kernel.cache_clear()
    try:
        assert completion_kernel() is None
        assert np.array_equal(completed(*parts), expected)
    finally:
        completion_kernel.cache_clear()
