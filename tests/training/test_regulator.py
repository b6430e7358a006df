"""The regulator: more overfitting than the target, fewer updates; less, more; within its bounds."""

import itertools

import pytest
from yamame.checks import ArgumentError
from yamame.training import OverfittingRegulator


def factors(ratio, *, observations=8, **settings):
    """Factors after each of some observations of a ratio of losses."""
    regulator = OverfittingRegulator(**{"first": 0.4, "floor": 0.0, **settings})
    found = [regulator.factor]
    for _ in range(observations):
        regulator.observe(train_loss=0.5, held_out_loss=0.5 * ratio)
        found.append(regulator.factor)
    return found


def test_the_factor_falls_above_the_target_rises_below_and_stays_at_it():
    falling = factors(1.5, target=1.2)
    assert falling == sorted(falling, reverse=True)
    assert len(set(falling)) == len(falling)
    rising = factors(1.1, target=1.2)
    assert rising == sorted(rising)
    assert len(set(rising)) == len(rising)
    assert factors(1.2, target=1.2) == pytest.approx([0.4] * 9)
    assert factors(1.5, gain=0.0) == [0.4] * 9


def test_the_factor_stays_within_its_bounds_and_moves_by_limited_steps():
    low = factors(1e9, observations=50, least=0.1)
    assert low[-1] == 0.1
    assert min(later / earlier for earlier, later in itertools.pairwise(low)) > 0.7
    assert factors(1e-9, observations=50)[-1] == 1.0


def test_the_ratio_is_that_of_moving_averages():
    regulator = OverfittingRegulator(smoothing=0.5, floor=0.0)
    assert regulator.ratio is None
    regulator.observe(1.0, 1.0)
    regulator.observe(1.0, 3.0)
    assert regulator.ratio == pytest.approx(2.0)
    regulator.observe(3.0, 2.0)
    assert regulator.ratio == pytest.approx(1.0)


@pytest.mark.parametrize("losses", [(-1.0, 2.0), (1.0, 0.0), (1.0, float("nan"))])
def test_losses_without_a_ratio_are_ignored_with_a_warning(losses):
    regulator = OverfittingRegulator()
    regulator.observe(1.0, 2.0)
    before = regulator.state_dict()
    with pytest.warns(UserWarning, match="must be positive and finite"):
        regulator.observe(*losses)
    assert regulator.state_dict() == before


@pytest.mark.parametrize("losses", [(1e308, 5e-324), (5e-324, 1e308)])
def test_losses_may_differ_by_any_factor(losses):
    regulator = OverfittingRegulator(first=0.5, floor=0.0, smoothing=1.0)
    regulator.observe(*losses)
    assert (regulator.factor > 0.5) == (losses[0] > losses[1])


def test_a_restored_regulator_goes_on_as_the_first_would_have():
    first, second = OverfittingRegulator(), OverfittingRegulator()
    first.observe(1.0, 2.0)
    second.load_state_dict(first.state_dict())
    for regulator in (first, second):
        regulator.observe(1.5, 1.4)
    assert second.state_dict() == first.state_dict() != OverfittingRegulator().state_dict()


def test_arguments_out_of_their_range_are_refused():
    for wrong in ({"first": 0.01}, {"least": 0.0}, {"target": 0.0}, {"smoothing": 0.0}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            OverfittingRegulator(**wrong)
