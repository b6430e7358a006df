"""Work that does not happen is reported in one line, and what happens needs none."""

import sys
from types import ModuleType, SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
import yamame
from gymnasium import spaces
from omegaconf import OmegaConf
from yamame.collectors import Episodes
from yamame.runs.advice import not_above
from yamame.runs.alerts import EndlessWarning
from yamame.system.messages import begin_lines, end_lines
from yamame_envs import Gym

TINY = ("debug=tiny", "encoder=memoryless", "logger=none", "run.name=a")
MANY = ("budget.updates=null", "budget.minutes=null")


class Counter(gymnasium.Env):
    """Counts steps; ends after ``ends`` of them, or never."""

    action_space = spaces.Discrete(2)

    def __init__(self, ends=None, pays=False, info=None, shape=(1,), high=np.inf):
        self.observation_space = spaces.Box(0, high, shape, np.float32)
        self.ends, self.pays, self.info = ends, pays, info or {}

    def _observation(self):
        value = self.steps if self.observation_space.high.flat[0] == np.inf else 0.5
        return np.full(self.observation_space.shape, value, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        ends = self.ends is not None and self.steps >= self.ends
        reward = float(self.np_random.random()) + (10.0 * int(action) if self.pays else 0.0)
        return self._observation(), reward, ends, False, dict(self.info) if ends else {}


@pytest.fixture(autouse=True)
def counter(tmp_path, monkeypatch):
    """Registers the environment of this module, and works in a new folder."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("counters")
    module.Counter = Counter
    monkeypatch.setitem(sys.modules, "counters", module)
    gymnasium.register("Counter-v0", entry_point="counters:Counter")
    yield
    del gymnasium.registry["Counter-v0"]


def train(capsys, *overrides):
    """Train, and return the run with the lines of its standard error."""
    run = yamame.train(*TINY, "env=gym", "env.id=Counter-v0", *overrides)
    return run, capsys.readouterr().err.splitlines()


def having(lines, text):
    return [line for line in lines if text in line]


def test_endless_episodes_end_evaluations_and_are_named_with_the_setting(capsys):
    settings = ("evaluation.max_steps=null", "evaluation.num_episodes=2", *MANY)
    run, lines = train(capsys, *settings, "budget.env_steps=1100", "evaluation.interval=400")
    assert run.summary["status"] == "FINISHED"
    (told,) = having(lines, "no episode has ended in 1024 steps")
    assert "env.time_limit" in told
    (cut,) = having(lines, "evaluations are cut")  # once, in several evaluations
    assert "evaluation.max_steps" in cut
    (advice,) = having(lines, "0 updates were made")
    assert "env.time_limit" in advice
    assert run.progress.curve[-1]["length_mean"] == 1000
    assert len(run.progress.curve) > 1


def test_episodes_that_end_by_themselves_are_played_to_their_end(capsys):
    settings = ("evaluation.max_steps=null", "+env.settings.ends=30")
    run, lines = train(capsys, *settings)
    assert run.progress.updates == 2
    assert run.progress.curve[-1]["length_mean"] == 30
    assert run.progress.curve[-1]["finished"] == 1
    for text in ("no episode has ended", "evaluations are cut", "0 updates"):
        assert not having(lines, text)


def test_a_limit_that_is_set_is_an_end(capsys):
    run, lines = train(capsys, "evaluation.max_steps=null", "env.time_limit=40")
    assert run.progress.updates == 2
    assert not having(lines, "no episode")
    assert run.progress.curve[-1]["length_mean"] == 40


@pytest.mark.parametrize(("limit", "warns"), [(None, True), (600, False)])
def test_an_environment_with_a_limit_needs_no_warning_before_its_episodes_can_end(
    limit, warns, capsys
):
    env = Gym(id="Counter-v0", time_limit=limit, num_envs=2)
    run = SimpleNamespace(
        cfg=OmegaConf.create({"schedule": {}}), progress=SimpleNamespace(outcome=None), held_out=env
    )
    empty = torch.zeros(0)
    callback = EndlessWarning()
    for _ in range(2):
        callback.on_collect(run, Episodes(500, empty, empty.long(), None))
    assert capsys.readouterr().err.count("no episode has ended") == warns


def test_overfitting_that_is_never_observed_is_named_once_with_the_settings(capsys):
    rates = ("+env.settings.ends=30", "schedule.updates_per_step=0.5", "budget.env_steps=600")
    _, lines = train(capsys, *MANY, *rates, "replay.capacity=90")
    (line,) = having(lines, "overfitting cannot be observed")
    assert "increase replay.capacity or decrease replay.held_out" in line
    _, lines = train(capsys, *MANY, *rates, "run.name=b", "replay.held_out=2")
    assert not having(lines, "overfitting")


def test_few_episodes_do_not_blame_the_capacity_and_are_named_once_in_all_sessions(capsys):
    rates = ("+env.settings.ends=30", "schedule.updates_per_step=0.5", "replay.held_out=100")
    run, lines = train(capsys, *MANY, *rates, "budget.env_steps=600", "run.name=a")
    (line,) = having(lines, "overfitting is not observed yet")
    assert "nothing needs to be done" in line
    assert "replay.capacity" not in line
    more = ("budget.env_steps=900", "run.name=a", "resume=true")
    further, lines = train(capsys, *MANY, *rates, *more)
    assert further.progress.updates > run.progress.updates
    assert not having(lines, "overfitting")


def test_a_run_that_ends_before_its_first_update_says_so(capsys):
    late = ("schedule.learning_starts=100000", "budget.minutes=0.005", "budget.updates=null")
    run, lines = train(capsys, "+env.settings.ends=5", *late)
    assert run.progress.updates == 0
    (line,) = having(lines, "0 updates were made")
    assert "learning_starts=100000" in line
    assert "budget.minutes" in line
    wanted = ("schedule.updates_per_step=0", "budget.updates=null", "budget.env_steps=128")
    _, lines = train(capsys, "run.name=b", "+env.settings.ends=5", *wanted)
    assert not having(lines, "0 updates")


def test_advice_names_a_score_that_is_not_above_random_and_exploration_that_has_not_annealed(
    capsys,
):
    long = "exploration.anneal_steps=60000"
    _, lines = train(capsys, "+env.settings.ends=5", "run.name=mine", long)
    start = lines.index("mine has hardly learned:")
    score, anneal, page = lines[start + 1 : start + 4]
    assert score.startswith("  - return ")
    assert "after 2 updates" in score
    assert "exploration.anneal_steps=60000" in anneal
    assert page.endswith("/howto/does_not_learn.html")
    _, lines = train(
        capsys, "+env.settings.ends=5", "run.name=short", "exploration.anneal_steps=10"
    )
    assert having(lines, "short has hardly learned:")
    assert not having(lines, "anneal")


def test_a_recipe_without_exploration_has_nothing_to_anneal(capsys):
    setting = ("env=bandits", "exploration=epsilon_greedy", "budget.updates=2")
    setting = (*setting, "exploration.anneal_steps=60000")
    yamame.train(*TINY, *setting, recipe="ppo")
    lines = capsys.readouterr().err.splitlines()
    assert not having(lines, "anneal")
    yamame.train(*TINY, *setting, "run.name=b")
    assert having(capsys.readouterr().err.splitlines(), "anneal")


class Best(yamame.Callback):
    """Makes the policy choose the action that pays."""

    def on_evaluating(self, run):
        bias = list(run.policy.actor.parameters())[-1]
        with torch.no_grad():
            bias.copy_(torch.tensor([-50.0, 50.0]).repeat(len(bias) // 2))


def test_an_agent_above_random_needs_no_advice(capsys):
    learned = ("+env.settings.ends=5", "+env.settings.pays=true", "exploration.anneal_steps=10")
    run = yamame.train(
        *TINY,
        "env=gym",
        "env.id=Counter-v0",
        "evaluation.num_episodes=16",
        *learned,
        callbacks=[Best()],
    )
    assert run.objective > 50
    assert not having(capsys.readouterr().err.splitlines(), "has hardly learned")


def test_an_environment_that_fails_under_random_actions_costs_no_finished_run(monkeypatch, capsys):
    def fail(*arguments, **options):
        raise RuntimeError("broken")

    monkeypatch.setattr("yamame.runs.advice.play_held_out", fail)
    run, lines = train(capsys, "env.settings.ends=5")
    assert run.summary["status"] == "FINISHED"
    assert not having(lines, "random actions")


def _result(returns, success=None):
    returns = torch.tensor(returns, dtype=torch.float64)
    flags = None if success is None else torch.tensor(success)
    return yamame.evaluation.EvaluationResult(
        returns,
        torch.ones(len(returns)).long(),
        torch.ones(len(returns)).bool(),
        returns[:, None],
        success=flags,
    )


def test_scores_are_compared_by_their_intervals():
    low, high = _result([0.0, 1.0, 0.5, 0.2]), _result([10.0, 11.0, 10.5, 10.2])
    assert not_above(high, low) is None
    assert "is below random actions" in not_above(low, high)
    assert "is not clearly above" in not_above(low, low)
    solved, half = _result([1.0] * 4, [True] * 4), _result([1.0] * 4, [True, False] * 2)
    for agent in (solved, half):
        assert "random actions already reach the best value, success 1" in not_above(agent, solved)
    assert "best value" not in not_above(half, half)
    assert not_above(_result([1.0]), low) is None  # one episode has no interval
    never = [False] * 4
    assert "success" in not_above(_result([0.0, 1.0, 0.5, 0.2], never), _result([1.0] * 4, never))
    # Reward grows before success does.
    higher = _result([10.0, 11.0, 10.5, 10.2], never)
    assert "none of 4 episodes succeeded" in not_above(higher, _result([0.0, 1.0] * 2, never))
    once = _result([10.0, 11.0, 10.5, 10.2], [True, False, False, False])
    assert not_above(once, _result([0.0, 1.0] * 2, never)) is None


@pytest.mark.parametrize("info", [{"is_success": True}, {"final_info": {"is_success": True}}])
def test_success_that_shows_at_ends_only_is_named_with_the_setting(info, capsys):
    begin_lines()
    settings = {"ends": 3, "info": info}
    for _ in range(2):
        env = Gym(id="Counter-v0", settings=settings, num_envs=2)
        env.rollout(30, break_when_any_done=False)
    end_lines()
    (line,) = capsys.readouterr().err.splitlines()
    assert "env.success=is_success" in line
    read = Gym(id="Counter-v0", settings=settings, success="is_success")
    assert read.rollout(9, break_when_any_done=False)["next", "success"].sum() == 3
    Gym(id="Counter-v0", settings=settings, success=None).rollout(60, break_when_any_done=False)
    assert capsys.readouterr().err == ""


def test_an_observation_that_is_flattened_is_named_once_in_a_run(capsys):
    large = ("+env.settings.ends=5", "+env.settings.shape=[70,70]", "env.time_limit=10")
    _, lines = train(capsys, *large)
    assert len(having(lines, "observation (70, 70) is read as 4900 numbers")) == 1
    _, lines = train(capsys, *large, "run.name=b", "timestep_encoder=mlp")
    assert not having(lines, "numbers")
    _, lines = train(capsys, *large, "run.name=c", "+env.settings.high=1.0")
    assert not having(lines, "numbers")
