"""Agents: timestep encoder, trajectory encoder and heads together, and the policy that acts."""

from yamame.agent.agent import InContextAgent as InContextAgent
from yamame.agent.encoders import SeparateEncoders as SeparateEncoders
from yamame.agent.policy import InContextPolicy as InContextPolicy
