"""The assembly: one agent for any specs, a policy that remembers in itself and writes nothing but
its action.
"""

import copy
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, Unbounded
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import set_recurrent_mode
from yamame.agent import InContextAgent, InContextPolicy
from yamame.agent.encoders import check_encoder
from yamame.checks import UsageError
from yamame.heads import ActorHead, PopArt, make_critic
from yamame.losses import MultiGammaREDQLoss
from yamame.testing import check_trajectory_encoder
from yamame.timestep import MLPGoalEncoder, MLPTimestepEncoder
from yamame.trajectory import GRUEncoder, TrajectoryEncoder, TrajectoryKeys, TransformerEncoder

ROWS = 3
ACTIONS = {
    "discrete": Categorical(4, shape=(ROWS,)),
    "several": MultiCategorical([2, 3], shape=(ROWS, 2)),
    "bits": Binary(3, shape=(ROWS, 3)),
    "box": Bounded(-2.0, 3.0, shape=(ROWS, 2)),
}


def observation_spec(encoded: int) -> Composite:
    column = {"shape": (ROWS, 1)}
    return Composite(
        observation=Unbounded(shape=(ROWS, 5)),
        goal=Unbounded(shape=(ROWS, 2, 2)),
        achieved=Unbounded(shape=(ROWS, 1, 2)),
        achieved_mask=Binary(1, dtype=torch.bool, **column),
        prev_action=Unbounded(shape=(ROWS, encoded)),
        prev_reward=Unbounded(**column),
        time=Unbounded(**column),
        trial_start=Binary(1, dtype=torch.bool, **column),
        step_index=Unbounded(dtype=torch.int64, **column),
        is_init=Binary(1, dtype=torch.bool, **column),
        shape=(ROWS,),
    )


def make_agent(kind: str = "discrete", encoder=None) -> InContextAgent:
    torch.manual_seed(0)
    encoded = {"discrete": 4, "several": 5, "bits": 3, "box": 2}[kind]
    return InContextAgent(
        observation_spec(encoded),
        ACTIONS[kind],
        timestep_encoder=partial(MLPTimestepEncoder, hidden_size=16, out_size=8),
        goal_encoder=MLPGoalEncoder,
        trajectory_encoder=encoder
        or partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=1),
        actor=partial(ActorHead, hidden_size=16),
        critic=partial(make_critic, hidden_size=16),
        returns=PopArt,
        gammas=(0.9, 0.99),
    )


def timesteps(agent: InContextAgent, length: int, seed: int = 0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    spec = observation_spec(agent.action_space.encoded_size)
    batch = TensorDict({}, [ROWS, length])
    for key, leaf in spec.items(True, True):
        shape = (ROWS, length, *leaf.shape[1:])
        batch[key] = torch.randn(shape, generator=generator).to(leaf.dtype)
    batch["step_index"] = torch.arange(length).expand(ROWS, length).unsqueeze(-1).clone()
    batch["is_init"] = batch["step_index"] == 0
    return batch


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_policy_writes_an_action_of_the_spec_and_nothing_else(kind):
    agent = make_agent(kind)
    step = timesteps(agent, 1)[:, 0]
    before = set(step.keys(True, True))
    policy = agent.policy().eval()
    for mode in (ExplorationType.RANDOM, ExplorationType.DETERMINISTIC):
        with set_exploration_type(mode):
            acted = policy(step.clone())
        assert set(acted.keys(True, True)) == before | {"action"}
        assert ACTIONS[kind].is_in(acted["action"])


@pytest.mark.parametrize("encoder", [None, partial(GRUEncoder, hidden_size=8, out_features=16)])
def test_acting_step_by_step_equals_the_actor_over_the_whole_sequence(encoder):
    agent = make_agent(encoder=encoder).eval()
    batch = timesteps(agent, 9)
    with set_recurrent_mode(True), torch.no_grad():
        context = agent.encoder(batch.clone())["context"]
        expected = agent.actor(context)[..., -1, :].argmax(-1)
    policy = agent.policy().eval()
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        acted = torch.stack([policy(batch[:, t].clone())["action"] for t in range(9)], 1)
    assert torch.equal(acted, expected)


def test_the_history_matters_to_what_the_policy_does():
    agent = make_agent().eval()
    first, other = timesteps(agent, 6, seed=0), timesteps(agent, 6, seed=1)
    other[:, -1] = first[:, -1]
    params = []
    for batch in (first, other):
        with set_recurrent_mode(True), torch.no_grad():
            params.append(agent.actor(agent.encoder(batch.clone())["context"][:, -1]))
    assert not torch.allclose(*params, atol=1e-4)


def test_every_gamma_can_act_and_only_its_own_parameters_decide():
    agent = make_agent().eval()
    step = timesteps(agent, 1)[:, 0]
    with torch.no_grad():
        last = agent.actor.mlp[-1]
        last.weight.zero_()
        last.bias.copy_(torch.tensor([9.0, 0, 0, 0, 0, 0, 0, 9.0]))
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert agent.policy(gamma_index=0)(step.clone())["action"].tolist() == [0] * ROWS
        assert agent.policy()(step.clone())["action"].tolist() == [3] * ROWS
    with pytest.raises(ValueError, match=r"gamma_index .* 2 gammas, got 2"):
        agent.policy(gamma_index=2)


class CountingEncoder(TrajectoryEncoder):
    """A user's own: the context is how many timesteps there were, and a sum of the first
    feature.
    """

    def __init__(self, in_features):
        super().__init__(in_features, 2)

    def init_memory(self, num_envs, *, capacity=None, device=None):
        return TensorDict(
            {"counts": torch.zeros(num_envs, 2, device=device)}, [num_envs], device=device
        )

    def step(self, x, memory, is_init, step_index=None):
        seen = torch.stack((torch.ones(len(x)), x[:, 0] + 1.3), 1)
        counts = memory["counts"].masked_fill(is_init.unsqueeze(1), 0) + seen
        return counts, memory.clone().set("counts", counts)


class FirstFour(nn.Module):
    """An actor of four numbers of the context."""

    def forward(self, context):
        return context[..., :4].unsqueeze(-2)


class LinearActor(nn.Module):
    """A user's own: parameters of one distribution over four actions."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[-1.0, 1.0, 0.0, 0.0], [60.0, -1.0, 0.0, -9.0]]))

    def forward(self, context):
        return (context @ self.weight).unsqueeze(-2)


def test_a_policy_of_foreign_encoder_and_actor_acts_from_the_history_and_nothing_is_asked_of_them():
    agent = make_agent().eval()
    encoder = CountingEncoder(agent.timestep_encoder.out_features)
    policy = InContextPolicy(
        agent.timestep_encoder, encoder, LinearActor(), action_space=agent.action_space
    )
    batch = timesteps(agent, 30)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        actions = torch.stack([policy(batch[:, t].clone())["action"] for t in range(30)], 1)
    with torch.no_grad():
        large = 1.3 + agent.timestep_encoder(batch.clone())["features"][..., 0]
    counts = torch.stack((torch.arange(1.0, 31).expand(ROWS, 30), large.cumsum(1)), -1)
    assert torch.equal(actions, (counts @ policy.actor.weight).argmax(-1))
    assert actions.unique().numel() > 1
    check_trajectory_encoder(encoder)


def test_an_actor_needs_no_parameters():
    agent = make_agent().eval()
    policy = InContextPolicy(
        agent.timestep_encoder,
        agent.trajectory_encoder,
        FirstFour(),
        action_space=agent.action_space,
    )
    action = policy(timesteps(agent, 1)[:, 0])["action"]
    assert action.shape == (ROWS,)


def test_a_policy_keeps_the_memory_itself():
    agent = make_agent()
    encoder = GRUEncoder(8, keys=TrajectoryKeys(memory="state"))
    with pytest.raises(
        ValueError,
        match=r"InContextPolicy: trajectory_encoder.keys.memory must be None, got 'state'",
    ):
        InContextPolicy(agent.timestep_encoder, encoder, agent.actor)


def test_a_copied_policy_does_not_follow_the_learner():
    agent = make_agent().eval()
    policy = agent.policy()
    actor = copy.deepcopy(policy)
    with torch.no_grad():
        agent.actor.mlp[-1].bias.add_(1.0)
    assert torch.equal(policy.actor.mlp[-1].bias, agent.actor.mlp[-1].bias)
    assert not torch.equal(actor.actor.mlp[-1].bias, agent.actor.mlp[-1].bias)


@pytest.mark.parametrize("kind", ACTIONS)
def test_one_update_of_the_loss_moves_every_parameter_of_the_agent(kind):
    agent = make_agent(kind).train()
    loss = MultiGammaREDQLoss(
        agent.encoder,
        agent.actor,
        agent.critic,
        agent.returns,
        action_space=agent.action_space,
        gammas=agent.gammas,
        cloning_filter="none",
    )
    batch = timesteps(agent, 7)
    batch["action"] = agent.action_space.decode(
        agent.action_space.distribution(
            torch.zeros(ROWS, 7, agent.action_space.num_params)
        ).sample()
    )
    batch["mask"] = torch.ones(ROWS, 7, 1, dtype=torch.bool)
    batch["next"] = TensorDict(
        {
            "reward": torch.randn(ROWS, 7, 1),
            "terminated": torch.zeros(ROWS, 7, 1, dtype=torch.bool),
        },
        [ROWS, 7],
    )
    terms = loss(batch)
    sum(value for key, value in terms.items() if key.startswith("loss_")).backward()
    still = [
        name for name, p in agent.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0
    ]
    assert still == []


@pytest.mark.parametrize("mode", [ExplorationType.RANDOM, ExplorationType.DETERMINISTIC])
def test_an_action_that_is_not_allowed_is_never_chosen(mode):
    agent = make_agent().eval()
    step = timesteps(agent, 1)[:, 0]
    step["action_mask"] = torch.tensor([[False, False, True, False]] * ROWS)
    policy = agent.policy().eval()
    with set_exploration_type(mode):
        assert all(policy(step.clone())["action"].tolist() == [2] * ROWS for _ in range(20))


class TooWide(CountingEncoder):
    """Says two numbers of context, and gives three."""

    def step(self, x, memory, is_init, step_index=None):
        context, memory = super().step(x, memory, is_init, step_index)
        return torch.cat([context, context[:, :1]], 1), memory


def test_an_encoder_that_is_none_or_gives_another_width_is_named_when_the_agent_is_built():
    with pytest.raises(
        UsageError, match=r"encoder must .* \[1, 2\] .*TooWide\.step.* got \[1, 3\]$"
    ):
        make_agent(encoder=TooWide)
    with pytest.raises(UsageError, match=r"encoder must be a .*\.TrajectoryEncoder, got 'Linear'$"):
        make_agent(encoder=partial(nn.Linear, out_features=16))
    assert make_agent(encoder=CountingEncoder).trajectory_encoder.memory is None


def test_looking_at_an_encoder_changes_neither_it_nor_random_numbers():
    torch.manual_seed(3)
    encoder = TransformerEncoder(
        5, d_model=8, num_heads=2, num_layers=1, dropout=0.5, sigma_reparam=True
    )
    encoder.layers.eval() if hasattr(encoder, "layers") else None
    modes = [module.training for module in encoder.modules()]
    state, rng = copy.deepcopy(encoder.state_dict()), torch.get_rng_state()
    check_encoder(encoder, 5)
    assert torch.equal(rng, torch.get_rng_state())
    assert [module.training for module in encoder.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in encoder.state_dict().items())
