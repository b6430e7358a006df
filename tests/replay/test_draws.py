"""Choices are as likely as they should be: every number that can be drawn is tried, on a fine grid."""

import itertools

import numpy as np
import pytest
from yamame.replay.draws import distinct, weighted


def grid(*sizes):
    """Middles of equal parts of [0, 1): all combinations ``[prod(sizes), len(sizes)]``."""
    return np.array(list(itertools.product(*((np.arange(n) + 0.5) / n for n in sizes))))


@pytest.mark.parametrize("places", [[0, 2, 3, 5], [1, 2], [4], range(6)])
def test_every_order_of_distinct_options_is_drawn_exactly_as_often(places):
    number = len(places)
    uniform = grid(*range(number, 0, -1))
    options = np.zeros((len(uniform), 6), np.bool_)
    options[:, list(places)] = True
    drawn = [tuple(row) for row in distinct(options, uniform).tolist()]
    assert sorted(drawn) == sorted(itertools.permutations(places))


def test_rows_draw_from_their_own_options_however_many_they_have():
    options = np.random.default_rng(0).random((500, 9)) < np.linspace(0, 1, 500)[:, None]
    drawn = distinct(options, np.random.default_rng(1).random((500, 4)))
    assert drawn.min() >= 0
    assert drawn.max() < 9
    for row, found in zip(options, drawn.tolist(), strict=True):
        real = found[: row.sum()]
        assert len(set(real)) == len(real)
        assert row[real].all()
    assert not all(row[found].all() for row, found in zip(options, drawn, strict=True))


@pytest.mark.parametrize("draws", [1, 3])
def test_without_any_option_the_draws_are_still_places(draws):
    drawn = distinct(np.zeros((2, 3), np.bool_), np.full((2, draws), 0.999))
    assert drawn.shape == (2, draws)
    assert set(drawn.ravel().tolist()) <= {0, 1, 2}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.bool_])
def test_weighted_choices_are_in_proportion_to_their_weights(dtype):
    weights = np.array([0, 1, 0, 1, 1, 0] if dtype == np.bool_ else [0, 3, 0, 1, 4, 0]).astype(dtype)
    total = int(weights.sum())
    drawn = weighted(np.tile(weights, (total, 1)), grid(total)[:, 0])
    assert np.bincount(drawn, minlength=6).tolist() == weights.tolist()


def test_what_weighs_nothing_is_never_chosen_not_even_at_the_ends():
    weights = np.array([[0.0, 1e-3, 0.0, 7.0, 0.0]]).repeat(2, 0)
    assert weighted(weights, np.array([0.0, np.nextafter(1.0, 0.0)])).tolist() == [1, 3]
    assert weighted(np.zeros((2, 5)), np.array([0.0, 0.5])).max() < 5
