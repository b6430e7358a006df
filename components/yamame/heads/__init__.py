"""Heads: what is read off the context, one output per discount factor."""

from yamame.heads.actor import ActorHead as ActorHead
from yamame.heads.critic import ActionInputCritic as ActionInputCritic
from yamame.heads.critic import StateActionCritic as StateActionCritic
from yamame.heads.critic import make_critic as make_critic
from yamame.heads.returns import BinnedReturns as BinnedReturns
from yamame.heads.returns import PopArt as PopArt
from yamame.heads.returns import Returns as Returns
from yamame.heads.value import ValueHead as ValueHead
from yamame.heads.value import make_value_head as make_value_head
