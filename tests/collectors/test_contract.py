"""What a training loop may rely on: ours and a collector from elsewhere pass the same tests."""

import copy
import math
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from tensordict.nn import TensorDictSequential as Sequential
from torch import nn
from torchrl.modules import QValueModule
from yamame.collectors import Collector, EpisodeCollector, Episodes, RayCollector, SyncCollector
from yamame.replay.packing import pack
from yamame_envs import PassiveTMaze

NUM_ENVS = 2
MAZE = partial(PassiveTMaze, length=4)


class ForeignCollector:
    """From elsewhere: plays TorchRL's rollouts of whole episodes, knows nothing of ours but the
    protocol.
    """

    def __init__(self, env, policy, replay):
        self.env, self.policy, self.replay = env, copy.deepcopy(policy), replay

    def collect(self, num_steps):
        parts = []
        while sum(part.num_steps for part in parts) < num_steps:
            rollout = self.env.rollout(
                1000, self.policy, break_when_any_done=False, break_when_all_done=True
            )
            data = pack(rollout, split=False)
            self.replay.extend(data)
            lengths = data["mask"].flatten(1).sum(-1) - 1
            returns = data["next", "reward"].flatten(1).sum(-1)
            success = data["next", "success"].flatten(1).any(-1)
            parts.append(Episodes(rollout.numel(), returns, lengths, success))
        return Episodes.merged(parts)

    def update_policy_weights_(self, weights):
        TensorDict.from_module(self.policy).data.update_(weights)

    def state_dict(self):
        return {"policy": copy.deepcopy(self.policy.state_dict())}

    def load_state_dict(self, state):
        self.policy.load_state_dict(state["policy"])

    def metrics(self):
        return {}

    def shutdown(self):
        pass


def make_policy():
    net = TensorDictModule(nn.Linear(2, 4), ["observation"], ["action_value"])
    return Sequential(net, QValueModule(action_space="categorical"))


def choose(policy, action):
    """Lets a policy take one action always; its weights."""
    with torch.no_grad():
        policy[0].module.weight.zero_()
        policy[0].module.bias.zero_()[action] = 1.0
    return TensorDict.from_module(policy).data


KINDS = {
    "sync": lambda policy, replay: SyncCollector(MAZE(num_envs=NUM_ENVS), policy, replay),
    "episode": lambda policy, replay: EpisodeCollector(MAZE(num_envs=NUM_ENVS), policy, replay),
    "ray": lambda policy, replay: RayCollector(
        MAZE, policy, replay, num_envs=NUM_ENVS, seed=0, block_steps=5, max_staleness=20
    ),
    "foreign": lambda policy, replay: ForeignCollector(MAZE(num_envs=NUM_ENVS), policy, replay),
}


STARTS_RAY = pytest.param("ray", marks=pytest.mark.cluster)


@pytest.fixture(scope="class", params=[STARTS_RAY if kind == "ray" else kind for kind in KINDS])
def collector(request, make_shelf):
    if request.param == "ray":
        request.getfixturevalue("local_ray")
    made = KINDS[request.param](make_policy(), make_shelf())
    yield made
    made.shutdown()


def actions_of(collector, num_steps=60):
    """The actions that are executed once everything has been collected that was taken before."""
    collector.collect(60)
    collector.replay.take()
    collector.collect(num_steps)
    return {int(action) for one in collector.replay.take() for action in one["action"][:-1]}


class TestCollector:
    def test_it_keeps_to_the_protocol(self, collector):
        assert isinstance(collector, Collector)
        assert not isinstance(collector.replay, Collector)

    def test_what_it_tells_is_what_replay_got(self, collector):
        brought = [collector.collect(31) for _ in range(3)]
        assert all(31 <= episodes.num_steps < 31 + 2 * 20 for episodes in brought)
        stored, episodes = collector.replay.take(), Episodes.merged(brought)
        assert len(stored) >= 6
        assert episodes.lengths.tolist() == [len(one) - 1 for one in stored]
        assert episodes.returns.tolist() == [float(one["next", "reward"].sum()) for one in stored]
        assert episodes.success.tolist() == [bool(one["next", "success"].any()) for one in stored]
        assert episodes.num_aborted == 0

    def test_trajectories_are_whole(self, collector):
        collector.collect(60)
        for one in collector.replay.take():
            num_steps = len(one) - 1
            assert one["mask"].all()
            assert one["is_init"].flatten().tolist() == [True] + [False] * num_steps
            assert one["step_index"].flatten().tolist() == list(range(num_steps + 1))
            ends = one["next", "terminated"] | one["next", "truncated"]
            assert ends.flatten().tolist() == [False] * (num_steps - 1) + [True, False]

    def test_it_acts_with_the_weights_that_it_was_given_last_and_not_with_the_learners(
        self, collector
    ):
        learner = make_policy()
        collector.update_policy_weights_(choose(learner, 1))
        assert actions_of(collector) == {1}
        weights = choose(learner, 2)
        assert actions_of(collector) == {1}
        collector.update_policy_weights_(weights)
        assert actions_of(collector) == {2}

    def test_its_state_brings_back_the_weights(self, collector):
        learner = make_policy()
        collector.update_policy_weights_(choose(learner, 3))
        state = copy.deepcopy(collector.state_dict())
        collector.update_policy_weights_(choose(learner, 0))
        collector.load_state_dict(state)
        assert actions_of(collector) == {3}

    def test_its_metrics_are_numbers(self, collector):
        metrics = collector.metrics()
        assert all(isinstance(name, str) for name in metrics)
        assert all(isinstance(value, float) and math.isfinite(value) for value in metrics.values())

    def test_it_can_be_shut_down_twice(self, collector):
        collector.shutdown()
        collector.shutdown()
