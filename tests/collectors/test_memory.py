"""What becomes of the memory of an acting policy when its weights change."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import nn
from yamame.agent import InContextAgent
from yamame.collectors import SyncCollector
from yamame.heads import ActorHead, PopArt, make_critic
from yamame.timestep import MLPGoalEncoder, MLPTimestepEncoder
from yamame.trajectory import GRUEncoder, RSMEncoder, TransformerEncoder
from yamame_envs import MazeRunner

NUM_ENVS = 3
ENCODERS = {
    "gru": partial(GRUEncoder, hidden_size=8, out_features=8),
    "transformer": partial(TransformerEncoder, d_model=8, num_heads=2, num_layers=1),
    "rsm": partial(RSMEncoder, d_model=8, num_heads=2, num_layers=1, segment_length=3),
}
CHOICES = ("keep", "rebuild", "reset")


class Shelf:
    """Takes trajectories and forgets them."""

    def extend(self, data):
        pass


class Sum(TensorDictModuleBase):
    """A stranger's: its memory is the sum of a weight over the timesteps of an episode."""

    def __init__(self):
        super().__init__()
        self.in_keys, self.out_keys = ["is_init"], ["action"]
        self.weight = nn.Parameter(torch.ones(()))
        self.total = None

    def forward(self, tensordict):
        is_init = tensordict["is_init"].squeeze(-1)
        before = torch.zeros(len(is_init)) if self.total is None else self.total
        self.total = torch.where(is_init, 0.0, before) + self.weight
        return tensordict.set("action", torch.randint(0, 5, (len(is_init),)))

    def memory_state_dict(self):
        return {} if self.total is None else {"total": self.total.clone()}

    def load_memory_state_dict(self, state):
        self.total = state.get("total")

    def reset_memory(self):
        self.total = None


def maze():
    return MazeRunner(num_envs=NUM_ENVS, size=5, num_goals=1, time_limit=13, seed=2)


def collector_of(policy, env=None, **options):
    return SyncCollector(maze() if env is None else env, policy, Shelf(), **options)


def in_context(encoder):
    torch.manual_seed(0)
    env = maze()
    agent = InContextAgent(
        env.observation_spec,
        env.full_action_spec["action"],
        timestep_encoder=partial(MLPTimestepEncoder, hidden_size=16, out_size=8),
        goal_encoder=MLPGoalEncoder,
        trajectory_encoder=ENCODERS[encoder],
        actor=partial(ActorHead, hidden_size=16),
        critic=partial(make_critic, hidden_size=16),
        returns=PopArt,
        gammas=(0.9,),
    )
    return agent.policy()


def weights_of(policy, scale=1.0):
    return (
        TensorDict.from_module(policy)
        .data.clone()
        .apply(lambda value: value * scale if value.is_floating_point() else value)
    )


def update(collector, num_steps, scale):
    """Collects, changes weights and collects on; the lengths of open episodes at the change."""
    torch.manual_seed(1)
    collector.collect(num_steps * NUM_ENVS)
    lengths = collector.assembler.state_dict()["length"].clone()
    collector.update_policy_weights_(weights_of(collector.policy, scale))
    return lengths


@pytest.mark.parametrize("num_steps", [5, 13, 31])
def test_a_memory_of_a_stranger_is_what_the_choice_says(num_steps):
    totals = {}
    for choice in CHOICES:
        collector = collector_of(Sum(), memory_after_update=choice)
        lengths = update(collector, num_steps, 10.0)
        totals[choice] = collector.policy.total
        assert collector.policy.weight == 10.0
    is_open = lengths > 0
    assert totals["reset"] is None
    assert (totals["keep"] == lengths)[is_open].all()
    assert is_open.any() == (totals["rebuild"] is not None)
    if is_open.any():
        assert (totals["rebuild"] == 10.0 * lengths)[is_open].all()


def test_episodes_of_different_lengths_are_rebuilt_each_from_its_start():
    collector = collector_of(Sum(), memory_after_update="rebuild")
    lengths = update(collector, 60, 3.0)
    assert len(lengths.unique()) > 1
    assert (collector.policy.total == 3.0 * lengths)[lengths > 0].all()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_rebuilt_by_the_same_weights_a_memory_goes_on_as_if_it_were_kept(encoder):
    samples = {}
    for choice in CHOICES:
        collector = collector_of(in_context(encoder), memory_after_update=choice)
        lengths = update(collector, 20, 1.0)
        assert lengths.amax() > 3
        timestep = collector._current.clone()
        policy = collector.policy
        with torch.no_grad():
            encoded = policy.trajectory_encoder
            memory = encoded.ready_memory(encoded.read_is_init(timestep)).clone()
            samples[choice] = policy.decide(timestep.select(*policy.in_keys, strict=False), memory)[
                0
            ]
    torch.testing.assert_close(samples["rebuild"], samples["keep"], rtol=1e-4, atol=1e-5)
    assert (samples["reset"] - samples["keep"]).abs().amax() > 1e-4


def test_rebuilding_draws_nothing():
    states = []
    for choice in ("keep", "rebuild"):
        update(collector_of(in_context("gru"), memory_after_update=choice), 20, 1.1)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


class Forgetful(TensorDictModuleBase):
    """Acts by nothing at all."""

    in_keys, out_keys = ("is_init",), ("action",)

    def forward(self, tensordict):
        return tensordict.set("action", torch.zeros(NUM_ENVS, dtype=torch.int64))


@pytest.mark.parametrize("choice", ["rebuild", "reset"])
def test_a_policy_without_a_memory_to_renew_is_refused(choice):
    message = f"SyncCollector: memory_after_update must be keep for Forgetful, .*, got '{choice}'"
    with pytest.raises(ValueError, match=message):
        collector_of(Forgetful(), memory_after_update=choice)
    collector_of(Forgetful(), memory_after_update="keep")


def test_another_choice_is_refused():
    with pytest.raises(ValueError, match=r"memory_after_update must be one of .*, got 'forget'"):
        collector_of(Sum(), memory_after_update="forget")
