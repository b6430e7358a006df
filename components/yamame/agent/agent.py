"""Agent: all learned parts, built once from the specs of an environment."""

from collections.abc import Callable, Sequence

from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import nn
from torchrl.data import Composite, TensorSpec

from yamame.actions import ActionSpace, BoxDistribution
from yamame.agent.encoders import SeparateEncoders, check_encoder
from yamame.agent.policy import InContextPolicy
from yamame.agent.roles import output_layers
from yamame.checks import check_bounds, require
from yamame.heads import ActorHead
from yamame.timestep import inputs_from_spec
from yamame.trajectory import TrajectoryEncoder

MOST_GAMMAS = 64
"""Each has its own policy and values; experiments use up to ten."""


class InContextAgent(nn.Module):
    """Encoders, actor, critics and value representation that fit an environment.

    The parts are given as factories. Their remaining arguments are widths and specs that are known
    only here, so the same settings fit every environment. The actor and the critics share the two
    encoders (AMAGO, arXiv 2310.09971), or each have encoders of the same settings (recurrent
    model-free RL, arXiv 2110.05038).

    Args:
        observation_spec: The environment's observation spec, with its batch dimensions.
        action_spec: The environment's action spec, with the same batch dimensions.
        timestep_encoder: ``(inputs, goal_encoder=...) -> module`` writing the features.
        goal_encoder: ``(K, d) -> module`` embedding instructions; not used in an environment
            without goals.
        trajectory_encoder: ``(in_features) -> TrajectoryEncoder``.
        actor: ``(in_features, action_space=..., num_gammas=...) -> ActorHead``.
        critic: ``(in_features, action_space=..., gammas=..., num_outputs=...) -> critics``; a
            factory that returns None makes an agent without critics.
        returns: ``(num_gammas) -> value representation``.
        gammas: Discount factors in (0, 1), each with its own policy and values. The last one acts.
        probability_floor: Share of the uniform distribution mixed into discrete policies.
        box_distribution: Family of continuous policies; see `yamame.actions.ActionSpace`.
        probability_clip: Bounds of the probabilities of discrete policies; see
            `yamame.actions.ActionSpace`.
        share_encoders: Whether the critics read the actor's context. If not,
            `yamame.losses.SeparateREDQLoss` is the loss that trains the agent.

    Raises:
        ArgumentError: The trajectory encoder is not a `yamame.trajectory.TrajectoryEncoder`, or its
            context is not ``out_features`` wide; there are more than 64 discount factors.
    """

    @check_bounds
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
        probability_clip: Sequence[float] | None = None,
        share_encoders: bool = True,
    ) -> None:
        super().__init__()
        batch_dims = len(observation_spec.shape)
        few = len(gammas) <= MOST_GAMMAS
        condition = f"have at most {MOST_GAMMAS} numbers"
        require("InContextAgent", "gammas", list(gammas), few, condition)
        self.gammas = tuple(float(gamma) for gamma in gammas)
        self.action_space = ActionSpace(
            action_spec,
            batch_dims=batch_dims,
            probability_floor=probability_floor,
            box_distribution=box_distribution,
            probability_clip=probability_clip,
        )

        # Parts are built in this order, because each draws its initial weights from the same
        # generator.
        pairs = []
        for _ in range(1 if share_encoders else 2):
            embed_goals = None
            if "goal" in observation_spec.keys(True, True):
                num_goals, goal_size = observation_spec["goal"].shape[batch_dims:]
                embed_goals = goal_encoder(num_goals, goal_size)
            inputs = inputs_from_spec(observation_spec, batch_dims=batch_dims)
            encode_timesteps = timestep_encoder(inputs, goal_encoder=embed_goals)
            encode_trajectories = trajectory_encoder(encode_timesteps.out_features)
            check_encoder(encode_trajectories, encode_timesteps.out_features)
            pairs.append((encode_timesteps, encode_trajectories))
        self.timestep_encoder, self.trajectory_encoder = pairs[0]
        self.critic_encoder = None if share_encoders else TensorDictSequential(*pairs[1])

        width = self.trajectory_encoder.out_features
        self.actor = actor(width, action_space=self.action_space, num_gammas=len(self.gammas))
        self.returns = returns(len(self.gammas))
        # Binned values take one output per bin, plain ones a single output.
        self.critic = critic(
            width,
            action_space=self.action_space,
            gammas=self.gammas,
            num_outputs=self.returns.num_outputs,
        )

    @property
    def encoder(self) -> TensorDictModuleBase:
        """All encoders as one module, which writes the context of every timestep of ``[B, L]``.

        If the critics have encoders of their own, it writes their context as ``critic_context``.
        """
        encoder = TensorDictSequential(self.timestep_encoder, self.trajectory_encoder)
        if self.critic_encoder is None:
            return encoder
        return SeparateEncoders(encoder, self.critic_encoder)

    @property
    def parameter_roles(self) -> dict[str, str]:
        """Roles of parameters: the last layers of actor and critics are outputs."""
        roles = {}
        for name, head in (("actor", self.actor), ("critic", self.critic)):
            if head is None:
                continue
            for layer in output_layers(head):
                # A head that is a single layer has an empty path.
                path = f"{name}.{layer}" if layer else name
                roles[path] = "output"
        return roles

    def policy(self, *, gamma_index: int = -1) -> InContextPolicy:
        """Return a policy that shares this agent's parameters.

        Args:
            gamma_index: Index of the discount factor whose policy acts.
        """
        return InContextPolicy(
            self.timestep_encoder, self.trajectory_encoder, self.actor, gamma_index=gamma_index
        )

    def num_parameters(self) -> int:
        """Return the number of trainable scalars."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)
