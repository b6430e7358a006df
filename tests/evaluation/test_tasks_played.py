"""Evaluations know how many different tasks they have played, where the environment can tell."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, SerialEnv
from yamame.evaluation import EvaluationResult, evaluate, wilson_interval
from yamame.evaluation.result import concatenate
from yamame_envs import Bandits, Gym, MazeRunner, PassiveTMaze, RepeatedTrials
from yamame_envs.streams import fold


def played(env, num_episodes=None, seed=0):
    """The result of random actions."""

    def policy(timestep):
        return timestep.set(
            "action",
            env.action_spec.rand().reshape(*timestep.batch_size, *env.action_spec.shape[1:]),
        )

    return evaluate(
        policy,
        env,
        num_episodes=num_episodes,
        max_steps=3,
        seed=seed,
    )


def mazes(num_envs=40, **settings):
    return MazeRunner(
        num_envs=num_envs, size=9, num_goals=1, time_limit=20, split="test", **settings
    )


def hashes_of(env, seed, num_envs):
    """Hashes of the tasks of the first episodes, from their seeds."""
    index = torch.arange(num_envs)
    return env.task_hash(env.tasks_of(fold(fold(torch.full_like(index, seed), index), 0)))


@pytest.mark.parametrize("split_by", ["walls", "walls_and_goals"])
def test_the_number_of_tasks_is_that_of_the_mazes_that_the_seeds_draw(split_by):
    env = mazes(split_by=split_by)
    expected = len(hashes_of(env, 5, 40).unique())
    assert played(env, seed=5).summary().get("num_tasks") == expected
    assert (expected < 20) == (split_by == "walls")


def test_repeated_tasks_widen_intervals():
    summary = played(mazes()).summary()
    low, high = wilson_interval(round(40 * summary["success_mean"]), 40)
    assert summary["success_high"] - summary["success_low"] > high - low


def test_tasks_are_counted_over_rounds_and_over_results_of_several_processes():
    env = mazes(8)
    rounds = played(env, num_episodes=60)
    together = concatenate([played(env, seed=seed) for seed in (1, 2)])
    expected = torch.cat([hashes_of(env, seed, 8) for seed in (1, 2)]).unique()
    assert together.summary().get("num_tasks") == len(expected)
    assert 8 < rounds.summary().get("num_tasks", 0) < 60
    unknown = played(Gym(id="CartPole-v1", num_envs=2))
    assert "num_tasks" not in concatenate([together, unknown]).summary()


def test_trials_of_a_task_are_one_task():
    env = mazes(split_by="walls_and_goals")
    repeated = RepeatedTrials(env=mazes(split_by="walls_and_goals"), num_trials=2)
    assert played(repeated).summary().get("num_tasks") == played(env).summary()["num_tasks"]


def test_tasks_that_never_repeat_leave_intervals_as_they_are():
    summary = played(Bandits(num_envs=30)).summary()
    assert summary.get("num_tasks") == 30
    assert "intervals_over_tasks" not in summary


def test_an_evaluation_of_all_tasks_that_there_are_is_no_sample_of_tasks():
    summary = played(PassiveTMaze(num_envs=30, length=2)).summary()
    assert summary.get("num_tasks") == 2
    successes = round(30 * summary["success_mean"])
    assert (summary["success_low"], summary["success_high"]) == wilson_interval(successes, 30)


class Lever(gymnasium.Env):
    """One of five levers is the right one; a sixth has another hash than int64 can hold."""

    observation_space = gymnasium.spaces.Box(0.0, 5.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def sample_task(self, seed):
        return int(np.random.default_rng(seed).integers(5))

    def task_hash(self, task):
        return 2**64 - 1 - task

    def set_task(self, task):
        self.task = task

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.task], np.float32), {}

    def step(self, action):
        return np.array([self.task], np.float32), 0.0, True, False, {}


class Secret(Lever):
    """It does not tell its tasks apart."""

    task_hash = None


@pytest.fixture(autouse=True)
def _registered():
    gymnasium.register("levers/Lever-v0", Lever)
    gymnasium.register("levers/Secret-v0", Secret)
    yield
    for name in ("levers/Lever-v0", "levers/Secret-v0"):
        del gymnasium.registry[name]


def test_tasks_of_gymnasium_environments_are_counted_by_their_hash():
    env = Gym(id="levers/Lever-v0", tasks="own", num_envs=20, time_limit=None)
    levers = len(env.reset()["observation"].unique())
    summary = played(env).summary()
    assert summary.get("num_tasks") == levers == 5
    secret = Gym(id="levers/Secret-v0", tasks="own", num_envs=20, time_limit=None)
    assert "num_tasks" not in played(secret).summary()


class Cards(EnvBase):
    """A card of four; what is seen is not which."""

    def __init__(self, tells=True):
        super().__init__(batch_size=torch.Size([]))
        self.tells = tells
        flag = Categorical(2, shape=(1,), dtype=torch.bool)
        self.observation_spec = Composite(observation=Unbounded((1,)), shape=())
        self.action_spec = Categorical(2, shape=())
        self.reward_spec = Unbounded((1,))
        names = ("done", "terminated", "truncated")
        self.full_done_spec = Composite({name: flag.clone() for name in names}, shape=())
        self.rng = torch.Generator()

    def task_hashes(self):
        return self.card if self.tells else None

    def _set_seed(self, seed):
        self.rng.manual_seed(seed)

    def _entries(self, done):
        flags = {name: torch.tensor([done]) for name in ("done", "terminated")}
        return {"observation": torch.zeros(1), "truncated": torch.tensor([False]), **flags}

    def _reset(self, tensordict=None):
        self.card = torch.randint(4, (1,), generator=self.rng)
        return TensorDict(self._entries(False), ())

    def _step(self, tensordict):
        return TensorDict({**self._entries(True), "reward": torch.zeros(1)}, ())


def test_an_environment_from_elsewhere_tells_its_tasks_alone_or_in_a_batch():
    assert played(Cards(), num_episodes=20).summary().get("num_tasks") == 4
    batch = SerialEnv(3, Cards)
    assert played(batch, num_episodes=20).summary().get("num_tasks") == 4
    batch.close()
    assert "num_tasks" not in played(Cards(tells=False), num_episodes=4).summary()


def test_hashes_that_are_not_one_per_env_are_refused():
    env = Cards()
    env.task_hashes = lambda: torch.arange(2)
    with pytest.raises(
        ValueError, match=r"env.task_hashes\(\) must hold one hash for each of 1 envs, got 2"
    ):
        played(env)


def test_a_task_that_was_drawn_more_often_than_others_counts_once():
    result = EvaluationResult(
        returns=torch.tensor([1.0, 2.0, 6.0, 5.0]).double(),
        lengths=torch.ones(4).long(),
        finished=torch.ones(4).bool(),
        trial_returns=torch.ones(4, 1).double(),
        tasks=torch.tensor([7, 3, 7, 3]),
    )
    assert result.task_scores().tolist() == [3.5, 3.5]  # of tasks 3 and 7
    assert result.scores.tolist() == [1.0, 2.0, 6.0, 5.0]
    success = torch.tensor([True, False, False, False])
    assert replace(result, success=success).task_scores().tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": None},
        {"tasks": torch.tensor([9, 7, 8])},  # each once
        {"tasks": torch.tensor([7, 7, 7])},  # one task alone has no spread between tasks
        {"plays_all_tasks": True},
    ],
)
def test_episodes_stand_for_tasks_that_are_unknown_not_repeated_or_all_there_are(change):
    returns = torch.tensor([3.0, 1.0, 2.0]).double()
    ones = torch.ones(3)
    tasks = torch.tensor([7, 7, 8])
    result = EvaluationResult(returns, ones.long(), ones.bool(), returns.unsqueeze(1), tasks=tasks)
    assert result.task_scores().tolist() == [2.0, 2.0]
    assert replace(result, **change).task_scores().tolist() == returns.tolist()
