"""Actions: their encoding for networks, and the distributions of policies over them."""

from yamame.actions.distributions import ActionDistribution as ActionDistribution
from yamame.actions.distributions import BetaDistribution as BetaDistribution
from yamame.actions.distributions import DiscreteDistribution as DiscreteDistribution
from yamame.actions.distributions import MultiBinaryDistribution as MultiBinaryDistribution
from yamame.actions.distributions import MultiDiscreteDistribution as MultiDiscreteDistribution
from yamame.actions.distributions import TanhNormalDistribution as TanhNormalDistribution
from yamame.actions.encoding import ActionEncoding as ActionEncoding
from yamame.actions.spaces import ActionSpace as ActionSpace
from yamame.actions.spaces import BoxDistribution as BoxDistribution
from yamame.actions.spaces import action_space_from_spec as action_space_from_spec
