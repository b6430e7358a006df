"""Learners of other libraries on tasks of this package: their arrays, evaluations and results."""

import pytest
import torch
import yamame
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs.utils import ExplorationType, set_exploration_type
from yamame.baselines import RecurrentPPO
from yamame.baselines.vector_env import ArrayEnv, FlatObservations, write_actions
from yamame.checks import ArgumentError, UsageError
from yamame.cli.sections import Node
from yamame.runs import comparisons
from yamame.runs.build import build_env

SHORT = ("debug=tiny", "budget.updates=null", "budget.env_steps=300")
TINY = ("env=tmaze", "env.length=4", *SHORT)


def test_arrays_are_what_an_agent_observes_and_episodes_begin_anew():
    cfg = yamame.compose(*TINY)
    env = ArrayEnv(build_env(cfg, num_envs=3, seed=0))
    first = env.reset()
    # Junction and sign; the previous action (4) and reward, the time, and the start of a trial.
    assert first.shape == (3, 2 + 4 + 1 + 1 + 1)
    assert first[:, -2:].tolist() == [[0.0, 1.0]] * 3
    alone = FlatObservations(build_env(cfg, num_envs=3, seed=0), context=False)
    assert alone.size == 2
    for step in range(5):
        steps = env.step(torch.zeros(3, dtype=torch.long).numpy())
        assert steps.done.all() == (step == 4)
    assert not steps.truncated.any()
    assert steps.last.shape == first.shape
    assert (steps.last != steps.observations).any()
    assert steps.observations[:, -2:].tolist() == [[0.0, 1.0]] * 3
    assert steps.last[:, -2:].tolist() == [[1.0, 0.0]] * 3


class Shaped:
    """An environment that has nothing but its specs."""

    def __init__(self, **entries):
        self.observation_spec = Composite(**entries, shape=(2,))


def test_tokens_are_one_hot_and_images_are_refused():
    words = Categorical(5, shape=(2, 4))
    flat = FlatObservations(Shaped(seen=Unbounded((2, 3)), words=words))
    assert flat.size == 3 + 4 * 5
    spoken = torch.tensor([[0, 1, 2, 3], [4, 4, 4, 4]])
    values = flat(TensorDict(seen=torch.ones(2, 3), words=spoken, batch_size=[2]))
    assert values.shape == (2, 23)
    assert values[1, 3:].reshape(4, 5)[:, 4].tolist() == [1.0] * 4
    assert values.sum() == 6 + 8
    picture = Bounded(0, 255, (2, 64, 64, 3), dtype=torch.uint8)
    with pytest.raises(ArgumentError, match="be no image"):
        FlatObservations(Shaped(picture=picture))


class Watched:
    """A learner that notes when it is evaluated."""

    def __init__(self, steps_at_once):
        self.steps_at_once = steps_at_once

    def learn(self, task):
        env = task.build_env(4)
        steps = 0
        while task.goes_on(env.rand_action, env_steps=steps, updates=0):
            steps += self.steps_at_once


def learned(learner, monkeypatch, tmp_path, *overrides, task=TINY):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparisons, "build_learner", lambda node: learner)
    node = Node({"_target_": "lab.Learner"}, key="compare.lab")
    return comparisons.compared_run(yamame.compose(*task, *overrides), "lab", node)


def test_evaluations_come_at_the_eighths_of_the_budget_and_at_its_end(monkeypatch, tmp_path):
    # Four episodes of five steps: 60 steps of learning must lie between two.
    options = ("evaluation.interval=null", "budget.env_steps=1600")
    report = learned(Watched(20), monkeypatch, tmp_path, *options)
    assert [row["env_steps"] for row in report["curve"]] == list(range(200, 1601, 200))
    assert report["env_steps"] == 1600
    options = ("evaluation.interval=100", "budget.env_steps=300")
    report = learned(Watched(20), monkeypatch, tmp_path, *options)
    assert [row["env_steps"] for row in report["curve"]] == [100, 200, 300]


def test_generators_are_left_as_they_were_and_the_result_is_kept(monkeypatch, tmp_path):
    before = torch.get_rng_state()
    first = learned(Watched(100), monkeypatch, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert learned(None, monkeypatch, tmp_path) == first
    with pytest.raises(AttributeError):  # of another seed
        learned(None, monkeypatch, tmp_path, "seed=1")


@pytest.mark.parametrize("task", [TINY, ("env=wind", "env.time_limit=6", *SHORT)])
def test_recurrent_ppo_learns_and_its_copy_is_evaluated(monkeypatch, tmp_path, task):
    pytest.importorskip("sb3_contrib")
    learner = RecurrentPPO(num_envs=2, settings={"n_steps": 16, "batch_size": 16, "n_epochs": 1})
    steps = "budget.env_steps=80"
    report = learned(learner, monkeypatch, tmp_path, steps, task=task)
    assert (report["env_steps"], report["updates"]) == (80, 2)
    assert report["cpu_s"] > 0
    assert report["curve"][-1]["return_mean"] is not None
    # The same seed gives the same agent, although a clock runs.
    again = learned(learner, monkeypatch, tmp_path, steps, "run.root=b", task=task)
    assert again["curve"] == report["curve"]


def test_recurrent_ppo_samples_unless_it_acts_greedily():
    pytest.importorskip("sb3_contrib")
    seen = []

    class Once:
        seed = 0

        def build_env(self, num_envs):
            return build_env(yamame.compose(*TINY), num_envs=num_envs, seed=0)

        def goes_on(self, policy, *, env_steps, updates):
            env = self.build_env(64)
            for kind in (ExplorationType.RANDOM, ExplorationType.DETERMINISTIC):
                with set_exploration_type(kind):
                    policy._states = None
                    seen.append(len(policy(env.reset())["action"].unique()))
            return False

    RecurrentPPO(num_envs=2).learn(Once())
    assert seen[0] == 4
    assert seen[1] <= 2  # one of each side of the sign


def test_actions_are_written_as_the_environment_takes_them():
    cfg = yamame.compose("env=wind", "env.time_limit=6")
    env = ArrayEnv(build_env(cfg, num_envs=3, seed=0))
    env.reset()
    steps = env.step(torch.zeros(3, 2).numpy())
    assert steps.rewards.shape == (3,)
    timestep = build_env(cfg, num_envs=3, seed=0).reset()
    write_actions(timestep, torch.ones(3, 2).double().numpy(), env.actions)
    assert timestep["action"].dtype == torch.float32
    assert timestep["action"].shape == (3, 2)


def test_a_class_that_cannot_learn_is_refused():
    with pytest.raises(UsageError, match="method learn"):
        comparisons.build_learner(Node({"_target_": "torch.nn.Identity"}, key="compare.lab"))
