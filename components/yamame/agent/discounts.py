"""Discount factors that follow the horizon of an environment (``agent.gammas: auto``).

A discount factor gamma has the effective horizon 1 / (1 - gamma): the steps over which rewards are
summed, roughly. `follow_horizon` spaces these horizons geometrically, from a few steps to beyond
the end of the longest episode, whatever its length.
"""

import math
from collections.abc import Sequence

from torchrl.data import Composite

from yamame.checks import PositiveInt, SettingError, check_bounds
from yamame.transforms.context import episode_limit

AUTO = "auto"
"""Value of ``agent.gammas`` in place of numbers."""
UNLIMITED = 100
"""Steps of the longest episode that `discount_horizon` assumes without a limit."""
_SHORT_SIGHTED = 0.1
"""First discount factor, whose values are learned at once and shape the context."""
_NEAREST = 10.0
"""Effective horizon of the second discount factor, in steps."""
_BEYOND = 3
"""Effective horizon of the last discount factor, in longest episodes."""
_FARTHEST = 3_000_000.0
"""Largest effective horizon: closer to 1, numbers of float32 are too sparse."""
_NUM_SPACED = 4
_DIGITS = 2
"""Significant digits of 1 - gamma."""


def discount_horizon(observation_spec: Composite) -> int:
    """Return the steps of the longest episode, or `UNLIMITED` for an environment without a limit.

    Args:
        observation_spec: Spec with the bound of ``step_index``.
    """
    steps = episode_limit(observation_spec)
    return UNLIMITED if steps is None else max(1, steps)


@check_bounds
def follow_horizon(horizon: PositiveInt) -> list[float]:
    """Return 0.1 and four discount factors up to an effective horizon of three episodes.

    The effective horizons of the four are spaced geometrically from 10 steps to ``3 * horizon``,
    which is at least 30 and at most 3,000,000. Each 1 - gamma is rounded to two significant digits.

    Args:
        horizon: Steps of the longest episode.

    Raises:
        ArgumentError: ``horizon`` is not positive.

    >>> follow_horizon(100)
    [0.1, 0.9, 0.968, 0.99, 0.9967]
    """
    farthest = min(_BEYOND * max(float(horizon), _NEAREST), _FARTHEST)
    ratio = (farthest / _NEAREST) ** (1 / (_NUM_SPACED - 1))
    gammas = [_SHORT_SIGHTED]
    for index in range(_NUM_SPACED):
        rate = 1.0 / (_NEAREST * ratio**index)
        digits = _DIGITS - 1 - math.floor(math.log10(rate))
        # The second rounding removes the error of the subtraction, so that tables read well.
        gammas.append(round(1.0 - round(rate, digits), digits))
    return gammas


def resolve_gammas(gammas: Sequence[float] | str, horizon: int | None = None) -> list[float]:
    """Return the discount factors of a configuration as numbers.

    Args:
        gammas: Numbers, which are returned as floats, or ``auto``.
        horizon: Steps of the longest episode of training; None if they are not known.

    Raises:
        SettingError: ``gammas`` is ``auto`` and the horizon is not known.

    >>> resolve_gammas([0.9, 0.99], horizon=1000)
    [0.9, 0.99]
    """
    if gammas != AUTO:
        return [float(gamma) for gamma in gammas]
    if horizon is None:
        remedy = "train with yamame, which saves the numbers, or give them"
        condition = "be a list of numbers in a saved configuration"
        raise SettingError("agent.gammas", gammas, condition, remedy=remedy)
    return follow_horizon(horizon)
