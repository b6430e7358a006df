"""Whatever writes an action can play: policies of TorchRL, of strangers, ours, and those made of
parts of ours.
"""

import copy
import traceback
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
)
from tensordict.nn import TensorDictSequential as Sequential
from torch import nn
from torchrl.envs import TransformedEnv
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules import GRUModule, ProbabilisticActor, QValueModule, set_recurrent_mode
from yamame.agent import InContextAgent
from yamame.collectors import EpisodeCollector, SyncCollector
from yamame.evaluation import evaluate
from yamame.heads import ActorHead, PopArt, make_critic
from yamame.timestep import MLPGoalEncoder, MLPTimestepEncoder
from yamame.trajectory import GRUEncoder, TrajectoryKeys
from yamame_envs import MazeRunner

NUM_ENVS, NUM_ACTIONS = 3, 5


def maze() -> MazeRunner:
    return MazeRunner(num_envs=NUM_ENVS, size=7, num_goals=1, time_limit=11, seed=2)


OBSERVED = maze().observation_spec["observation"].shape[-1]


class Shelf:
    """Keeps whatever is appended."""

    def __init__(self):
        self.trajectories = []

    def extend(self, data):
        self.trajectories += [one[: int(one["mask"].sum())].clone() for one in data.unbind(0)]


class Counting(TensorDictModuleBase):
    """A stranger's: acts by the steps in a memory of its own, and notes the weights it was prepared
    with.
    """

    def __init__(self):
        super().__init__()
        self.in_keys, self.out_keys = ["is_init"], ["action"]
        self.first_action = nn.Parameter(torch.zeros(()))
        self.count = None
        self.prepared_with = []

    def forward(self, tensordict):
        is_init = tensordict["is_init"].squeeze(-1)
        before = torch.zeros(len(is_init), dtype=torch.int64) if self.count is None else self.count
        self.count = torch.where(is_init, 0, before + 1)
        return tensordict.set("action", (self.count + int(self.first_action)) % NUM_ACTIONS)

    def memory_state_dict(self):
        return {} if self.count is None else {"count": self.count.clone()}

    def load_memory_state_dict(self, state):
        self.count = state.get("count")

    def reset_memory(self):
        self.count = None

    def prepare_to_act(self):
        self.prepared_with.append(int(self.first_action))

    def __getstate__(self):
        return {**self.__dict__, "count": None}


def value_network(width: int, in_key: str):
    layers = nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, NUM_ACTIONS))
    return TensorDictModule(layers, [in_key], ["action_value"])


def greedy_q():
    return maze(), Sequential(
        value_network(OBSERVED, "observation"), QValueModule(spec=maze().action_spec_unbatched)
    )


def sampling_actor():
    logits = TensorDictModule(nn.Linear(OBSERVED, NUM_ACTIONS), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        logits,
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        spec=maze().action_spec_unbatched,
    )
    assert isinstance(actor, ProbabilisticTensorDictSequential)
    return maze(), actor


def state_in_tensordict():
    gru = GRUModule(
        input_size=OBSERVED,
        hidden_size=8,
        in_keys=["observation", "h", "is_init"],
        out_keys=["x", ("next", "h")],
    )
    policy = Sequential(gru, value_network(8, "x"), QValueModule(spec=maze().action_spec_unbatched))
    return TransformedEnv(maze(), gru.make_tensordict_primer()), policy


def counting():
    return maze(), Counting()


def ours():
    env = maze()
    agent = InContextAgent(
        env.observation_spec,
        env.full_action_spec["action"],
        timestep_encoder=partial(MLPTimestepEncoder, hidden_size=16, out_size=8),
        goal_encoder=MLPGoalEncoder,
        trajectory_encoder=partial(GRUEncoder, hidden_size=32, out_features=32),
        actor=partial(ActorHead, hidden_size=16),
        critic=partial(make_critic, hidden_size=16),
        returns=PopArt,
        gammas=(0.9,),
    )
    return env, agent.policy()


def parts_of_ours(keys=None):
    env, policy = ours()
    encoder = GRUEncoder(8, hidden_size=8, out_features=8, keys=keys)
    sample = ProbabilisticTensorDictModule(
        {"logits": "action_value"}, ["action"], distribution_class=torch.distributions.Categorical
    )
    parts = (policy.timestep_encoder, encoder, value_network(8, "context"), sample)
    env = env if keys is None else TransformedEnv(env, encoder.make_tensordict_primer())
    return env, ProbabilisticTensorDictSequential(*parts)


def parts_of_ours_with_their_state_in_the_tensordict():
    return parts_of_ours(TrajectoryKeys(memory="memory"))


POLICIES = (
    greedy_q,
    sampling_actor,
    state_in_tensordict,
    counting,
    ours,
    parts_of_ours,
    parts_of_ours_with_their_state_in_the_tensordict,
)


def build(make, kind=SyncCollector, **settings):
    torch.manual_seed(0)
    env, policy = make()
    for parameter in policy.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter)  # so that actions depend on what was seen, and on the past
    return kind(env, policy, Shelf(), **settings)


@pytest.mark.parametrize("make", POLICIES)
@pytest.mark.parametrize("kind", [SyncCollector, EpisodeCollector])
def test_every_policy_plays_and_what_is_stored_is_the_same(make, kind):
    collector, usual = build(make, kind), build(ours, kind)
    for one in (collector, usual):
        one.collect(NUM_ENVS * 30)
    trajectories = collector.replay.trajectories
    assert len(trajectories) >= 6
    stored = [{key: value.dtype for key, value in t.items(True, True)} for t in trajectories]
    expected = {key: value.dtype for key, value in usual.replay.trajectories[0].items(True, True)}
    assert stored == [expected] * len(stored)
    for trajectory in trajectories:
        assert trajectory["is_init"].flatten().tolist() == [True] + [False] * (len(trajectory) - 1)


@pytest.mark.parametrize("make", POLICIES)
def test_every_policy_is_resumed_exactly(make):
    first, second, forgetful = build(make), build(make), build(make)
    first.collect(NUM_ENVS * 16)
    state, random = copy.deepcopy(first.state_dict()), torch.get_rng_state()
    first.replay.trajectories.clear()
    first.collect(NUM_ENVS * 30)
    without = {**state, "memory": {name: {} for name in state["memory"]}}
    for other, loaded in ((second, state), (forgetful, without)):
        other.load_state_dict(loaded)
        torch.set_rng_state(random)
        other.collect(NUM_ENVS * 30)
    kept = [collector.replay.trajectories for collector in (first, second, forgetful)]
    assert len(kept[0]) >= 6
    assert same(kept[0], kept[1])
    assert same(kept[0], kept[2]) == (not any(state["memory"].values())), (
        "a memory that is not restored must show"
    )


def same(some, others) -> bool:
    return len(some) == len(others) and all(
        one.shape == other.shape and bool((one == other).all())
        for one, other in zip(some, others, strict=True)
    )


def test_a_state_in_the_tensordict_goes_from_step_to_step_and_ends_with_the_episode():
    collector = build(state_in_tensordict)
    collector.collect(NUM_ENVS * 60)
    agrees = []
    for trajectory in collector.replay.trajectories:
        played = trajectory[:-1].select("observation", "is_init").unsqueeze(0)
        wiped = played.clone().set("is_init", torch.ones_like(played["is_init"]))
        for seen in (played, wiped):
            with torch.no_grad(), set_recurrent_mode(True):
                again = collector.policy(seen.clone())["action"]
            agrees.append(torch.equal(again.flatten(), trajectory["action"][:-1].flatten()))
    with_memory, without = agrees[::2], agrees[1::2]
    assert all(with_memory)
    assert not all(without), "the past must matter to show anything"


def test_a_memory_of_a_strangers_own_survives_blocks_and_weights_and_is_cleared_by_is_init():
    collector = build(counting)
    for first_action in range(6):
        with torch.no_grad():
            weights = TensorDict.from_module(collector.policy).data.clone()
            weights["first_action"].fill_(
                float(10 * first_action)
            )  # the same action: 10 is 2 times the actions
        collector.update_policy_weights_(weights)
        collector.collect(NUM_ENVS * 7)
    assert len(collector.replay.trajectories) >= 6
    for trajectory in collector.replay.trajectories:
        expected = trajectory["step_index"][:-1].flatten() % NUM_ACTIONS
        assert torch.equal(trajectory["action"][:-1], expected)
    assert collector.policy.prepared_with == [0, 0, 10, 20, 30, 40, 50]


def test_a_policy_is_prepared_with_the_weights_that_it_loads():
    collector, other = build(counting), build(counting)
    weights = TensorDict.from_module(collector.policy).data.clone()
    weights["first_action"].fill_(3.0)
    collector.update_policy_weights_(weights)
    other.load_state_dict(collector.state_dict())
    assert other.policy.prepared_with[-1] == 3


class Noting(TensorDictModuleBase):
    """Notes how it is asked to pick, and in which precision products are computed."""

    in_keys: ClassVar = ["observation"]
    out_keys: ClassVar = ["action"]
    noted: ClassVar = []

    def forward(self, tensordict):
        seen = tensordict["observation"]
        self.noted.append((exploration_type(), (seen @ seen.T).dtype))
        return tensordict.set("action", torch.zeros(len(seen), dtype=torch.int64))


def test_a_policy_is_called_in_the_mode_and_precision_that_were_set():
    Noting.noted.clear()
    for greedy in (False, True):
        for autocast in (None, "bfloat16"):
            collector = SyncCollector(maze(), Noting(), Shelf(), greedy=greedy, autocast=autocast)
            collector.collect(1)
            collector.update_policy_weights_(TensorDict.from_module(collector.policy).data)
            collector.load_state_dict(collector.state_dict())
            collector.collect(1)
    EpisodeCollector(maze(), Noting(), Shelf()).collect(1)
    random, mode = ExplorationType.RANDOM, ExplorationType.DETERMINISTIC
    single, half = torch.float32, torch.bfloat16
    asked = [(random, single), (random, half), (mode, single), (mode, half)]
    assert Noting.noted[:9] == [one for one in asked for _ in range(2)] + [(random, single)]


class Tracing(Counting):
    """Notes through which files of ours it was called."""

    files: ClassVar = []

    def forward(self, tensordict):
        names = [Path(frame.filename) for frame in traceback.extract_stack()]
        self.files.append([name.name for name in names if "yamame" in name.parts])
        return super().forward(tensordict)


def test_nothing_of_ours_stands_between_the_loop_and_the_policy():
    Tracing.files.clear()
    SyncCollector(maze(), Tracing(), Shelf()).collect(1)
    assert Tracing.files == [["sync.py"]]


@pytest.mark.parametrize("make", POLICIES)
def test_an_evaluation_in_mid_episode_changes_nothing_of_what_follows(make):
    undisturbed, disturbed, env = build(make), build(make), make()[0]
    for collector in (undisturbed, disturbed):
        torch.manual_seed(1)
        collector.collect(NUM_ENVS * 7)
        if collector is disturbed:
            memory = copy.deepcopy(collector.state_dict()["memory"])
            results = [evaluate(collector.policy, env, seed=4) for _ in range(2)]
            assert torch.equal(results[0].returns, results[1].returns)
            assert torch.equal(results[0].lengths, results[1].lengths)
            after = collector.state_dict()["memory"]
            assert str(memory) == str(after)
        collector.collect(NUM_ENVS * 20)
    assert same(undisturbed.replay.trajectories, disturbed.replay.trajectories)
    assert len(undisturbed.replay.trajectories) >= 3


def test_a_plain_function_is_no_policy():
    with pytest.raises(
        ValueError, match=r"SyncCollector: policy must be a TensorDict module, got <function"
    ):
        SyncCollector(maze(), lambda td: td, Shelf())


def test_a_policy_that_cannot_record_is_refused(monkeypatch):
    monkeypatch.setattr("yamame.collectors.sync.cuda_recorder", lambda device, owner: None)
    with pytest.raises(
        ValueError, match=r"SyncCollector: policy must have record\(\), got 'Counting'"
    ):
        build(counting, cuda_graph=True)


def test_a_policy_that_cannot_compile_is_refused(monkeypatch):
    monkeypatch.setattr("yamame.collectors.sync.check_compiler", lambda device, owner: None)
    with pytest.raises(
        ValueError, match=r"SyncCollector: policy must have compile_decisions\(\), got 'Counting'"
    ):
        build(counting, compile=True)


def test_a_removed_protocol_can_still_be_imported_and_checked():
    with pytest.warns(DeprecationWarning, match="Records"):
        from yamame.collectors import Records
    assert not isinstance(Counting(), Records)
    with pytest.raises(ImportError, match="Nothing"):
        from yamame.collectors import Nothing  # noqa: F401


def test_a_policy_that_can_record_does_so_with_the_recorder_of_its_device(monkeypatch):
    class Recording(Counting):
        def record(self, recorder):
            self.recorder = recorder

    monkeypatch.setattr(
        "yamame.collectors.sync.cuda_recorder", lambda device, owner: (device, owner)
    )
    collector = build(lambda: (maze(), Recording()), cuda_graph=True)
    assert collector.policy.recorder == (torch.device("cpu"), "SyncCollector")
    assert not hasattr(build(lambda: (maze(), Recording())).policy, "recorder")
