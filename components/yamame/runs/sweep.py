"""Former module, which configurations may still name."""

from yamame.tracking.sweep import SweepParent as SweepParent
