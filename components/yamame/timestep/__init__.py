"""What is seen at one step becomes features: one module per kind of observation, no memory."""

from yamame.timestep.goals import MLPGoalEncoder as MLPGoalEncoder
from yamame.timestep.goals import TokenGoalEncoder as TokenGoalEncoder
from yamame.timestep.mlp import MLPTimestepEncoder as MLPTimestepEncoder
from yamame.timestep.normalizer import RunningNormalizer as RunningNormalizer
from yamame.timestep.specs import NOT_INPUTS as NOT_INPUTS
from yamame.timestep.specs import in_sizes_from_spec as in_sizes_from_spec
