"""Trained runs are found by directory, file or run id, come back with their weights, and refuse
what does not fit.
"""

import re
import shutil
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from yamame import conf_dir
from yamame.checks import UsageError
from yamame.cli.nodes import plain
from yamame.evaluation import evaluate
from yamame.files.checkpoint import Checkpointer
from yamame.runs.build import build_agent, build_env
from yamame.runs.trained import load_trained
from yamame.training import AveragedWeights
from yamame_envs.split import is_held_out

SMALL = [
    "encoder.d_model=16",
    "encoder.num_heads=2",
    "encoder.num_layers=1",
    "env.size=7",
    "env.split_by=walls_and_goals",
    "agent.gammas=[0.1,0.9,0.999]",
]
SMALL += ["+evaluation.env.time_limit=33"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run directory with a best checkpoint, of step 10, and a last one, of step 20."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", overrides=SMALL)
    directory = tmp_path_factory.mktemp("runs") / "mine"
    checkpoints = Checkpointer(directory / "checkpoints", config=plain(cfg))
    torch.manual_seed(0)
    for step, metric in ((10, 0.9), (20, 0.1)):
        agent = build_agent(cfg, build_env(cfg, num_envs=1, seed=0))
        checkpoints.save({"agent": agent}, step=step, metric=metric)
    return directory


def weights_of(path: Path) -> dict:
    return torch.load(path, weights_only=True)["components"]["agent"]


def agents_weight(trained) -> torch.Tensor:
    return trained.build_agent(trained.build_env(num_envs=2, seed=0)).state_dict()[
        "actor.mlp.0.weight"
    ]


def test_a_directory_and_a_file_give_the_agent_with_its_weights(run):
    files = {step: run / f"checkpoints/step-{step:012d}.pt" for step in (10, 20)}
    for trained, step in (
        (load_trained(run), 10),
        (load_trained(str(run), checkpoint="last"), 20),
        (load_trained(files[20]), 20),
    ):
        assert trained.step == step
        assert torch.equal(agents_weight(trained), weights_of(files[step])["actor.mlp.0.weight"])
        assert not trained.build_agent(trained.build_env(num_envs=2, seed=0)).training
    assert not torch.equal(*(weights_of(file)["actor.mlp.0.weight"] for file in files.values()))


def test_averaged_weights_are_those_that_act(run, tmp_path):
    trained = load_trained(run)
    agent = trained.build_agent(trained.build_env(num_envs=2, seed=0))
    averaged = AveragedWeights(agent.policy(), decay=0.5)
    agent.actor.mlp[0].weight.data.fill_(1.0)
    averaged.update()
    checkpointer = Checkpointer(tmp_path / "checkpoints", config=plain(trained.config))
    checkpointer.save({"agent": agent, "averaged": averaged}, step=1, metric=1.0)
    acting = agents_weight(load_trained(tmp_path))
    assert torch.equal(acting, averaged.network.actor.mlp[0].weight)
    assert not torch.equal(acting, agent.actor.mlp[0].weight)


@pytest.mark.parametrize("step", [10, 20])
def test_a_run_id_gives_the_checkpoints_among_the_artifacts(
    run, start, tracking_uri, tmp_path, step
):
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    with start(tmp_path) as tracker:
        for file in (tmp_path / "checkpoints").glob("*.pt"):
            tracker.log_artifact(file, folder="checkpoints")
    which = {10: "best", 20: "last"}[step]
    trained = load_trained(tracker.run.run_id, checkpoint=which, tracking_uri=tracking_uri)
    assert trained.step == step
    expected = weights_of(run / f"checkpoints/step-{step:012d}.pt")["actor.mlp.0.weight"]
    assert torch.equal(agents_weight(trained), expected)


def test_a_run_plays_its_held_out_tasks_and_one_from_before_there_were_any_plays_all(run, tmp_path):
    env = load_trained(run).build_env(num_envs=64, seed=0)
    env.reset()
    assert is_held_out(env.task_hash(env.env_state.task)).all()
    old = tmp_path / "old.pt"
    saved = torch.load(run / "checkpoints/step-000000000020.pt", weights_only=True)
    del saved["config"]["env"]["split"], saved["config"]["evaluation"]["env"]["split"]
    torch.save(saved, old)
    trained = load_trained(old)
    env = trained.build_env(num_envs=64, seed=0)
    env.reset()
    assert 0 < is_held_out(env.task_hash(env.env_state.task)).sum() < 64
    played = evaluate(trained.build_agent(env).policy(), env, max_steps=5)
    assert played.returns.shape == (64,)
    env = load_trained(old, env={"split": "test"}).build_env(num_envs=64, seed=0)
    env.reset()
    assert is_held_out(env.task_hash(env.env_state.task)).all()


def test_held_out_settings_hold_and_what_is_asked_holds_above_them(run):
    assert load_trained(run).build_env(num_envs=3, seed=0).batch_size == (3,)
    plain_env, changed = (
        load_trained(run, env=env) for env in (None, {"size": 11, "time_limit": 44})
    )
    assert (plain_env.config.env.size, plain_env.config.env.time_limit) == (7, 33)
    assert (changed.config.env.size, changed.config.env.time_limit) == (11, 44)
    assert changed.build_env(num_envs=1, seed=0).observation_spec["step_index"].space.high == 44
    assert plain_env.task != changed.task
    assert plain_env.task == load_trained(run).task
    assert "MazeRunner(size=7" in plain_env.task


def test_the_memory_may_be_longer_than_in_training(run):
    trained = load_trained(run, context_length=4096)
    agent = trained.build_agent(trained.build_env(num_envs=1, seed=0))
    assert agent.trajectory_encoder.context_length == 4096


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"source": "runs/none"},
            r"runs/none must be a run directory or a checkpoint, it does not exist",
        ),
        ({"checkpoint": "first"}, r"checkpoint must be best or last, got 'first'"),
        ({"env": {"sise": 9}}, r"env.sise: must be an argument of .*MazeRunner .*, got 9"),
        ({"env": {"size": 8}}, r"env.size: must be odd and at least 5, got 8"),
        (
            {"env": {"num_goals": 4}},
            r"weights of .* must fit the environment: size mismatch .*\[64, 8\].*\[64, 16\]",
        ),
        (
            {"trials": {"num_trials": 4}},
            r"trials: must be empty, for .* was trained without trials, got {'num_trials': 4}",
        ),
        ({"device": "nowhere"}, r"device: must be available, got 'nowhere'"),
        ({"context_length": 0}, r"encoder.context_length: must be .*at least 1.*, got 0"),
    ],
)
def test_what_does_not_fit_is_one_line_that_names_it(run, settings, message):
    with pytest.raises(UsageError) as caught:
        agents_weight(load_trained(**{"source": run, **settings}))
    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_and_directories_that_are_no_runs_are_refused_by_name(run, tmp_path):
    (tmp_path / "text.pt").write_text("no checkpoint")
    (tmp_path / "empty").mkdir()
    Checkpointer(tmp_path / "other/checkpoints").save({"agent": {"level": 1}}, step=1)
    Checkpointer(tmp_path / "bare/checkpoints").save({"net": {"level": 1}}, step=1, metric=1.0)
    for name, which, message in (
        ("text.pt", "best", r"text.pt must be a checkpoint, it cannot be read"),
        ("empty", "last", r"no last checkpoint in .*empty"),
        ("other", "best", r"no best checkpoint in .*other"),
        ("other", "last", r"other must be a checkpoint of a training run, it has no configuration"),
        ("bare", "best", r"must hold agent, it holds net"),
    ):
        with pytest.raises(UsageError, match=message):
            load_trained(tmp_path / name, checkpoint=which)


def test_a_run_id_that_is_not_there_is_refused_and_no_store_is_made(start, tracking_uri, tmp_path):
    with (
        start(tmp_path) as tracker,
        pytest.raises(UsageError, match=r"no checkpoints in the MLflow run "),
    ):
        load_trained(tracker.run.run_id, tracking_uri=tracking_uri)
    with pytest.raises(
        UsageError, match=r"0123abcd is no run directory, and no run in the MLflow store"
    ):
        load_trained("0123abcd", tracking_uri=tracking_uri)
    missing = tmp_path / "missing.db"
    with pytest.raises(
        UsageError, match=r"0123abcd is no run directory, and there is no MLflow store"
    ):
        load_trained("0123abcd", tracking_uri=f"sqlite:///{missing}")
    assert not missing.exists()


def test_a_discount_factor_has_its_place_and_an_unknown_one_is_refused(run):
    trained = load_trained(run)
    assert [trained.gamma_index(gamma) for gamma in (0.1, 0.999)] == [0, 2]
    with pytest.raises(UsageError, match=r"gamma: must be one of 0.1, .*0.999 in .*mine, got 0.5"):
        trained.gamma_index(0.5)
