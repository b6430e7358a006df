"""Former module, which configurations may still name."""

from yamame.report import Resampling as Resampling
