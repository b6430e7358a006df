"""Worker processes bring whole, valid trajectories, follow the weights, and are never far ahead nor left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import psutil
import pytest
import torch
from tensordict import TensorDict
from yamame.agent import InContextAgent, InContextPolicy
from yamame.collectors import AsyncCollector
from yamame.collectors.asynchronous import worker_seeds
from yamame.exploration import EpsilonGreedy
from yamame.heads import ActorHead, PopArt, make_critic
from yamame.timestep import MLPGoalEncoder, MLPTimestepEncoder
from yamame.trajectory import TransformerEncoder
from yamame_envs import MazeRunner, PassiveTMaze

MAZE = partial(MazeRunner, size=7, num_goals=1, time_limit=15)
CONTEXT = ["prev_action", "prev_reward", "time", "trial_start", "step_index", "is_init"]


class Shelf:
    """Keeps whatever is appended."""

    def __init__(self) -> None:
        self.trajectories: list[TensorDict] = []

    def extend(self, data):
        for one in data.unbind(0):
            self.trajectories.append(one[: int(one["mask"].sum())].clone())


def make_policy(make_env) -> InContextPolicy:
    torch.manual_seed(0)
    env = make_env(num_envs=1, seed=0)
    agent = InContextAgent(
        env.observation_spec,
        env.full_action_spec["action"],
        timestep_encoder=partial(MLPTimestepEncoder, hidden_size=16, out_size=8),
        goal_encoder=MLPGoalEncoder,
        trajectory_encoder=partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=1),
        actor=partial(ActorHead, hidden_size=16),
        critic=partial(make_critic, hidden_size=16),
        returns=PopArt,
        gammas=(0.9,),
        probability_floor=0.0,
    )
    return agent.policy()


def make_collector(make_env=MAZE, **settings) -> AsyncCollector:
    settings = {"num_envs": 2, "seed": 7, "block_steps": 10, "max_staleness": 100, **settings}
    return AsyncCollector(make_env, make_policy(make_env), Shelf(), **settings)


def choose(policy: InContextPolicy, action: int) -> TensorDict:
    """Weights of a policy that always takes one action."""
    with torch.no_grad():
        policy.actor.mlp[-1].weight.zero_()
        policy.actor.mlp[-1].bias.fill_(-100.0)[action] = 100.0
    return TensorDict.from_module(policy).data


def processes(collector: AsyncCollector) -> list[int]:
    return [process.pid for process in collector._workers.processes]


def wait_for(condition) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_trajectories_replay_in_the_environment_and_the_counters_agree():
    collector = make_collector(num_envs=1, max_staleness=40)
    try:
        brought = [collector.collect(23) for _ in range(8)]
    finally:
        collector.shutdown()
    assert all(episodes.num_steps == 30 for episodes in brought)
    stored = collector.replay.trajectories
    assert len(stored) >= 8
    assert torch.cat([episodes.lengths for episodes in brought]).tolist() == [len(one) - 1 for one in stored]
    returns = torch.cat([episodes.returns for episodes in brought])
    assert returns.tolist() == [float(one["next", "reward"].sum()) for one in stored]
    success = torch.cat([episodes.success for episodes in brought])
    assert success.tolist() == [bool(one["next", "success"].any()) for one in stored]
    again = MAZE(num_envs=1, seed=worker_seeds(7, 0, 0)[0])
    current = again.reset()
    for one in stored:
        for t in range(len(one) - 1):
            for key in ("observation", "goal", "achieved", *CONTEXT):
                assert torch.equal(current[key][0], one[key][t]), key
            stepped, following = again.step_and_maybe_reset(current.set("action", one["action"][t : t + 1]))
            for key in ("reward", "terminated", "truncated", "success"):
                assert torch.equal(stepped["next", key][0], one["next", key][t])
            current = following
        assert torch.equal(stepped["next", "observation"][0], one["observation"][-1])


@pytest.fixture(scope="module")
def two_workers():
    made = make_collector(PassiveTMaze, num_envs=3, num_workers=2, max_staleness=90)
    yield made
    made.shutdown()


def test_workers_pause_at_the_bound_and_go_on_when_steps_were_collected(two_workers):
    assert two_workers.metrics() == {"unfinished_steps": 0.0, "steps_ahead": 0.0}
    collected = two_workers.collect(1).num_steps
    wait_for(lambda: two_workers.metrics()["steps_ahead"] == 90)
    time.sleep(0.3)
    assert two_workers.metrics() == {"unfinished_steps": float(collected), "steps_ahead": 90.0}
    brought = two_workers.collect(60).num_steps
    assert 60 <= brought < 60 + 10 * 2
    wait_for(lambda: two_workers.metrics()["steps_ahead"] == 90)
    while not two_workers.replay.trajectories:  # episodes come, though no worker ever is further ahead
        collected += two_workers.collect(60).num_steps
        assert two_workers.metrics()["steps_ahead"] <= 90
        assert collected < 100_000


def test_a_dead_worker_is_named_and_ends_the_others(two_workers):
    two_workers.collect(20)
    ended = processes(two_workers)
    os.kill(ended[1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="AsyncCollector: worker 1 died with exit code -9"):
        two_workers.collect(1_000_000)
    assert not any(psutil.pid_exists(pid) for pid in ended)


def test_weights_and_the_count_of_steps_reach_the_workers():
    space = make_policy(MAZE).actor.action_space
    noise = EpsilonGreedy(space, anneal_steps=200, start=1.0, end=0.0)
    collector = make_collector(exploration=noise)
    collector.update_policy_weights_(choose(make_policy(MAZE), 3))
    try:
        brought = [collector.collect(num_steps).num_steps for num_steps in (20, 400)]
        early = torch.cat([one["action"][:-1] for one in collector.replay.trajectories])
        collector.replay.trajectories.clear()
        brought.append(collector.collect(300).num_steps)
        late = torch.cat([one["action"][:-1] for one in collector.replay.trajectories])
    finally:
        collector.shutdown()
    assert early.unique().numel() > 1
    assert late[-100:].tolist() == [3] * 100
    assert brought == [20, 400, 300]
    assert int(collector.exploration.num_env_steps) == 720
    assert int(noise.num_env_steps) == 0


def test_an_error_in_a_worker_is_shown_here():
    collector = make_collector(PassiveTMaze)
    collector._make_env = partial(PassiveTMaze, length=-1)
    with pytest.raises(RuntimeError, match=r"(?s)worker 0 failed.*PassiveTMaze: length must .* got -1"):
        collector.collect(20)
    assert collector._workers is None


def test_a_restored_collector_keeps_weights_and_schedule_and_plays_other_tasks():
    first = make_collector(exploration=EpsilonGreedy(make_policy(MAZE).actor.action_space, anneal_steps=9))
    first.update_policy_weights_(choose(make_policy(MAZE), 2))
    first.exploration.step(5)
    state = first.state_dict()
    second = make_collector(exploration=EpsilonGreedy(make_policy(MAZE).actor.action_space, anneal_steps=9))
    second.load_state_dict(state)
    assert int(second.exploration.num_env_steps) == 5
    assert all(torch.equal(value, first.policy.state_dict()[key]) for key, value in state["policy"].items())
    assert torch.equal(second.policy.actor.mlp[-1].bias, first.policy.actor.mlp[-1].bias)
    third = make_collector(exploration=EpsilonGreedy(make_policy(MAZE).actor.action_space, anneal_steps=9))
    third.load_state_dict(second.state_dict())
    assert [c._num_restarts for c in (first, second, third)] == [0, 1, 2]
    seeds = [
        worker_seeds(seed, restart, worker)
        for seed in range(5)
        for restart in range(5)
        for worker in range(5)
    ]
    assert len({number for pair in seeds for number in pair}) == 2 * 125


SCRIPT = """
import os
from functools import partial
from yamame_envs import PassiveTMaze
import test_asynchronous as tests

if __name__ == "__main__":
    collector = tests.make_collector(PassiveTMaze)
    collector.collect(20)
    print(*tests.processes(collector), flush=True)
    {ending}
"""


@pytest.mark.parametrize(
    "ending", ["os.kill(os.getpid(), 9)", pytest.param("raise SystemExit(0)", marks=pytest.mark.slow)]
)
def test_workers_end_with_the_process_that_started_them(tmp_path, ending):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).format(ending=ending))
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    found = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    pids = [int(pid) for pid in found.stdout.split()]
    assert len(pids) == 1, found.stderr
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": 3}, r"num_workers must be in 1\.\.2, got 3"),
        ({"num_workers": 0}, r"num_workers must be in 1\.\.2, got 0"),
        ({"block_steps": 0}, "block_steps must be at least 1, got 0"),
        ({"max_staleness": 19}, "max_staleness must be at least 20, got 19"),
        ({"timeout": 0.0}, r"timeout must be positive, got 0\.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"AsyncCollector: {message}"):
        make_collector(**settings)


def test_workers_act_as_the_collector_is_set(monkeypatch):
    settings, jobs = {"greedy": True, "autocast": "bfloat16"}, []

    def start(given, policy, *, num_tokens):
        jobs.extend(given)
        raise InterruptedError

    monkeypatch.setattr("yamame.collectors.asynchronous._Workers", start)
    for chosen in ({}, settings):
        with pytest.raises(InterruptedError):
            make_collector(num_workers=2, **chosen).collect(1)
    plain = {"greedy": False, "autocast": None}
    assert [job.acting for job in jobs] == [plain, plain, settings, settings]
