"""What is seen at one step becomes features: one module per kind of observation, no memory."""

from yamame.timestep.auto import MIN_IMAGE_SIZE as MIN_IMAGE_SIZE
from yamame.timestep.auto import make_timestep_encoder as make_timestep_encoder
from yamame.timestep.base import TimestepEncoder as TimestepEncoder
from yamame.timestep.cnn import GridCNN as GridCNN
from yamame.timestep.cnn import ImageEncoder as ImageEncoder
from yamame.timestep.cnn import ImpalaCNN as ImpalaCNN
from yamame.timestep.cnn import NatureCNN as NatureCNN
from yamame.timestep.dict import DictTimestepEncoder as DictTimestepEncoder
from yamame.timestep.goals import MLPGoalEncoder as MLPGoalEncoder
from yamame.timestep.goals import TokenGoalEncoder as TokenGoalEncoder
from yamame.timestep.layout import layout_of as layout_of
from yamame.timestep.mlp import MLPTimestepEncoder as MLPTimestepEncoder
from yamame.timestep.normalizer import RunningNormalizer as RunningNormalizer
from yamame.timestep.specs import NOT_INPUTS as NOT_INPUTS
from yamame.timestep.specs import Input as Input
from yamame.timestep.specs import inputs_from_spec as inputs_from_spec
from yamame.timestep.tokens import TokenEncoder as TokenEncoder
