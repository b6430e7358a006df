"""Discount factors ``auto``: the same numbers wherever the agent of a run is met."""

import signal

import pytest
import torch
import yamame
from yamame.agent.discounts import follow_horizon
from yamame.checks import UsageError
from yamame.deploy.card import model_card
from yamame.runs.build import build_agent, build_env
from yamame.runs.trained import load_trained

SMALL = (
    *("debug=tiny", "logger=none", "env=tmaze", "env.length=28", "+evaluation.env.length=8"),
    *("encoder=gru", "encoder.hidden_size=16", "agent.actor.hidden_size=16", "budget.updates=4"),
    *("agent.critic.hidden_size=16", "evaluation.num_episodes=2", "evaluation.video_frames=1"),
    *("run.name=a", "schedule.anneal_lr=false", "exploration.anneal_steps=1000"),
)
AUTO = (*SMALL, "agent.gammas=auto")


class Stop(yamame.Callback):
    """Interrupts a run after two updates."""

    def on_update(self, run, metrics):
        if run.progress.updates == 2:
            signal.raise_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return yamame.train(*AUTO, f"run.root={tmp_path_factory.mktemp('whole')}")


def horizon_of(*overrides: str) -> int:
    """Steps of the longest episode of the environment of training."""
    env = build_env(yamame.compose(*overrides), num_envs=1, seed=0)
    return int(env.observation_spec["step_index"].space.high.max())


def test_every_door_has_the_numbers_of_the_environment_of_training(run):
    horizon = horizon_of(*AUTO)
    numbers = follow_horizon(horizon)
    assert run.config["agent"]["gammas"] == numbers
    assert run.config["given"] == {"agent": {"gammas": "auto"}}
    assert "auto" not in (run.path / "config.yaml").read_text().partition("gammas:")[2][:20]

    agent = yamame.load(str(run.path))
    assert list(agent.gammas) == numbers
    agent.save_pretrained(run.path.parent / "agent")
    exported = yamame.load(str(run.path.parent / "agent"))
    assert list(exported.gammas) == numbers
    assert ", ".join(map(str, numbers)) in model_card(exported.saved, "a")

    # Other episodes, longer or shorter, evaluate the same discount factors.
    trained = load_trained(run.path, env={"length": 60})
    env = trained.build_env(num_envs=1, seed=0)
    assert list(trained.build_agent(env).gammas) == trained.gammas == numbers
    assert follow_horizon(int(env.observation_spec["step_index"].space.high.max())) != numbers
    assert trained.gamma_index(numbers[2]) == 2

    report = yamame.evaluate(
        f"run={run.path}", "env.length=60", "gammas=all", "num_episodes=2", "max_steps=5"
    )
    assert [outcome["gamma"] for outcome in report["run"][0]["gammas"]] == numbers


def test_a_resumed_run_ends_with_the_parameters_of_a_run_that_was_never_stopped(run, tmp_path):
    options = (*AUTO, f"run.root={tmp_path}")
    with pytest.raises(KeyboardInterrupt):
        yamame.train(*options, callbacks=[Stop()])
    resumed = yamame.train(*options, "resume=true")
    assert resumed.config["agent"]["gammas"] == run.config["agent"]["gammas"]
    assert resumed.progress.updates == run.progress.updates == 4
    before = run.components["agent"].state_dict()
    for name, value in resumed.components["agent"].state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_run_of_auto_is_resumed_with_auto_or_its_numbers_and_with_no_others(run, tmp_path):
    root = f"run.root={run.path.parent}"
    again = yamame.train(*AUTO, root, "resume=auto")
    assert again.progress.updates == 4
    numbers = str(run.config["agent"]["gammas"]).replace(" ", "")
    assert yamame.train(*SMALL, f"agent.gammas={numbers}", root, "resume=auto").path == run.path
    with pytest.raises(UsageError, match=r"agent\.gammas: \[0\.1, 0\.9, .* -> \[0\.9\]"):
        yamame.train(*SMALL, "agent.gammas=[0.9]", root, "resume=auto")

    other = (*SMALL, f"run.root={tmp_path}", "budget.updates=1")
    yamame.train(*other, f"agent.gammas={numbers}")
    with pytest.raises(UsageError, match=r"agent\.gammas: \[.*\] -> 'auto'"):
        yamame.train(*other, "agent.gammas=auto", "resume=auto")


@pytest.mark.parametrize(
    ("overrides", "horizon"),
    [
        (["env=mazerunner", "env.time_limit=70"], 70),
        (["env=bandits", "env.time_limit=6", "trials=repeated", "trials.num_trials=5"], 30),
    ],
)
def test_trials_lengthen_the_horizon_and_one_discount_is_the_last(overrides, horizon):
    cfg = yamame.compose(*overrides, "agent.gammas=auto", "encoder=gru")
    agent = build_agent(cfg, build_env(cfg, num_envs=1, seed=0))
    assert list(agent.gammas) == follow_horizon(horizon)
    cfg = yamame.compose(*overrides, "agent.gammas=auto", "encoder=gru", "agent.multi_gamma=false")
    agent = build_agent(cfg, build_env(cfg, num_envs=1, seed=0))
    assert list(agent.gammas) == follow_horizon(horizon)[-1:]
