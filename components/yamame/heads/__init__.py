"""Heads: functions of the context, with one output per discount factor."""

from yamame.heads.actor import ActorHead as ActorHead
from yamame.heads.critic import ActionInputCritic as ActionInputCritic
from yamame.heads.critic import StateActionCritic as StateActionCritic
from yamame.heads.critic import make_critic as make_critic
from yamame.heads.value_head import make_value_head as make_value_head
from yamame.heads.values import BinnedReturns as BinnedReturns
from yamame.heads.values import PopArt as PopArt
from yamame.heads.values import Returns as Returns
from yamame.heads.values import ValueRepresentation as ValueRepresentation
