"""Losses: a batch of trajectories to named scalar terms."""

from yamame.losses.functional import advantage_filter as advantage_filter
from yamame.losses.functional import bootstrapped_targets as bootstrapped_targets
from yamame.losses.functional import critic_subset_value as critic_subset_value
from yamame.losses.functional import masked_mean as masked_mean
from yamame.losses.functional import transition_mask as transition_mask
from yamame.losses.ppo import SequencePPOLoss as SequencePPOLoss
from yamame.losses.redq import MultiGammaREDQLoss as MultiGammaREDQLoss
from yamame.losses.separate import SeparateREDQLoss as SeparateREDQLoss
from yamame.losses.sequence import SequenceActorCriticLoss as SequenceActorCriticLoss
from yamame.losses.sequence import SequenceLoss as SequenceLoss
