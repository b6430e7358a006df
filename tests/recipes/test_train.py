"""The training recipe as people and clusters use it: from the command line."""

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yamame
from mlflow.tracking import MlflowClient
from yamame.cli import console
from yamame.training import Prefetcher

RECIPES = Path(__file__).parents[2] / "recipes"
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
    "schedule.anneal_lr=false",
    "evaluation.num_episodes=8",
    "evaluation.interval=500",
    "checkpoint.interval=128",
    "budget.env_steps=2048",
    "budget.minutes=null",
    "replay.capacity=800",
]
"""Evicts trajectories, evaluates and checkpoints often."""


@pytest.fixture
def run(runner, recipe):
    """Runs the recipe: exit status, output, error output."""
    return runner(recipe)


@pytest.fixture(scope="module")
def tiny(play, tmp_path_factory):
    """The folder in which a tiny run was made, and its output."""
    folder = tmp_path_factory.mktemp("tiny")
    status, out, _ = play("train", folder, *TINY, "run.name=tiny")
    assert status == 0
    return folder, out


@pytest.fixture(scope="module")
def whole(play, tmp_path_factory):
    """The directory of a short run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    assert play("train", folder, *SHORT, "run.name=whole")[0] == 0
    return folder / "runs/whole"


def test_a_tiny_run_writes_its_summary_and_prints_the_path_last(tiny):
    folder, out = tiny
    assert out.splitlines()[-1] == "runs/tiny/summary.json"
    summary = json.loads((folder / "runs/tiny/summary.json").read_text())
    promised = "success return_mean env_steps updates cpu_s wall_s seed status git_revision versions"
    assert set(promised.split()) <= summary.keys()
    assert summary["status"] == "FINISHED"
    assert summary["updates"] == 2
    assert (summary["ended_by"], summary["evaluated_at"]) == ("budget.updates=2", summary["env_steps"])
    assert 0.0 <= summary["success"] <= 1.0
    assert sorted(path.name for path in folder.iterdir()) == ["runs"]


def test_the_minutes_of_the_budget_do_not_count_what_is_built(run, monkeypatch, tmp_path):
    begun = []
    monkeypatch.setattr(
        "yamame.budget.Budget.start", lambda budget: begun.append((tmp_path / "runs/t").exists())
    )
    assert run(*TINY, "run.name=t", "logger=none")[0] == 0
    assert begun == [True]


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
        (["env=gym", "+evaluation.env.slip=test"], r"evaluation.env.slip: .*'test'"),
        (["~env"], r"env: must be given, got ~env"),
        (
            ["budget.env_steps=2000", "schedule.learning_starts=4096"],
            r"budget.env_steps must be .* 4116, .* got 2000",
        ),
        (["checkpoint.keep=0"], r"checkpoint.keep: must be an integer of at least 1, got 0"),
        (["checkpoint.interval=abc"], r"checkpoint.interval: must be an integer of at least 1, got 'abc'"),
        (["schedule.steps_per_iteration=0"], r"schedule.steps_per_iteration: must be .* at least 1, got 0"),
        (["schedule.max_grad_norm=null"], r"schedule.max_grad_norm: must be a number, got null"),
        (
            ["schedule.warmup_updates=abc"],
            r"schedule.warmup_updates: must be an integer of at least 0, got 'abc'",
        ),
        (["replay.capacity=0"], r"replay.capacity: must hold an episode of 101 timesteps, got 0"),
        (["collector=async"], r"collector=async: no such choice.*ray.*sync"),
        (["collector=ray", "collector.num_workers=0"], r"collector: .*num_workers must be in 1..4, got 0"),
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


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_existing_run_is_refused_and_left_alone_and_another_configuration_names_its_keys(
    tiny, run, tmp_path
):
    shutil.copytree(tiny[0] / "runs", tmp_path / "runs")
    before = contents(tmp_path)
    for arguments, message in (
        ([], r"resume=true.*run\.overwrite=true"),
        (["resume=true", "seed=5"], r"seed: 0 -> 5"),
        (["resume=true", "replay.capacity=9"], r"replay\.capacity: 2000000 -> 9"),
    ):
        status, _, err = run(*TINY, "run.name=tiny", *arguments)
        assert (status, len(err.splitlines())) == (2, 1)
        assert re.search(message, err), err
    assert {path: data for path, data in contents(tmp_path).items() if path.name != ".lock"} == {
        path: data for path, data in before.items() if path.name != ".lock"
    }


def test_a_mistake_beside_overwriting_leaves_the_run_that_is_there_and_without_one_it_is_replaced(
    tiny, run, tmp_path
):
    shutil.copytree(tiny[0] / "runs", tmp_path / "runs")
    (tmp_path / "runs/tiny/note.txt").write_text("precious")
    names = {path.relative_to(tmp_path): path.is_dir() for path in tmp_path.rglob("*")}
    mistakes = (
        *("replay.keep=0", "env.size=8", "logger=mlflow logger.tracking_uri=foo://bar", "device=foo"),
        *("replay.capacity=20", "encoder.positions=learned encoder.num_positions=5"),
    )
    for mistake in mistakes:
        status, _, err = run(*TINY, "run.name=tiny", "run.overwrite=true", *mistake.split())
        assert (status, len(err.splitlines())) == (2, 1)
    assert run(*TINY, "run.name=tiny", "run.overwrite=no")[0] == 2
    assert (tmp_path / "runs/tiny/note.txt").read_text() == "precious"
    assert {path.relative_to(tmp_path): path.is_dir() for path in tmp_path.rglob("*")} == names
    assert run(*TINY, "run.name=tiny", "run.overwrite=true", "budget.updates=1")[0] == 0
    assert json.loads((tmp_path / "runs/tiny/summary.json").read_text())["updates"] == 1
    assert not (tmp_path / "runs/tiny/note.txt").exists()


RESUMED = {
    "mazerunner": ["budget.env_steps=576"],
    "trials of another library": [
        "env=gym",
        "env.time_limit=30",
        "trials=repeated",
        "replay.capacity=2400",
        "budget.env_steps=768",
        "evaluation.num_episodes=2",
    ],
    "separate encoders and targets of them": [
        "agent=separate",
        "encoder.hidden_size=16",
        "budget.env_steps=576",
    ],
}


@pytest.mark.parametrize("kind", RESUMED)
def test_a_run_extended_later_equals_one_that_was_never_stopped(run, tmp_path, components, differing, kind):
    settings = [*SHORT, *RESUMED[kind]]
    if "agent=separate" in settings:  # whose encoder is a GRU
        settings = [
            text for text in settings if not text.startswith(("encoder.d_model", "encoder.num_layers"))
        ]
    assert run(*settings, "run.name=whole")[0] == 0
    assert run(*settings, "run.name=parts", "budget.updates=7")[0] == 0
    whole, stopped = (components(tmp_path / "runs" / name) for name in ("whole", "parts"))
    assert stopped["progress"]["updates"] == 7 < whole["progress"]["updates"]
    assert differing(whole["agent"], stopped["agent"])
    assert run(*settings, "run.name=parts", "resume=true")[0] == 0
    parts = components(tmp_path / "runs/parts")
    assert differing(whole, parts, skip=("/progress/curve",)) == []  # the first part ended with an evaluation
    targets = any(key.startswith("_targets.encoder.critic") for key in whole["loss"])
    assert targets == ("agent=separate" in settings)


def at_once(batch):
    """Fetches a batch in advance where no device works meanwhile."""
    return lambda: batch


def test_batches_sampled_in_advance_are_all_learned_from_and_change_nothing(
    monkeypatch, run, recipe, tmp_path, components, differing
):
    sampled = []

    def prefetcher(sample, device):
        return Prefetcher(lambda: sampled.append(1) or sample(), device, transfer=at_once)

    def updates(name):
        return json.loads((tmp_path / "runs" / name / "summary.json").read_text())["updates"]

    # Draws of dropout would come between, but for a GPU, which has a generator of its own.
    settings = [*SHORT, "encoder.dropout=0", "budget.env_steps=576"]
    assert run(*settings, "run.name=ordinary")[0] == 0
    monkeypatch.setattr(recipe, "Prefetcher", prefetcher)
    assert run(*settings, "run.name=fetched")[0] == 0
    assert len(sampled) == updates("ordinary") == updates("fetched") > 10
    runs = (components(tmp_path / "runs" / name) for name in ("ordinary", "fetched"))
    assert differing(*runs) == []
    sampled.clear()
    assert run(*settings, "run.name=short", "budget.updates=11")[0] == 0
    assert len(sampled) == updates("short") == 11  # in the middle of what was due


KILLS = """
import os, random, signal, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import torch, train  # once: every run is a copy of this process

from yamame.cli.app import main

torch.set_num_threads(int(sys.argv[2]))
arguments, directory, moments = sys.argv[3:], Path("runs/killed"), random.Random(0)


def start(resume):
    process = os.fork()
    if process == 0:
        sys.argv = ["train.py", *arguments, "run.name=killed", f"resume={resume}"]
        main(train.train, config_name="train")
        os._exit(0)
    return process


def newest():
    return max((path.name for path in directory.glob("checkpoints/*.pt")), default="")


for kill in range(5):
    before, process = newest(), start("true" if kill else "false")
    while newest() == before and os.waitpid(process, os.WNOHANG)[0] == 0:
        time.sleep(0.01)
    time.sleep(moments.uniform(0.0, 0.3))
    assert os.waitpid(process, os.WNOHANG)[0] == 0, "the run ended before it was killed"
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
assert not (directory / "summary.json").exists()
assert os.waitpid(start("true"), 0)[1] == 0
"""


@pytest.mark.slow  # test_resume.py has one that is quick
def test_five_kills_and_resumes_end_with_the_same_bits(whole, tmp_path, components, differing):
    program = [sys.executable, "-c", KILLS, str(RECIPES), str(torch.get_num_threads())]
    subprocess.run([*program, *SHORT], cwd=tmp_path, env=dict(os.environ), check=True, timeout=300)
    directory = tmp_path / "runs/killed"
    assert json.loads((directory / "summary.json").read_text())["status"] == "FINISHED"
    assert differing(components(whole), components(directory)) == []


def test_a_run_stopped_before_its_first_checkpoint_begins_again_and_equals_one_that_was_not(
    whole, run, tmp_path, components, differing
):
    late = [*SHORT, "checkpoint.interval=100000", "evaluation.interval=100000", "run.name=again"]
    with pytest.raises(FloatingPointError):
        run(*late, "optimizer.lr=1e30")
    directory = tmp_path / "runs/again"
    assert not list(directory.glob("checkpoints/*.pt"))
    assert list((directory / "replay").iterdir())
    assert run(*late, "resume=true")[0] == 0
    assert differing(components(whole), components(directory), skip=("/progress",)) == []


def test_a_sweep_is_one_parent_run_with_its_jobs_as_children_and_points_are_logged_once(
    run, empty_store, tmp_path
):
    shutil.copy(empty_store, tmp_path)
    small = ["debug=tiny", "encoder=memoryless"]
    assert run("-m", *small, "seed=0,1")[0] == 0
    assert run(*small, "seed=0", "resume=true", "budget.updates=4")[0] == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir() if p.is_dir()) == [
        f"mazerunner-memoryless-debug=tiny-seed={seed}" for seed in (0, 1)
    ]
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        runs = database.execute("select run_uuid, status from runs").fetchall()
        parents = database.execute("select value from tags where key = 'mlflow.parentRunId'").fetchall()
        twice = database.execute(
            "select key, step, count(*) from metrics group by run_uuid, key, step having count(*) > 1"
        ).fetchall()
        outputs = database.execute("select * from inputs where destination_type = 'MODEL_OUTPUT'").fetchall()
        metrics = {key for (key,) in database.execute("select distinct key from metrics")}
    assert len(runs) == 3
    assert {status for _, status in runs} == {"FINISHED"}
    assert len(parents) == 2
    assert len(set(parents)) == 1
    assert parents[0][0] in {identity for identity, _ in runs}
    assert twice == []
    assert len(outputs) == 3  # models: of one run two, for it went on
    assert {"eval/success_mean", "train/loss", "train/grad_norm", "cost/cpu_s"} <= metrics


def test_what_a_run_says_may_be_done_next_can_be_done(play, tmp_path, monkeypatch):
    status, out, _ = play("train", tmp_path, "debug=tiny", "encoder=memoryless")
    assert status == 0
    following = out.partition("next:\n")[2].splitlines()[:-1]
    pages, *commands = [line.strip() for line in following]
    command, _, address = pages.partition("  # ")
    assert command == "mlflow ui"
    assert [shlex.split(line)[:2] for line in commands] == [["yamame", "play"], ["yamame", "evaluate"]]
    monkeypatch.chdir(tmp_path)
    for line in commands:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        console.main()  # whatever fails ends with an exception, SystemExit among them
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("yamame")
    (run,) = client.search_runs([experiment.experiment_id])
    place = f"experiments/{experiment.experiment_id}/runs/{run.info.run_id}?workflowType=machine_learning"
    assert address == f"http://127.0.0.1:5000/#/{place}"
    assert "debug=tiny encoder=memoryless" in run.data.tags["mlflow.note.content"]
    (model,) = client.search_logged_models([experiment.experiment_id])
    assert (model.source_run_id, str(model.status)) == (run.info.run_id, "READY")
    assert yamame.load(model.artifact_location.removeprefix("file://") + "/data/agent").act is not None


def test_a_loss_that_is_not_finite_keeps_the_evidence_and_stops_the_run(run, tmp_path):
    with pytest.raises(FloatingPointError, match="nonfinite/step-"):
        run(*SHORT, "run.name=bad", "optimizer.lr=1e30")
    assert list((tmp_path / "runs/bad/nonfinite").glob("step-*/step-*.pt"))
    assert json.loads((tmp_path / "runs/bad/summary.json").read_text())["status"] == "FAILED"
