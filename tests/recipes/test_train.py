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
from yamame.runs import parts
from yamame.training import Prefetcher

RECIPES = Path(__file__).parents[2] / "recipes"
TINY = ["debug=tiny", "logger=none"]
SHORT = [
    *TINY,
    "env.time_limit=20",
    "schedule.learning_starts=128",
    "schedule.anneal_lr=false",
    "exploration.anneal_steps=60000",
    "evaluation.num_episodes=2",
    "evaluation.interval=200",
    "evaluation.video_frames=1",
    "checkpoint.interval=128",
    "replay.capacity=300",
    "budget.updates=null",
    "budget.env_steps=384",
]
"""Evicts trajectories, evaluates and checkpoints often: 12 updates, 3 in an iteration."""
SMALL = ["encoder.d_model=16", "encoder.num_layers=1"]
MAZES = [*SHORT, *SMALL, "env.size=7", "env.split_by=walls_and_goals", "env.num_goals=1"]


@pytest.fixture
def run(runner, recipe):
    """Runs the recipe: exit status, output, error output."""
    return runner(recipe)


@pytest.fixture(scope="module")
def tiny(play, tmp_path_factory):
    """The folder in which a tiny run was made, and its output."""
    folder = tmp_path_factory.mktemp("tiny")
    status, out, _ = play("train", folder, *TINY, *SMALL, "run.name=tiny")
    assert status == 0
    return folder, out


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of a short run that was never stopped."""
    root = tmp_path_factory.mktemp("whole")
    return yamame.train(*MAZES, "run.name=whole", f"run.root={root}").path


@pytest.fixture(scope="module")
def swept(play, tmp_path_factory):
    """The folder of a sweep over two seeds, the first of which went on alone, and what was printed
    then.
    """
    folder, small = (
        tmp_path_factory.mktemp("swept"),
        ["debug=tiny", "env=tmaze", "encoder=memoryless"],
    )
    assert play("train", folder, "-m", *small, "seed=0,1")[0] == 0
    status, out, _ = play("train", folder, *small, "seed=0", "resume=true", "budget.updates=4")
    assert status == 0
    return folder, out


def test_a_tiny_run_writes_its_summary_and_prints_the_path_last(tiny):
    folder, out = tiny
    assert out.splitlines()[-1] == "runs/tiny/summary.json"
    summary = json.loads((folder / "runs/tiny/summary.json").read_text())
    promised = (
        "success return_mean env_steps updates cpu_s wall_s seed status git_revision versions"
    )
    assert set(promised.split()) <= summary.keys()
    assert summary["status"] == "FINISHED"
    assert summary["updates"] == 2
    assert (summary["ended_by"], summary["evaluated_at"]) == (
        "budget.updates=2",
        summary["env_steps"],
    )
    assert 0.0 <= summary["success"] <= 1.0
    assert sorted(path.name for path in folder.iterdir()) == ["runs"]


def test_the_minutes_of_the_budget_do_not_count_what_is_built(monkeypatch, tmp_path):
    def start(budget):
        begun.append((tmp_path / "runs/t/config.yaml").exists())  # written once all is built
        raise KeyboardInterrupt

    begun = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("yamame.system.budget.Budget.start", start)
    with pytest.raises(KeyboardInterrupt):
        yamame.train(*TINY, "run.name=t")
    assert begun == [True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encoder.heads=3"], r"encoder.heads.*num_heads"),
        (["env=tmaze", "relabel=some"], r"relabel: .*PassiveTMaze.*some.*relabel=none"),
        (["encoder.num_heads=7"], r"num_heads.*7"),
        (["agent.gammas=[0.9,1.5]"], r"gammas.*1\.5"),
        (["budget.minutes=-1"], r"minutes.*-1"),
        (["resume=true", "run.name=nothing"], r"nothing"),
        (["exploration=gaussian"], r"GaussianNoise"),
        (["trials=repeated"], r"relabel: .*MazeRunner.*some.*relabel=none"),
        (["env=gym", "env.id=NoSuch-v0"], r"env.*NoSuch-v0"),
        (["env=gym", "+evaluation.env.slip=test"], r"evaluation.env.slip: .*'test'"),
        (["~env"], r"env: must be given, got ~env"),
        (
            ["budget.env_steps=2000", "schedule.learning_starts=4096"],
            r"budget.env_steps: must be .* 4116, .* got 2000",
        ),
        (["checkpoint.keep=0"], r"checkpoint.keep: must be an integer of at least 1, got 0"),
        (
            ["checkpoint.interval=abc"],
            r"checkpoint.interval: must be an integer of at least 1 or null, got 'abc'",
        ),
        (
            ["schedule.steps_per_iteration=0"],
            r"schedule.steps_per_iteration: must be .* at least 1, got 0",
        ),
        (["schedule.max_grad_norm=null"], r"schedule.max_grad_norm: must be a number.*, got null"),
        (
            ["schedule.warmup_updates=abc"],
            r"schedule.warmup_updates: must be an integer of at least 0, got 'abc'",
        ),
        (["replay.capacity=0"], r"replay.capacity: must hold an episode of 101 timesteps, got 0"),
        (["collector=async"], r"collector=async: no such choice.*ray.*sync"),
        (
            ["collector=ray", "collector.num_workers=0"],
            r"collector.num_workers: must be .* at least 1, got 0",
        ),
        (
            ["logger=mlflow", "logger.tracking_uri=foo://bar"],
            r"tracking_uri: must be .* got foo://bar",
        ),
        (["run.root=/dev/null"], r"run.root: must be a directory, but /dev/null is a file"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(refusal, arguments, message):
    assert re.search(message, told := refusal("train", *TINY, *arguments)), told


def test_a_mistake_ends_with_status_two_and_nothing_is_written(run, tmp_path):
    status, out, err = run(*TINY, "env.size=8")
    assert (status, out, err) == (
        2,
        "",
        "train: env.size: must be odd and at least 5, got 8\n",
    )
    assert list(tmp_path.iterdir()) == []


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_existing_run_is_refused_and_left_alone_and_another_configuration_names_its_keys(
    tiny, refusal, tmp_path
):
    shutil.copytree(tiny[0] / "runs", tmp_path / "runs")
    before = contents(tmp_path)
    for arguments, message in (
        ([], r"resume=true.*run\.overwrite=true"),
        (
            ["resume=true", "seed=5", "replay.capacity=9"],
            r"replay\.capacity: 2000000 -> 9; seed: 0 -> 5",
        ),
    ):
        assert re.search(
            message, told := refusal("train", *TINY, *SMALL, "run.name=tiny", *arguments)
        ), told
    assert {path: data for path, data in contents(tmp_path).items() if path.name != ".lock"} == {
        path: data for path, data in before.items() if path.name != ".lock"
    }


def test_a_mistake_beside_overwriting_leaves_the_run_that_is_there_and_without_one_it_is_replaced(
    tiny, run, refusal, tmp_path
):
    shutil.copytree(tiny[0] / "runs", tmp_path / "runs")
    (tmp_path / "runs/tiny/note.txt").write_text("precious")
    mistakes = (
        *("run.overwrite=no", "logger=mlflow logger.tracking_uri=foo://bar", "env.size=8"),
        *(
            "replay.keep=0",
            "replay.capacity=20",
            "encoder.positions=learned encoder.num_positions=5",
        ),
    )
    for mistake in mistakes:
        refusal("train", *TINY, "run.name=tiny", "run.overwrite=true", *mistake.split())
    assert (tmp_path / "runs/tiny/note.txt").read_text() == "precious"
    assert run(*TINY, *SMALL, "run.name=tiny", "run.overwrite=true", "budget.updates=1")[0] == 0
    assert json.loads((tmp_path / "runs/tiny/summary.json").read_text())["updates"] == 1
    assert not (tmp_path / "runs/tiny/note.txt").exists()


RESUMED = {
    "mazerunner": MAZES,
    "trials of another library, separate encoders and targets of them": [
        *SHORT,
        *(
            "env=gym",
            "trials=repeated",
            "agent=separate",
            "encoder.hidden_size=16",
            "encoder.num_layers=1",
        ),
    ],
}


@pytest.mark.parametrize("kind", RESUMED)
def test_a_run_extended_later_equals_one_that_was_never_stopped(
    whole, monkeypatch, tmp_path, components, differing, kind
):
    monkeypatch.chdir(tmp_path)
    settings = RESUMED[kind]
    never = components(
        whole if kind == "mazerunner" else yamame.train(*settings, "run.name=whole").path
    )
    parts = yamame.train(*settings, "run.name=parts", "budget.updates=7").path
    stopped = components(parts)
    assert stopped["progress"]["updates"] == 7 < never["progress"]["updates"]
    assert differing(never["agent"], stopped["agent"])
    yamame.train(*settings, "run.name=parts", "resume=true")
    skip = ("/progress/curve",)  # the first part ended with an evaluation
    assert differing(never, components(parts), skip=skip) == []
    targets = any(key.startswith("_targets.encoder.critic") for key in never["loss"])
    assert targets == (kind != "mazerunner")


def at_once(batch):
    """Fetches a batch in advance where no device works meanwhile."""
    return lambda: batch


def test_batches_sampled_in_advance_are_all_learned_from_and_change_nothing(
    monkeypatch, tmp_path, components, differing
):
    sampled = []

    def prefetcher(sample, device):
        return Prefetcher(lambda: sampled.append(1) or sample(), device, transfer=at_once)

    # Draws of dropout would come between, but for a GPU, which has a generator of its own.
    few = [text for text in SHORT if not text.startswith("env.")]
    settings = [*few, "env=tmaze", "env.length=8", "encoder=memoryless", "encoder.d_model=16"]
    monkeypatch.chdir(tmp_path)
    ordinary = yamame.train(*settings, "run.name=ordinary")
    monkeypatch.setattr(parts, "Prefetcher", prefetcher)
    fetched = yamame.train(*settings, "run.name=fetched")
    assert len(sampled) == ordinary.progress.updates == fetched.progress.updates > 5
    assert differing(components(ordinary.path), components(fetched.path)) == []
    sampled.clear()
    short = yamame.train(*settings, "run.name=short", "budget.updates=5")
    assert len(sampled) == short.progress.updates == 5  # in the middle of what was due


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
def test_five_kills_and_resumes_end_with_the_same_bits(tmp_path, components, differing):
    settings = [*MAZES, "budget.env_steps=2048"]
    whole = yamame.train(*settings, "run.name=whole", f"run.root={tmp_path}").path
    program = [sys.executable, "-c", KILLS, str(RECIPES), str(torch.get_num_threads())]
    subprocess.run(
        [*program, *settings], cwd=tmp_path, env=dict(os.environ), check=True, timeout=300
    )
    directory = tmp_path / "runs/killed"
    assert json.loads((directory / "summary.json").read_text())["status"] == "FINISHED"
    assert differing(components(whole), components(directory)) == []


def test_a_loss_that_is_not_finite_keeps_the_evidence_and_what_has_no_checkpoint_begins_again(
    whole, monkeypatch, tmp_path, components, differing
):
    monkeypatch.chdir(tmp_path)
    settings = [
        *MAZES,
        "checkpoint.interval=100000",
        "evaluation.interval=100000",
        "run.name=again",
    ]
    with pytest.raises(FloatingPointError, match="nonfinite/step-"):
        yamame.train(*settings, "optimizer.lr=1e30")
    directory = tmp_path / "runs/again"
    assert list(directory.glob("nonfinite/step-*/step-*.pt"))
    assert json.loads((directory / "summary.json").read_text())["status"] == "FAILED"
    assert not list(directory.glob("checkpoints/*.pt"))
    assert list((directory / "replay").iterdir())
    yamame.train(*settings, "resume=true")
    assert differing(components(whole), components(directory), skip=("/progress",)) == []


def test_a_sweep_is_one_parent_run_with_its_jobs_as_children_and_points_are_logged_once(swept):
    folder, _ = swept
    assert sorted(p.name for p in (folder / "runs").iterdir() if p.is_dir()) == [
        f"tmaze-memoryless-debug=tiny-seed={seed}" for seed in (0, 1)
    ]
    with sqlite3.connect(folder / "mlflow.db") as database:
        runs = database.execute("select run_uuid, status from runs").fetchall()
        parents = database.execute(
            "select value from tags where key = 'mlflow.parentRunId'"
        ).fetchall()
        twice = database.execute(
            "select key, step, count(*) from metrics group by run_uuid, key, step having "
            "count(*) > 1"
        ).fetchall()
        outputs = database.execute(
            "select * from inputs where destination_type = 'MODEL_OUTPUT'"
        ).fetchall()
        metrics = {key for (key,) in database.execute("select distinct key from metrics")}
    assert len(runs) == 3
    assert {status for _, status in runs} == {"FINISHED"}
    assert len(parents) == 2
    assert len(set(parents)) == 1
    assert parents[0][0] in {identity for identity, _ in runs}
    assert twice == []
    assert len(outputs) == 3  # models: of one run two, for it went on
    assert {"eval/success_mean", "train/loss", "train/grad_norm", "cost/cpu_s"} <= metrics


def test_what_a_run_says_may_be_done_next_can_be_done(swept, monkeypatch):
    folder, out = swept
    following = out.partition("next:\n")[2].splitlines()[:-1]
    pages, *commands = [line.strip() for line in following]
    command, _, address = pages.partition("  # ")
    assert command == "mlflow ui"
    assert [shlex.split(line)[:2] for line in commands] == [
        ["yamame", "play"],
        ["yamame", "evaluate"],
        ["yamame", "train"],
    ]
    monkeypatch.chdir(folder)
    for line in commands:
        monkeypatch.setattr(sys, "argv", shlex.split(line, comments=True))
        console.main()  # whatever fails ends with an exception, SystemExit among them
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("yamame")
    (run,) = client.search_runs([experiment.experiment_id], "params.seed = '0'")
    place = f"experiments/{experiment.experiment_id}/runs/{run.info.run_id}"
    place += "?workflowType=machine_learning"
    assert address == f"http://127.0.0.1:5000/#/{place}"
    assert "debug=tiny env=tmaze encoder=memoryless" in run.data.tags["mlflow.note.content"]
    models = client.search_logged_models([experiment.experiment_id])
    (model, *_) = [model for model in models if model.source_run_id == run.info.run_id]
    assert str(model.status) == "READY"
    assert (
        yamame.load(model.artifact_location.removeprefix("file://") + "/data/agent").act is not None
    )
