"""The agent: every learned part, built once from an environment's specs."""

from collections.abc import Callable, Sequence

from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from tensordict.utils import NestedKey
from torch import nn
from torchrl.data import Composite, TensorSpec

from yamame.actions import action_space_from_spec
from yamame.agent.policy import InContextPolicy
from yamame.heads import ActorHead
from yamame.timestep import inputs_from_spec
from yamame.trajectory import TrajectoryEncoder


class InContextAgent(nn.Module):
    """Timestep encoder, trajectory encoder, actor, critics and value representation that fit an environment.

    The parts are given as factories whose remaining arguments are the widths and specs known only here, so the same
    settings fit every environment. The actor and the critics share the two encoders (AMAGO, arXiv 2310.09971).

    Args:
        observation_spec: The environment's observation spec, with its batch dimensions.
        action_spec: The environment's action spec, with the same batch dimensions.
        timestep_encoder: ``(inputs, goal_encoder=...) -> module`` writing the features.
        goal_encoder: ``(K, d) -> module`` embedding instructions; not used in an environment without goals.
        trajectory_encoder: ``(in_features) -> TrajectoryEncoder``.
        actor: ``(in_features, action_space=..., num_gammas=...) -> ActorHead``.
        critic: ``(in_features, action_space=..., gammas=..., num_outputs=...) -> critics``.
        returns: ``(num_gammas) -> value representation``.
        gammas: Discount factors in (0, 1), each with its own policy and values. The last one acts.
        probability_floor: Share of the uniform distribution mixed into discrete policies.
        goal_key: Where the instruction is found in the observation spec.
    """

    def __init__(
        self,
        observation_spec: Composite,
        action_spec: TensorSpec,
        *,
        timestep_encoder: Callable[..., TensorDictModuleBase],
        goal_encoder: Callable[[int, int], nn.Module],
        trajectory_encoder: Callable[..., TrajectoryEncoder],
        actor: Callable[..., ActorHead],
        critic: Callable[..., nn.Module],
        returns: Callable[..., nn.Module],
        gammas: Sequence[float],
        probability_floor: float = 0.01,
        goal_key: NestedKey = "goal",
    ) -> None:
        super().__init__()
        batch_dims = len(observation_spec.shape)
        self.gammas = tuple(float(gamma) for gamma in gammas)
        self.action_space = action_space_from_spec(
            action_spec, batch_dims=batch_dims, probability_floor=probability_floor
        )
        inputs = inputs_from_spec(observation_spec, batch_dims=batch_dims)
        goals = None
        if goal_key in observation_spec.keys(True, True):
            goals = goal_encoder(*observation_spec[goal_key].shape[batch_dims:])
        self.timestep_encoder = timestep_encoder(inputs, goal_encoder=goals)
        self.trajectory_encoder = trajectory_encoder(self.timestep_encoder.out_features)
        width = self.trajectory_encoder.out_features
        self.actor = actor(width, action_space=self.action_space, num_gammas=len(self.gammas))
        self.returns = returns(len(self.gammas))
        self.critic = critic(
            width, action_space=self.action_space, gammas=self.gammas, num_outputs=self.returns.num_outputs
        )

    @property
    def encoder(self) -> TensorDictSequential:
        """Both encoders as one module, for the loss: writes the context of every timestep of ``[B, L]``."""
        return TensorDictSequential(self.timestep_encoder, self.trajectory_encoder)

    def policy(self, *, gamma_index: int = -1) -> InContextPolicy:
        """A policy that shares this agent's parameters."""
        return InContextPolicy(
            self.timestep_encoder, self.trajectory_encoder, self.actor, gamma_index=gamma_index
        )

    def num_parameters(self) -> int:
        """Number of trainable scalars."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)
