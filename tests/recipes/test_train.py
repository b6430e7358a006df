"""The training recipe as people and clusters use it: from the command line."""

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from yamame.replay import Prefetcher

RECIPE = Path(__file__).parents[2] / "recipes" / "train.py"
TINY = ["debug=tiny", "logger=none"]
SHORT = [
    "logger=none",
    "encoder.d_model=16",
    "encoder.num_layers=1",
    "env.time_limit=20",
    "schedule.steps_per_iteration=64",
    "schedule.learning_starts=256",
    "schedule.updates_per_step=0.04",
    "schedule.batch_size=4",
    "evaluation.num_episodes=8",
    "evaluation.interval=500",
    "checkpoint.interval=128",
    "budget.env_steps=2048",
    "budget.minutes=null",
    "replay.capacity=800",
    "replay.slack=1.0",
]
"""Evicts trajectories, uses the slack of the store, evaluates and checkpoints often."""


@pytest.fixture
def run(runner, recipe):
    """Runs the recipe: exit status, output, error output."""
    return runner(recipe)


def parameters(directory: Path) -> dict:
    newest = sorted((directory / "checkpoints").glob("step-*.pt"))[-1]
    return torch.load(newest, weights_only=True)["components"]


def leaves(tree, prefix=""):
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}/{key}")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{prefix}/{index}")
    else:
        yield prefix, tree


def differing(first: dict, second: dict, *, skip: tuple[str, ...] = ()) -> list[str]:
    """Names of the entries of two checkpoints that are not the same, bit for bit; clocks do not count."""
    identity = tuple(f"/replay/_storage/{name}" for name in ("owner", "generation", "store"))
    skipped = ("/budget", "/costs", *identity, *skip)
    a, b = ({k: v for k, v in leaves(tree) if not k.startswith(skipped)} for tree in (first, second))
    assert a.keys() == b.keys()
    same = {k: torch.equal(v, b[k]) if isinstance(v, torch.Tensor) else v == b[k] for k, v in a.items()}
    return [key for key, equal in same.items() if not equal]


def test_a_tiny_run_writes_its_summary_and_prints_the_path_last(run, tmp_path):
    status, out, _ = run(*TINY, "run.name=tiny")
    assert status == 0
    assert out.splitlines()[-1] == "runs/tiny/summary.json"
    summary = json.loads((tmp_path / "runs/tiny/summary.json").read_text())
    promised = "success return_mean env_steps updates cpu_s wall_s seed status git_revision versions"
    assert set(promised.split()) <= summary.keys()
    assert summary["status"] == "FINISHED"
    assert summary["updates"] == 2
    assert 0.0 <= summary["success"] <= 1.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encoder=gruu"], r"encoder=gruu.*gru"),
        (["encoder.heads=3"], r"encoder.heads.*num_heads"),
        (["env=tmaze", "relabel=some"], r"relabel.strategy=some.*PassiveTMaze.*relabel=none"),
        (["encoder.num_heads=7"], r"num_heads.*7"),
        (["agent.gammas=[0.9,1.5]"], r"gammas.*1\.5"),
        (["env.size=8"], r"size.*8"),
        (["budget.minutes=-1"], r"minutes.*-1"),
        (["resume=true", "run.name=nothing"], r"nothing"),
        (["exploration=gaussian"], r"GaussianNoise"),
        (["trials=repeated"], r"relabel.strategy=some.*RepeatedTrials.*relabel=none"),
        (["env=gym", "env.id=NoSuch-v0"], r"env: .*NoSuch-v0"),
        (["env=gym", "+evaluation.env.split=test"], r"env: .*split"),
        (["~env"], r"env: must be given, got ~env"),
        (["checkpoint.keep=0"], r"checkpoint.keep: must be at least 1, got 0"),
        (["checkpoint.interval=abc"], r"checkpoint.interval: must be an integer, got 'abc'"),
        (["schedule.batch_size=0"], r"schedule.batch_size: must be at least 1, got 0"),
        (["schedule.steps_per_iteration=0"], r"schedule.steps_per_iteration: must be at least 1, got 0"),
        (["schedule.max_grad_norm=null"], r"schedule.max_grad_norm: must be a number, got null"),
        (["schedule.warmup_updates=abc"], r"schedule.warmup_updates: must be an integer, got 'abc'"),
        (["replay.capacity=0"], r"replay: .*capacity must be at least 1, got 0"),
        (["collector=async", "collector.num_workers=0"], r"collector: .*num_workers must be in 1..4, got 0"),
        (["logger=mlflow", "logger.tracking_uri=foo://bar"], r"tracking_uri: must be .* got foo://bar"),
        (["run.root=/dev/null"], r"run.root.* must be a directory, got .*/dev/null is a file"),
    ],
)
def test_a_mistake_ends_with_one_line_and_nothing_written(run, tmp_path, arguments, message):
    status, _, err = run(*TINY, *arguments)
    assert status == 2
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err), err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "mistake", ["run.overwrite=no", "run.overwrite=off", "replay.slack=-1", "logger=mlflow"]
)
def test_a_mistake_beside_overwriting_leaves_the_run_that_is_there(run, tmp_path, mistake):
    kept = tmp_path / "runs/mine"
    kept.mkdir(parents=True)
    for name in (".lock", "config.yaml"):
        (kept / name).write_text("precious")
    more = ["run.overwrite=true"] if "overwrite" not in mistake else []
    uri = "logger.tracking_uri=foo://bar" if mistake == "logger=mlflow" else "seed=0"
    status, _, err = run(*TINY, "run.name=mine", mistake, uri, *more)
    assert (status, len(err.splitlines())) == (2, 1)
    assert [(kept / name).read_text() for name in (".lock", "config.yaml")] == ["precious"] * 2


def test_an_existing_run_is_refused_and_left_alone_and_another_configuration_names_its_keys(run, tmp_path):
    assert run(*TINY, "run.name=a")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "runs/a").rglob("*") if path.is_file()}
    status, _, err = run(*TINY, "run.name=a")
    assert status == 2
    assert "resume=true" in err
    assert "run.overwrite=true" in err
    status, _, err = run(*TINY, "run.name=a", "resume=true", "seed=5")
    assert status == 2
    assert "seed: 0 -> 5" in err
    assert before == {path: path.read_bytes() for path in (tmp_path / "runs/a").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "choice",
    [
        "encoder=gru",
        "encoder=memoryless",
        "timestep_encoder=mlp",
        "agent=naive",
        "relabel=rarity",
        "trials=repeated relabel=none trials.num_trials=2",
        "env=gym env.id=Pendulum-v1 exploration=gaussian env.time_limit=20",
        "env=gym env.id=Blackjack-v1 evaluation.num_envs=3",
    ],
)
def test_two_updates_run_with_every_kind_of_part(run, choice):
    assert run(*TINY, *choice.split())[0] == 0


@pytest.mark.parametrize(
    "choice", ["relabel=single_goal", "relabel=hide_future_goals", "exploration=epsilon_greedy"]
)
def test_two_updates_run_with_every_ablation(run, choice):
    assert run(*TINY, choice)[0] == 0


@pytest.mark.parametrize("choice", ["env=mazerunner", "env=gym trials=repeated replay.capacity=2400"])
def test_a_run_extended_later_equals_one_that_was_never_stopped(run, tmp_path, choice):
    short = [
        *SHORT,
        "schedule.anneal_lr=false",
        *choice.split(),
    ]  # it would fall towards the end of each part
    assert run(*short, "run.name=whole")[0] == 0
    assert run(*short, "run.name=parts", "budget.updates=7")[0] == 0
    assert run(*short, "run.name=parts", "resume=true")[0] == 0
    whole, parts = (parameters(tmp_path / "runs" / name) for name in ("whole", "parts"))
    assert differing(whole, parts, skip=("/progress/curve",)) == []  # the first part ended with an evaluation
    assert run(*short, "run.name=other", "seed=1")[0] == 0
    assert differing(whole["agent"], parameters(tmp_path / "runs/other")["agent"])


class AtOnce:
    """Fetches batches in advance where no device works meanwhile."""

    def begin(self, batch):
        return lambda: batch


def test_batches_sampled_in_advance_are_all_learned_from_and_change_nothing(
    monkeypatch, run, recipe, tmp_path
):
    sampled = []

    def prefetcher(sample, device):
        return Prefetcher(lambda: sampled.append(1) or sample(), device, transfer=AtOnce())

    def updates(name):
        return json.loads((tmp_path / "runs" / name / "summary.json").read_text())["updates"]

    settings = [*SHORT, "encoder.dropout=0"]  # whose draws come between, but for a GPU
    assert run(*settings, "run.name=ordinary")[0] == 0
    monkeypatch.setattr(recipe, "Prefetcher", prefetcher)
    assert run(*settings, "run.name=fetched")[0] == 0
    assert len(sampled) == updates("ordinary") == updates("fetched") > 10
    assert differing(parameters(tmp_path / "runs/ordinary"), parameters(tmp_path / "runs/fetched")) == []
    sampled.clear()
    assert run(*settings, "run.name=short", "budget.updates=11", "schedule.anneal_lr=false")[0] == 0
    assert len(sampled) == updates("short") == 11  # in the middle of what was due


def test_acting_beside_the_learner_trains_and_resumes(run, tmp_path):
    asynchronous = [
        *SHORT,
        "collector=async",
        "schedule.num_envs=4",
        "collector.max_staleness=256",
        "run.name=a",
    ]
    assert run(*asynchronous, "budget.env_steps=768")[0] == 0
    assert run(*asynchronous, "budget.env_steps=1536", "resume=true")[0] == 0
    summary = json.loads((tmp_path / "runs/a/summary.json").read_text())
    assert summary["status"] == "FINISHED"
    assert 1536 <= summary["env_steps"] < 1536 + 512
    assert summary["updates"] >= 40


def test_five_kills_and_resumes_end_with_the_same_bits(run, tmp_path):
    long = [*SHORT, "budget.env_steps=4096"]
    assert run(*long, "run.name=whole")[0] == 0
    moments, directory = random.Random(0), tmp_path / "runs/killed"
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}

    def start(*arguments: str) -> subprocess.Popen:
        command = [sys.executable, str(RECIPE), *long, "run.name=killed", *arguments]
        return subprocess.Popen(command, cwd=tmp_path, env=environment)

    def newest() -> str:
        return max((path.name for path in directory.glob("checkpoints/*.pt")), default="")

    for kill in range(5):
        before = newest()
        process = start("resume=true" if kill else "resume=false")
        while newest() == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.5))
        assert process.poll() is None, "the run ended before it was killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (directory / "summary.json").exists()
    assert start("resume=true").wait(timeout=300) == 0
    assert json.loads((directory / "summary.json").read_text())["status"] == "FINISHED"
    assert differing(parameters(tmp_path / "runs/whole"), parameters(directory)) == []


def test_a_run_stopped_before_its_first_checkpoint_begins_again_and_equals_one_that_was_not(run, tmp_path):
    late = [*SHORT, "checkpoint.interval=100000", "evaluation.interval=100000"]
    assert run(*late, "run.name=whole")[0] == 0
    with pytest.raises(FloatingPointError):
        run(*late, "run.name=again", "optimizer.lr=1e30")
    directory = tmp_path / "runs/again"
    assert not list(directory.glob("checkpoints/*.pt"))
    assert (directory / "replay/meta.json").exists()
    assert run(*late, "run.name=again", "resume=true")[0] == 0
    assert differing(parameters(tmp_path / "runs/whole"), parameters(directory)) == []


def test_a_replay_too_small_to_resume_from_ends_with_one_line_and_a_checkpoint(run, tmp_path):
    status, _, err = run(*SHORT, "run.name=small", "replay.slack=0.1")
    assert status == 2
    assert "replay.capacity: too small for one iteration, got 800 with slack 0.1" in err
    assert parameters(tmp_path / "runs/small")


def test_a_sweep_is_one_parent_run_with_its_jobs_as_children_and_points_are_logged_once(run, tmp_path):
    small = [a for a in TINY if a != "logger=none"]
    assert run("-m", *small, "encoder=gru,memoryless", "seed=0,1")[0] == 0
    assert run(*small, "encoder=gru", "seed=0", "resume=true", "budget.updates=4")[0] == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir() if p.is_dir()) == [
        f"mazerunner-{encoder}-debug=tiny-seed={seed}" for encoder in ("gru", "memoryless") for seed in (0, 1)
    ]
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        runs = database.execute("select run_uuid, status from runs").fetchall()
        parents = database.execute("select value from tags where key = 'mlflow.parentRunId'").fetchall()
        twice = database.execute(
            "select key, step, count(*) from metrics group by run_uuid, key, step having count(*) > 1"
        ).fetchall()
        metrics = {key for (key,) in database.execute("select distinct key from metrics")}
    assert len(runs) == 5
    assert {status for _, status in runs} == {"FINISHED"}
    assert len(parents) == 4
    assert len(set(parents)) == 1
    assert parents[0][0] in {identity for identity, _ in runs}
    assert twice == []
    assert {"eval/success_mean", "train/loss", "train/grad_norm", "cost/cpu_s"} <= metrics


def test_a_loss_that_is_not_finite_keeps_the_evidence_and_stops_the_run(run, tmp_path):
    with pytest.raises(FloatingPointError, match="nonfinite/step-"):
        run(*SHORT, "run.name=bad", "optimizer.lr=1e30")
    assert list((tmp_path / "runs/bad/nonfinite").glob("step-*/batch"))
    assert json.loads((tmp_path / "runs/bad/summary.json").read_text())["status"] == "FAILED"
