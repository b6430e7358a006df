"""The agent: every learned part, built once from an environment's specs."""

from collections.abc import Callable, Sequence

from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import nn
from torchrl.data import Composite, TensorSpec

from yamame.actions import ActionSpace, BoxDistribution
from yamame.agent.encoders import SeparateEncoders, check_encoder
from yamame.agent.policy import InContextPolicy
from yamame.agent.roles import output_layers
from yamame.heads import ActorHead
from yamame.timestep import inputs_from_spec
from yamame.trajectory import TrajectoryEncoder


class InContextAgent(nn.Module):
    """Timestep encoder, trajectory encoder, actor, critics and value representation that fit an
    environment.

    The parts are given as factories whose remaining arguments are the widths and specs known only
    here, so the same settings fit every environment. The actor and the critics share the two
    encoders (AMAGO, arXiv 2310.09971), or have encoders of their own, of equal settings (recurrent
    model-free RL, arXiv 2110.05038).

    Args:
        observation_spec: The environment's observation spec, with its batch dimensions.
        action_spec: The environment's action spec, with the same batch dimensions.
        timestep_encoder: ``(inputs, goal_encoder=...) -> module`` writing the features.
        goal_encoder: ``(K, d) -> module`` embedding instructions; not used in an environment
            without goals.
        trajectory_encoder: ``(in_features) -> TrajectoryEncoder``.
        actor: ``(in_features, action_space=..., num_gammas=...) -> ActorHead``.
        critic: ``(in_features, action_space=..., gammas=..., num_outputs=...) -> critics``; None in
            their place makes an agent without any.
        returns: ``(num_gammas) -> value representation``.
        gammas: Discount factors in (0, 1), each with its own policy and values. The last one acts.
        probability_floor: Share of the uniform distribution mixed into discrete policies.
        box_distribution: Family of continuous policies; see `yamame.actions.ActionSpace`.
        share_encoders: Whether the critics read the actor's context. If not,
            `yamame.losses.SeparateREDQLoss` is the loss that trains the agent.

    Raises:
        ArgumentError: ``trajectory_encoder`` does not return a `TrajectoryEncoder`, or the width of
            its context is not its ``out_features``.
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
        critic: Callable[..., nn.Module | None],
        returns: Callable[..., nn.Module],
        gammas: Sequence[float],
        probability_floor: float = 0.01,
        box_distribution: BoxDistribution = "tanh_normal",
        share_encoders: bool = True,
    ) -> None:
        super().__init__()
        batch_dims = len(observation_spec.shape)
        self.gammas = tuple(float(gamma) for gamma in gammas)
        self.action_space = ActionSpace(
            action_spec,
            batch_dims=batch_dims,
            probability_floor=probability_floor,
            box_distribution=box_distribution,
        )

        pairs = []
        for _ in range(1 if share_encoders else 2):
            goals = None
            if "goal" in observation_spec.keys(True, True):
                goals = goal_encoder(*observation_spec["goal"].shape[batch_dims:])
            inputs = inputs_from_spec(observation_spec, batch_dims=batch_dims)
            timesteps = timestep_encoder(inputs, goal_encoder=goals)
            trajectories = trajectory_encoder(timesteps.out_features)
            check_encoder(trajectories, timesteps.out_features)
            pairs.append((timesteps, trajectories))

        self.timestep_encoder, self.trajectory_encoder = pairs[0]
        # The critics' encoders have equal settings, and weights of their own.
        self.critic_encoder = None if share_encoders else TensorDictSequential(*pairs[1])
        width = self.trajectory_encoder.out_features
        self.actor = actor(width, action_space=self.action_space, num_gammas=len(self.gammas))
        self.returns = returns(len(self.gammas))
        self.critic = critic(
            width,
            action_space=self.action_space,
            gammas=self.gammas,
            num_outputs=self.returns.num_outputs,
        )

    @property
    def encoder(self) -> TensorDictModuleBase:
        """All encoders as one module, for the loss: writes the context of every timestep of
        ``[B, L]``.

        Where the critics have encoders of their own, it writes theirs as well, as
        ``critic_context``.
        """
        encoder = TensorDictSequential(self.timestep_encoder, self.trajectory_encoder)
        return (
            encoder
            if self.critic_encoder is None
            else SeparateEncoders(encoder, self.critic_encoder)
        )

    @property
    def parameter_roles(self) -> dict[str, str]:
        """The last layers of actor and critics are outputs, whatever network they are."""
        heads = {"actor": self.actor, "critic": self.critic}
        return {
            f"{name}.{layer}" if layer else name: "output"
            for name, head in heads.items()
            if head is not None
            for layer in output_layers(head)
        }

    def policy(self, *, gamma_index: int = -1) -> InContextPolicy:
        """A policy that shares this agent's parameters."""
        return InContextPolicy(
            self.timestep_encoder, self.trajectory_encoder, self.actor, gamma_index=gamma_index
        )

    def num_parameters(self) -> int:
        """Number of trainable scalars."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)
