"""Regulation of the number of updates by overfitting."""

import math
import warnings
from collections.abc import Mapping
from typing import Annotated, Any

from yamame.checks import Bounds, NonNegativeFloat, PositiveFloat, check_bounds, require

_LARGEST_RATIO = 1e300
"""Ratio beyond which losses of extreme sizes are not told apart."""
_LARGEST_STEP = 0.35
"""Largest change of the logarithm of the factor in one observation."""

Share = Annotated[float, Bounds(above=0, most=1)]


class OverfittingRegulator:
    """Regulates the number of updates per environment step by overfitting (arXiv 2304.10466).

    An agent that makes many updates with few trajectories learns these by heart: its loss becomes
    smaller on them than on trajectories that it does not learn from. The ratio of the two losses is
    1 without overfitting. After every observation, the factor on the updates per step is moved so
    that the ratio approaches a target. It falls faster than it rises, because what was learned by
    heart is not forgotten at once.

    The regulator has no generator and no clock: equal observations give equal factors.

    Args:
        target: Ratio of the loss on held-out trajectories to that on the others which is aimed at.
        least: Smallest factor.
        first: Factor before the first observation.
        gain: Fall of the logarithm of the factor for each unit of the logarithm of the ratio.
        recovery: The same for its rise.
        floor: Loss that is added to both before the ratio is taken. Losses far below it are small
            whatever their ratio is.
        smoothing: Share of a new loss in the moving averages, of which the ratio is taken.

    Raises:
        ArgumentError: An argument is out of its range.

    >>> regulator = OverfittingRegulator(target=1.2, first=0.5, floor=0.0)
    >>> for _ in range(3):
    ...     regulator.observe(train_loss=1.0, held_out_loss=2.0)
    >>> regulator.ratio, round(regulator.factor, 3)
    (2.0, 0.175)
    """

    @check_bounds
    def __init__(
        self,
        *,
        target: PositiveFloat = 1.2,
        least: Share = 0.05,
        first: Share = 0.5,
        gain: NonNegativeFloat = 0.7,
        recovery: NonNegativeFloat = 0.3,
        floor: NonNegativeFloat = 0.2,
        smoothing: Share = 0.15,
    ) -> None:
        require("OverfittingRegulator", "first", first, first >= least, f"be at least {least}")
        self.target = target
        self.least = least
        self.gain = gain
        self.recovery = recovery
        self.floor = floor
        self.smoothing = smoothing
        self._factor = first
        self._train_loss: float | None = None
        self._held_out_loss: float | None = None

    @property
    def factor(self) -> float:
        """Present factor on the updates per step, in [``least``, 1]."""
        return self._factor

    @property
    def ratio(self) -> float | None:
        """Average held-out loss, relative to that of the others; None before an observation."""
        if self._train_loss is None or self._held_out_loss is None:
            return None
        ratio = (self._held_out_loss + self.floor) / (self._train_loss + self.floor)
        return min(_LARGEST_RATIO, max(1.0 / _LARGEST_RATIO, ratio))

    def observe(self, train_loss: float, held_out_loss: float) -> None:
        """Move the factor after an observation of both losses.

        Losses that are not positive have no ratio. They are ignored, with a warning.

        Args:
            train_loss: Loss on a batch of trajectories that are learned from.
            held_out_loss: Loss on a batch of trajectories that are not.
        """
        if not (0.0 < train_loss < math.inf and 0.0 < held_out_loss < math.inf):
            warnings.warn(
                "OverfittingRegulator: losses must be positive and finite, got "
                f"{train_loss:g} and {held_out_loss:g} (held out); the updates per step stay as "
                "they are",
                stacklevel=2,
            )
            return
        self._train_loss = self._averaged(self._train_loss, train_loss)
        self._held_out_loss = self._averaged(self._held_out_loss, held_out_loss)
        assert self.ratio is not None
        self._factor = self._moved(self._factor, self.ratio)

    def _averaged(self, average: float | None, value: float) -> float:
        if average is None:
            return value
        return average + self.smoothing * (value - average)

    def _moved(self, factor: float, ratio: float) -> float:
        """Return the factor after an observation: the control law."""
        excess = math.log(ratio / self.target)
        change = -excess * (self.gain if excess > 0 else self.recovery)
        # A single batch of few trajectories may have an extreme loss.
        change = min(_LARGEST_STEP, max(-_LARGEST_STEP, change))
        return min(1.0, max(self.least, factor * math.exp(change)))

    def state_dict(self) -> dict[str, Any]:
        """Return the factor and the averages of the losses."""
        return {
            "factor": self._factor,
            "train_loss": self._train_loss,
            "held_out_loss": self._held_out_loss,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._factor = state_dict["factor"]
        self._train_loss = state_dict["train_loss"]
        self._held_out_loss = state_dict["held_out_loss"]
