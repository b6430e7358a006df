"""An agent whose critics have encoders of their own, with every kind of trajectory encoder."""

from functools import partial

import pytest
import torch
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from yamame import conf_dir
from yamame.actions import BetaDistribution
from yamame.agent import InContextAgent
from yamame.cli.nodes import instantiate
from yamame.heads import ActorHead, PopArt, make_critic
from yamame.losses import SeparateREDQLoss
from yamame.timestep import MLPGoalEncoder, MLPTimestepEncoder
from yamame.trajectory import GRUEncoder
from yamame_envs import MazeRunner, Wind

ENCODERS = sorted(
    path.stem
    for path in (conf_dir() / "encoder").glob("*.yaml")
    if path.stem not in ("hf", "torchrl")
)
GRU = partial(GRUEncoder, hidden_size=8, out_features=8)


def make_agent(encoder=GRU, *, env=None, **settings) -> InContextAgent:
    torch.manual_seed(0)
    env = MazeRunner(num_envs=4, size=7, num_goals=2, time_limit=12, seed=3) if env is None else env
    return InContextAgent(
        env.observation_spec,
        env.full_action_spec["action"],
        timestep_encoder=partial(MLPTimestepEncoder, hidden_size=16, out_size=8),
        goal_encoder=MLPGoalEncoder,
        trajectory_encoder=encoder,
        actor=partial(ActorHead, hidden_size=16),
        critic=settings.pop("critic", partial(make_critic, hidden_size=16)),
        returns=PopArt,
        gammas=(0.99,),
        **{"share_encoders": False, **settings},
    )


def make_loss(agent: InContextAgent) -> SeparateREDQLoss:
    heads = (agent.encoder, agent.actor, agent.critic, agent.returns)
    return SeparateREDQLoss(*heads, action_space=agent.action_space, gammas=agent.gammas)


def rollout(agent: InContextAgent, num_steps: int) -> TensorDict:
    env = MazeRunner(num_envs=4, size=7, num_goals=2, time_limit=12, seed=3)
    with torch.no_grad():
        batch = env.rollout(num_steps, agent.policy().eval(), break_when_any_done=False)
    agent.trajectory_encoder.memory = None
    return batch.set("mask", torch.ones(4, num_steps, 1, dtype=torch.bool))


@pytest.mark.parametrize("choice", ENCODERS)
def test_every_encoder_works_for_both_and_one_update_moves_every_parameter(choice, skip_if_missing):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        short = (
            ["encoder.segment_length=4", "encoder.jitter=0"] if choice in ("rsm", "memo") else []
        )
        encoder = instantiate(compose("train", overrides=[f"encoder={choice}", *short]).encoder)
    try:
        agent = make_agent(encoder)
    except ValueError as error:
        skip_if_missing(str(error))
        raise
    actor, critic = (
        set(part.parameters()) for part in (agent.trajectory_encoder, agent.critic_encoder)
    )
    assert actor
    assert not actor & critic
    loss = make_loss(agent).train()
    terms = loss(rollout(agent, 20))
    sum(value for key, value in terms.items() if key.startswith("loss_")).backward()
    still = [
        name for name, p in agent.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0
    ]
    assert still == []


@pytest.mark.parametrize("choice", ["gru", "transformer"])
def test_episodes_that_share_a_row_are_encoded_as_if_each_had_its_own(choice):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        encoder = instantiate(compose("train", overrides=[f"encoder={choice}"]).encoder)
    agent = make_agent(encoder)
    loss = make_loss(agent).eval()
    with torch.no_grad():  # a target that is told apart from what it follows
        for target in loss._targets["encoder"].parameters():
            target.mul_(1.1)
    batch = rollout(agent, 24)  # two episodes of at most twelve steps, and more
    starts = batch["is_init"][0, :, 0].nonzero().flatten().tolist()
    assert len(starts) > 1
    first, second = batch[:1, : starts[1]], batch[:1, starts[1] :]
    with torch.no_grad():
        present = loss._contexts(loss.encoder, batch[:1])
        row = loss._arrival_contexts(batch[:1], *present)
        parts = [
            loss._arrival_contexts(part, *loss._contexts(loss.encoder, part))
            for part in (first, second)
        ]
    for whole, *separate in zip(row, *parts, strict=True):
        # Equal up to the order of sums.
        torch.testing.assert_close(whole[:, : starts[1] - 1], separate[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(whole[:, starts[1] :], separate[1], atol=1e-5, rtol=0)
    assert not torch.allclose(row[0], present[0][:, 1:], atol=1e-3)


def test_the_policy_acts_by_the_actors_encoders_alone():
    agent = make_agent().eval()
    torch.nn.init.normal_(agent.actor.mlp[-1].weight)  # far from indifferent

    def actions() -> torch.Tensor:
        torch.manual_seed(0)
        return rollout(agent, 30)["action"]

    before = actions()
    with torch.no_grad():
        for parameter in (*agent.critic_encoder.parameters(), *agent.critic.parameters()):
            parameter.normal_()
    assert torch.equal(actions(), before)
    with torch.no_grad():
        for parameter in agent.timestep_encoder.parameters():
            parameter.normal_()
    assert not torch.equal(actions(), before)


def test_only_a_separate_agent_has_encoders_of_the_critics():
    shared = make_agent(share_encoders=True)
    assert shared.critic_encoder is None
    assert not any(name.startswith("critic_encoder") for name in shared.state_dict())
    separate = make_agent()
    assert any(name.startswith("critic_encoder") for name in separate.state_dict())
    assert separate.num_parameters() > shared.num_parameters()


def test_an_agent_may_have_no_critic():
    agent = make_agent(critic=partial(make_critic, num_critics=0), share_encoders=True)
    assert agent.critic is None
    assert not any("critic" in name for name, _ in agent.named_parameters())


@pytest.mark.parametrize("family", ["tanh_normal", "beta"])
def test_continuous_policies_are_of_the_chosen_family(family):
    agent = make_agent(env=Wind(num_envs=4, seed=0), share_encoders=True, box_distribution=family)
    distribution = agent.action_space.distribution(torch.zeros(3, agent.action_space.num_params))
    assert isinstance(distribution, BetaDistribution) == (family == "beta")
