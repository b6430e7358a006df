"""Timestep encoders: the observation of one timestep to features, without memory."""

from yamame.normalization import RunningNormalizer as RunningNormalizer
from yamame.timestep.auto import MIN_IMAGE_SIZE as MIN_IMAGE_SIZE
from yamame.timestep.auto import FlattenedWarning as FlattenedWarning
from yamame.timestep.auto import make_timestep_encoder as make_timestep_encoder
from yamame.timestep.cnn import GridCNN as GridCNN
from yamame.timestep.cnn import ImageEncoder as ImageEncoder
from yamame.timestep.cnn import ImpalaCNN as ImpalaCNN
from yamame.timestep.cnn import NatureCNN as NatureCNN
from yamame.timestep.goals import MLPGoalEncoder as MLPGoalEncoder
from yamame.timestep.goals import TokenGoalEncoder as TokenGoalEncoder
from yamame.timestep.image_shape import ImageShape as ImageShape
from yamame.timestep.mlp import MLPTimestepEncoder as MLPTimestepEncoder
from yamame.timestep.specs import Input as Input
from yamame.timestep.specs import inputs_from_spec as inputs_from_spec
from yamame.timestep.tokens import TokenEncoder as TokenEncoder
