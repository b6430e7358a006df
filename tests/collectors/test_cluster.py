"""Ray actors bring whole, valid trajectories, follow the weights, are never far ahead, and may
die.
"""

import itertools
import signal
import time
from functools import partial

import psutil
import pytest
import torch
from tensordict import TensorDict
from torchrl.modules import set_recurrent_mode
from yamame.checks import UsageError
from yamame.collectors import RayCollector
from yamame.collectors.cluster import actor_seeds
from yamame.collectors.worker import RolloutWorker, WorkerConfig
from yamame.exploration import EpsilonGreedy
from yamame.trajectory import GRUEncoder, TransformerEncoder
from yamame_envs import MazeRunner

MAZE = partial(MazeRunner, size=7, num_goals=1, time_limit=15)
TRANSFORMER = partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=1)
GRU = partial(GRUEncoder, hidden_size=8, out_features=8)


@pytest.fixture
def build(make_policy, make_shelf):
    """Makes a collector, which is ended with the test."""
    made = []

    def build(make_env=MAZE, *, encoder=GRU, **settings):
        settings = {
            "num_envs": 4,
            "num_workers": 2,
            "seed": 7,
            "block_steps": 10,
            "max_staleness": 80,
            **settings,
        }
        made.append(
            RayCollector(
                make_env, make_policy(MAZE(num_envs=1, seed=0), encoder), make_shelf(), **settings
            )
        )
        return made[-1]

    yield build
    for collector in made:
        collector.shutdown()


@pytest.fixture
def make_collector(local_ray, build):
    return build


def choose(policy, action):
    """Weights of a policy that always takes one action."""
    with torch.no_grad():
        policy.actor.mlp[-1].weight.zero_()
        policy.actor.mlp[-1].bias.fill_(-100.0)[action] = 100.0
    return TensorDict.from_module(policy).data


def playing() -> list[psutil.Process]:
    """The processes of actors that have begun to play."""
    below = psutil.Process().children(recursive=True)
    return [child for child in below if child.name().startswith("ray::RolloutWorker.")]


# What they bring.


@pytest.mark.cluster
@pytest.mark.parametrize("encoder", [GRU, TRANSFORMER], ids=["GRU", "Transformer"])
def test_actions_are_those_of_one_pass_over_the_whole_history(make_collector, encoder):
    collector = make_collector(encoder=encoder, greedy=True)
    policy = collector.policy
    for weight in policy.parameters():  # larger, so that the history decides
        weight.mul_(4 if weight.ndim > 1 else 1)
    brought = [collector.collect(100) for _ in range(6)]
    stored = collector.replay.trajectories
    collector.replay.check_whole()
    differing = without_history = 0
    for one in stored:
        for trajectory in (one, one.clone().set("is_init", torch.ones_like(one["is_init"]))):
            with torch.no_grad(), set_recurrent_mode(True):
                seen = policy.trajectory_encoder(
                    policy.timestep_encoder(trajectory.unsqueeze(0).clone())
                )
                logits = policy.actor(seen[policy.trajectory_encoder.out_keys[0]])[
                    0, :-1, policy.gamma_index
                ]
            number = int((logits.argmax(-1) != one["action"][:-1]).sum())
            differing, without_history = (
                differing + number * (trajectory is one),
                without_history + number,
            )
    assert collector.replay.num_steps > 400
    assert differing == 0
    assert without_history > 20
    assert torch.cat([episodes.lengths for episodes in brought]).tolist() == [
        len(one) - 1 for one in stored
    ]


@pytest.mark.cluster
def test_trajectories_replay_in_the_environment(make_collector):
    collector = make_collector(num_envs=1, num_workers=1, max_staleness=20)
    collector.collect(150)
    again = MAZE(num_envs=1, seed=actor_seeds(7, 0, 0, 0)[0])
    current = again.reset()
    assert len(collector.replay.trajectories) >= 8
    for one in collector.replay.trajectories:
        for t in range(len(one) - 1):
            for key in (
                "observation",
                "goal",
                "achieved",
                "prev_action",
                "prev_reward",
                "step_index",
            ):
                assert torch.equal(current[key][0], one[key][t]), key
            stepped, following = again.step_and_maybe_reset(
                current.set("action", one["action"][t : t + 1])
            )
            for key in ("reward", "terminated", "truncated", "success"):
                assert torch.equal(stepped["next", key][0], one["next", key][t])
            current = following
        assert torch.equal(stepped["next", "observation"][0], one["observation"][-1])


def test_the_spent_share_of_a_request_reaches_the_exploration_of_an_actor(make_policy):
    policy = make_policy(MAZE(num_envs=1, seed=0), GRU)
    noise = EpsilonGreedy(policy.action_space, anneal=0.5)
    acting = {"greedy": False, "autocast": None}
    config = WorkerConfig(make_env=MAZE, num_envs=2, seed=0, torch_seed=0, acting=acting)
    worker = RolloutWorker(config, (policy, noise))
    worker.play(4, 0, [], 0)
    assert float(noise.spent) == 0.0
    worker.play(4, 0, [], 4, 0.25)
    assert float(noise.spent) == 0.25
    worker.close()


@pytest.mark.cluster
def test_weights_and_the_count_of_steps_reach_the_actors_within_the_bound(
    make_collector, make_policy
):
    policy = make_policy(MAZE(num_envs=1, seed=0), GRU)
    noise = EpsilonGreedy(policy.action_space, anneal_steps=200, start=1.0, end=0.0)
    collector = make_collector(exploration=noise, num_workers=1)
    brought = [collector.collect(100).num_steps]
    early = torch.cat([one["action"][:-1] for one in collector.replay.trajectories])
    for _ in range(30):
        collector.update_policy_weights_(choose(policy, 3))
        brought.append(collector.collect(40).num_steps)
        assert collector.metrics()["open_blocks"] == 2  # max_staleness // (num_envs * block_steps)
    metrics = collector.metrics()
    collector.replay.trajectories.clear()
    brought.append(collector.collect(300).num_steps)
    late = torch.cat([one["action"][:-1] for one in collector.replay.trajectories])
    assert early.unique().numel() > 1
    assert late[-100:].tolist() == [3] * 100
    assert metrics["weights_age_p50"] == metrics["weights_age_max"] == 2
    assert int(collector.exploration.num_env_steps) == sum(brought)
    assert int(noise.num_env_steps) == 0


# What they may do.


@pytest.mark.cluster
def test_a_dead_actor_is_replaced_and_costs_what_is_counted(make_collector, slow):
    collector = make_collector(partial(slow.maze, 0.004))
    brought, longest = [], 0.0

    def play_until(condition, seconds=120):
        nonlocal longest
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end
            begun = time.monotonic()
            brought.append(collector.collect(20))
            longest = max(longest, time.monotonic() - begun)
            assert collector.metrics()["open_blocks"] <= 2 * 2

    play_until(lambda: collector.metrics()["steps_per_s_of_slowest"] > 0)
    play_until(lambda: len(collector.replay.trajectories) > 20)
    victim, longest = playing()[0], 0.0
    victim.send_signal(signal.SIGKILL)
    play_until(lambda: collector.metrics()["lost_actors"] == 1)
    play_until(lambda: len(playing()) == 2 and victim not in playing())
    play_until(lambda: collector.metrics()["open_blocks"] == 4)
    num_before = len(collector.replay.trajectories)
    play_until(lambda: len(collector.replay.trajectories) > num_before + 50)
    metrics = collector.metrics()
    collector.replay.check_whole()
    collector.replay.check_distinct()
    print(f"longest pause {longest:.2f} s, lost {metrics}")
    assert longest < 2.0  # of the other actor's answers, while a process starts on busy cores
    assert 1 <= metrics["lost_blocks"] <= 2
    assert 0 <= metrics["lost_episodes"] <= 2
    assert sum(episodes.num_aborted for episodes in brought) == metrics["lost_episodes"]
    collected = sum(episodes.num_steps for episodes in brought)
    assert (
        collected
        == collector.replay.num_steps + metrics["unfinished_steps"] + metrics["lost_steps"]
    )


@pytest.mark.cluster
def test_actors_that_die_one_after_the_other_end_the_collector(make_collector, slow):
    collector = make_collector(slow.leaves, num_workers=1)
    with pytest.raises(
        RuntimeError, match=r"actors must live, 4 died without an answer from any; the last death: "
    ):
        collector.collect(20)
    assert collector.metrics()["open_blocks"] == 0


@pytest.mark.cluster
def test_an_error_in_an_actor_is_shown_at_once(make_collector, slow):
    collector = make_collector(slow.nothing)
    with pytest.raises(
        RuntimeError,
        match=r"RayCollector: actor \d failed: .*ZeroDivisionError: no env \(.*slow_envs\.py:\d+\)",
    ):
        collector.collect(20)
    assert playing() == []


@pytest.mark.cluster
def test_what_never_starts_is_told_with_what_it_needs(make_collector):
    collector = make_collector(resources={"num_cpus": 64}, timeout=3.0)
    with pytest.raises(
        RuntimeError,
        match=r"got no answer in 3\.0 s; every actor needs .*'num_cpus': 64.*'CPU': 4\.0",
    ):
        collector.collect(20)


@pytest.mark.cluster
def test_a_push_of_weights_does_not_wait_for_actors(make_collector, slow):
    wide = partial(TransformerEncoder, d_model=256, num_heads=8, num_layers=5)
    collector = make_collector(partial(slow.maze, 0.1), encoder=wide)
    weights = TensorDict.from_module(collector.policy).data.clone()
    assert sum(value.numel() for value in weights.values(True, True)) > 3.5e6
    collector.collect(20)
    seconds = []
    for _ in range(5):
        start = time.monotonic()
        collector.update_policy_weights_(weights)
        seconds.append(time.monotonic() - start)
    print(
        f"a push of 3.9M parameters: {1000 * sum(seconds) / 5:.0f} ms, at most "
        f"{1000 * max(seconds):.0f} ms"
    )
    assert max(seconds) < 0.5  # a block takes a second


@pytest.mark.cluster
def test_four_actors_that_wait_for_their_simulators_are_nearly_four_times_as_fast(
    make_collector, slow
):
    speeds = []
    for num_workers in (1, 4):
        collector = make_collector(
            partial(slow.maze, 0.04),
            num_workers=num_workers,
            num_envs=8 * num_workers,
            max_staleness=10**4,
        )
        while collector.metrics()["steps_per_s_of_slowest"] == 0:
            collector.collect(8)
        begun, steps = time.monotonic(), 0
        while time.monotonic() - begun < 10:
            steps += collector.collect(8).num_steps
        speeds.append(steps / (time.monotonic() - begun))
        collector.shutdown()
    print(f"{speeds} steps/s with 1 and 4 actors of 8 envs, 5 ms for a step of one")
    assert speeds[0] > 150  # of 200
    assert speeds[1] > 3.6 * speeds[0]


# What they keep.


@pytest.mark.cluster
def test_a_restored_collector_keeps_weights_and_schedule_and_plays_other_tasks(
    local_ray, build, make_policy
):
    policy = make_policy(MAZE(num_envs=1, seed=0), GRU)
    first, second, third = (
        build(exploration=EpsilonGreedy(policy.action_space, anneal_steps=9)) for _ in range(3)
    )
    first.update_policy_weights_(choose(policy, 2))
    first.exploration.step(5)
    second.load_state_dict(first.state_dict())
    assert int(second.exploration.num_env_steps) == 5
    assert all(
        torch.equal(v, second.policy.state_dict()[key])
        for key, v in first.policy.state_dict().items()
    )
    third.load_state_dict(second.state_dict())
    assert [c.state_dict()["num_restarts"] for c in (first, second, third)] == [0, 1, 2]
    numbers = list(itertools.product(range(4), repeat=4))
    seeds = [seed for number in numbers for seed in actor_seeds(*number)]
    assert len(set(seeds)) == 2 * len(numbers)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": 5}, r"num_workers must be at most .*4, got 5"),
        ({"num_workers": 0}, "num_workers must be at least 1, got 0"),
        ({"block_steps": 0}, "block_steps must be at least 1, got 0"),
        ({"max_staleness": 39}, "max_staleness must be at least 40, got 39"),
        ({"timeout": 0.0}, r"timeout must be .*, got 0\.0"),
        (
            {"resources": {"cpus": 1}},
            r"resources must have no keys but num_cpus, .*, got .*'cpus': 1",
        ),
        (
            {"resources": {"num_gpus": -1}},
            r"resources.num_gpus must be a number, at least 0, got -1",
        ),
        ({"autocast": "float16"}, r"autocast must be .*bfloat16.*, got 'float16'"),
    ],
)
def test_settings_out_of_range_are_refused(build, settings, message):
    with pytest.raises(ValueError, match=f"RayCollector: {message}"):
        build(**settings)


@pytest.mark.cluster
def test_an_address_where_no_cluster_is_is_refused_before_anything_begins(build):
    with pytest.raises(
        ValueError,
        match=r"RayCollector: address must be that of a Ray cluster, got '10\.255\.255\.1:1'",
    ):
        build(address="10.255.255.1:1")


def test_a_missing_package_is_named(build, monkeypatch):
    monkeypatch.setattr("yamame.collectors.cluster.find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"package ray must be installed; run: pip install 'yamame\[ray\]'"
    ):
        build()
