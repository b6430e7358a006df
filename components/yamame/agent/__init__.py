"""The assembly: timestep encoder, trajectory encoder and heads as one agent, and the policy that
acts with it.
"""

from yamame.agent.agent import InContextAgent as InContextAgent
from yamame.agent.encoders import SeparateEncoders as SeparateEncoders
from yamame.agent.policy import InContextPolicy as InContextPolicy
