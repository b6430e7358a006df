"""What a run and a sweep survive: kills at any moment, a second command, a move, a resume that
cannot be.
"""

import json
import os
import re
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest
import torch
import yamame
from yamame.checks import UsageError
from yamame.files.atomic import TEMPORARY_SUFFIX
from yamame.files.run_directory import RunDirectory

RECIPES = Path(__file__).parents[2] / "recipes"
KILLS = int(os.environ.get("KILLS", "40"))
"""Kills of the slow tests."""
SMALL = [
    "debug=tiny",
    "encoder=memoryless",
    "encoder.d_model=16",
    "env=tmaze",
    "env.length=8",
    "schedule.learning_starts=64",
    "checkpoint.interval=64",
    "evaluation.interval=128",
    "evaluation.num_episodes=2",
    "evaluation.video_frames=1",
    "budget.updates=null",
    "budget.env_steps=256",
    "budget.minutes=null",
]
"""Four iterations, two updates in each, a checkpoint after each."""
PLAIN = [*SMALL, "logger=none"]


def summary(directory):
    return json.loads((Path(directory) / "summary.json").read_text())


def contents(folder):
    files = (path for path in Path(folder).rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def litter(folder):
    """What only killed processes leave."""
    names = (path.relative_to(folder) for path in Path(folder).rglob("*"))
    return [str(name) for name in names if name.suffix == TEMPORARY_SUFFIX or ".sweep" in str(name)]


@pytest.fixture(scope="module")
def tracked(play, tmp_path_factory):
    """A project with one finished run that MLflow knows, moved since."""
    folder = tmp_path_factory.mktemp("tracked")
    assert play("train", folder, *SMALL, "run.name=a")[0] == 0
    return folder.rename(folder.with_name(f"{folder.name}-moved"))


@pytest.fixture
def project(tracked, tmp_path):
    """A copy of `tracked`, in the test's directory."""
    shutil.copytree(tracked, tmp_path, dirs_exist_ok=True)
    return tmp_path


def mlflow_runs(database):
    """Status and number of points of every MLflow run; no point may be there twice."""
    with sqlite3.connect(database) as store:
        twice = (
            "select key, step, count(*) from metrics group by run_uuid, key, step "
            "having count(*) > 1"
        )
        assert store.execute(twice).fetchall() == []
        return store.execute(
            "select r.status, count(*) from runs r left join metrics m on m.run_uuid = "
            "r.run_uuid group by r.run_uuid"
        ).fetchall()


# A result is never harmed.


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("runs/a/replay", "a/replay must hold the trajectories of the run, it is missing"),
        (
            "runs/a/checkpoints",
            "a/checkpoints must hold the checkpoints of a finished run, it holds none",
        ),
        ("mlflow.db", "the store of the run .* found none at .*mlflow.db"),
    ],
)
@pytest.mark.parametrize("mode", ["true", "auto"])
def test_a_resume_that_misses_something_leaves_the_finished_run_as_it_was(
    project, monkeypatch, missing, message, mode
):
    monkeypatch.chdir(project)
    path = project / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = contents(project / "runs")
    with pytest.raises(UsageError) as raised:
        yamame.train(*SMALL, "run.name=a", f"resume={mode}", "budget.env_steps=512")
    assert re.fullmatch(rf".*{message}; (bring .* back|restore).*", str(raised.value)), raised.value
    after = contents(project / "runs")
    changed = {
        name for name in before if before[name] != after.get(name)
    } | after.keys() - before.keys()
    assert {name for name in changed if not name.startswith("a/replay/")} == set()
    assert summary("runs/a")["status"] == "FINISHED"
    if missing != "mlflow.db":
        assert [status for status, _ in mlflow_runs("mlflow.db")] == ["FINISHED"]
    else:
        assert not path.exists()


# resume=auto: begins, goes on, or is done.


@pytest.mark.parametrize(
    ("name", "settings", "shorter", "longer"),
    [
        ("train", PLAIN, "budget.env_steps=128", "budget.env_steps=192"),
        (
            "ppo",
            [
                *(
                    "logger=none",
                    "debug=tiny",
                    "encoder=memoryless",
                    "encoder.d_model=16",
                    "env.time_limit=20",
                ),
                *("context_length=200", "evaluation.num_episodes=2"),
            ],
            "budget.updates=2",
            "budget.updates=4",
        ),
        (
            "distill",
            [
                *("logger=none", "debug=tiny", "encoder.d_model=16", "evaluation.num_episodes=2"),
                *("env.time_limit=40", "source.horizon=80", "source.subsample=2"),
            ],
            "budget.updates=1",
            "budget.updates=2",
        ),
    ],
)
def test_auto_begins_what_is_not_there_goes_on_with_what_is_and_leaves_what_is_done(
    runner, tmp_path, name, settings, shorter, longer
):
    play = runner(name)
    arguments = [*settings, "run.name=a", "resume=auto"]
    spent = []
    for budget, is_done in ((shorter, False), (longer, False), (longer, True), (shorter, True)):
        before = contents(tmp_path)
        status, out, err = play(*arguments, budget)
        assert status == 0, err
        assert out.splitlines()[-1] == "runs/a/summary.json"
        assert err.startswith("runs/a is done") == is_done
        assert (contents(tmp_path) == before) == is_done
        assert summary("runs/a")["status"] == "FINISHED"
        spent.append(summary("runs/a")["updates"])
    assert spent[0] < spent[1] == spent[2] == spent[3]
    with pytest.raises(UsageError, match="seed: 0 -> 5"):
        yamame.train(*arguments, longer, "seed=5", recipe=name)


def test_a_run_that_is_not_done_goes_on_whatever_its_summary_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    arguments = [*PLAIN, "run.name=a", "resume=auto", "budget.env_steps=128"]
    yamame.train(*arguments)
    # As if a longer session had been killed before its last evaluation.
    told = summary("runs/a")
    for change in ({"status": "KILLED"}, {"updates": told["updates"] - 1}):
        Path("runs/a/summary.json").write_text(json.dumps(told | change))
        yamame.train(*arguments)
        assert (summary("runs/a")["status"], summary("runs/a")["updates"]) == (
            "FINISHED",
            told["updates"],
        )
    before = contents(tmp_path)
    yamame.train(*arguments, "evaluation.num_episodes=3")  # evaluated by other tasks
    after = contents(tmp_path)
    assert after != before
    yamame.train(*arguments, "evaluation.num_episodes=3")
    assert contents(tmp_path) == after


def test_a_run_whose_replacement_was_killed_before_it_began_is_still_there(project, play):
    killed = RunDirectory.open(project / "runs", "a", overwrite=True)
    killed._lock.close()  # as the system does for the dead
    assert not (project / "runs/a/summary.json").exists()
    assert "runs/a is done" in play("train", project, *SMALL, "run.name=a", "resume=auto")[2]
    assert summary(project / "runs/a")["status"] == "FINISHED"


# Where a run may go on.


def test_a_run_goes_on_elsewhere_under_another_name_and_other_conditions(
    project, play, monkeypatch
):
    moved = project / "elsewhere" / "deeper"
    moved.mkdir(parents=True)
    (project / "runs/a").rename(moved / "b")
    others = [
        "workers.timeout=30",
        "evaluation.interval=100",
        "evaluation.num_episodes=3",
        "checkpoint.keep=1",
    ]
    arguments = [
        *SMALL,
        *others,
        "run.root=elsewhere/../elsewhere/deeper",
        "run.name=b",
        "resume=true",
    ]
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    status, _, err = play("train", project, *arguments, "budget.env_steps=320")
    assert status == 0, err
    told = [line for line in err.splitlines() if "other settings" in line]
    assert told == [
        "b: resumed with other settings; results may differ in the last bits: "
        f"threads: {threads} -> {threads + 1}"
    ]
    assert summary(moved / "b")["env_steps"] >= 320
    assert "budget" not in err
    # The whole project moves: no store is made where it was.
    (project / "project").mkdir()
    for name in ("elsewhere", "mlflow.db", "mlruns"):
        (project / name).rename(project / "project" / name)
    folder = project / "project/elsewhere"
    status, _, err = play(
        "train", folder, *SMALL, *others, "run.root=deeper", "run.name=b", "resume=true"
    )
    assert (status, err.count("other settings")) == (0, 0)
    assert "b: resumed with a smaller budget: env_steps: 320 -> 256\n" in err  # less than was made
    assert [path.relative_to(project) for path in project.rglob("mlflow.db")] == [
        Path("project/mlflow.db")
    ]
    assert [status for status, _ in mlflow_runs(project / "project/mlflow.db")] == ["FINISHED"]


def test_a_run_goes_on_with_other_workers(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    gym = [text for text in PLAIN if not text.startswith("env")] + ["env=gym", "run.name=a"]
    yamame.train(*gym, "env.time_limit=20", "budget.env_steps=128")
    yamame.train(*gym, "env.time_limit=20", "resume=true", "workers.num_processes=2")
    assert summary("runs/a")["env_steps"] >= 256


# Kills.

KILLED = """
import os, random, signal, sys

sys.path.insert(0, sys.argv[1])
import torch, train  # once: every run is a copy of this process
from yamame.cli.app import main
from yamame.runs.run import Run

torch.set_num_threads(int(sys.argv[2]))
how, number, arguments = sys.argv[3], int(sys.argv[4]), sys.argv[5:]
log, left = Run.log, 0


def count(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def at_files(event, arguments):  # whatever is opened, made, renamed or deleted in a run directory
    if event.startswith(("open", "os.")) and any("runs/" in str(name) for name in arguments[:2]):
        count()


def recorded(cfg):
    value = train.train(cfg)
    with open("ends", "a") as file:
        file.write(f"{cfg.seed}\\n")
    return value


def start(moment):
    global left
    process = os.fork()
    if process == 0:
        left = moment
        if how == "files":
            sys.addaudithook(at_files)
        else:
            Run.log = lambda *arguments, **rest: (count(), log(*arguments, **rest))
        sys.stdout = open("out", "w")
        sys.argv = ["train.py", *arguments]
        status = 0
        try:
            main(recorded, config_name="train")
        except SystemExit as exit_:
            status = exit_.code
        sys.stdout.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
"""
AT_FILES = f"""{KILLED}
# At 3 there is no config.yaml yet.
moments = [3, *random.Random(0).sample(range(4, 120), number - 1)]
for kill, moment in enumerate(moments):
    arguments[-1] = f"run.name=k{{kill}}"
    status = start(moment)
    begun = os.path.exists(f"runs/k{{kill}}/config.yaml")
    saved = os.path.isdir(f"runs/k{{kill}}/checkpoints")
    print(moment, status, begun, saved, start(0))
"""
IN_A_SWEEP = f"""{KILLED}
moments, status = random.Random(0), -signal.SIGKILL
while status == -signal.SIGKILL:
    number -= 1
    status = start(moments.randrange(2, 6) if number >= 0 else 0)
    print(status, flush=True)
"""


@pytest.fixture
def killed(run_forked, tmp_path):
    """Runs a program that kills runs; gives the numbers it prints, a list per line."""

    def killed(program, how, number, *arguments):
        settings = (str(RECIPES), str(torch.get_num_threads()), how, str(number))
        done = run_forked(program, *settings, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    return killed


@pytest.mark.parametrize("number", [2, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_resume_auto_is_the_one_command_whenever_a_run_was_killed(
    killed, tmp_path, components, differing, number
):
    lines = killed(AT_FILES, "files", number, *PLAIN, "resume=auto", "run.name=")
    assert len(lines) == number
    assert {status for _, status, *_ in lines} == {str(-signal.SIGKILL)}
    assert {end for *_, end in lines} == {"0"}
    assert {begun for _, _, begun, *_ in lines} == {"True", "False"}  # before config.yaml, too
    whole = components(tmp_path / "runs" / "k0")
    for kill in range(number):
        directory = tmp_path / "runs" / f"k{kill}"
        assert summary(directory)["status"] == "FINISHED"
        assert differing(whole, components(directory), skip=("/machine",)) == []
    assert litter(tmp_path) == []


@pytest.mark.parametrize(
    ("jobs", "kills", "tracker"),
    [(2, 1, ["logger=none"]), pytest.param(12, 8, [], marks=pytest.mark.slow)],
)
def test_a_sweep_that_is_killed_and_issued_again_runs_each_job_to_its_end_once(
    killed, tmp_path, jobs, kills, tracker
):
    seeds = ",".join(map(str, range(jobs)))
    lines = killed(IN_A_SWEEP, "steps", kills, "-m", *SMALL, *tracker, f"seed={seeds}")
    assert lines == [[str(-signal.SIGKILL)]] * kills + [["0"]]
    assert sorted(map(int, (tmp_path / "ends").read_text().split())) == list(range(jobs))
    lines = (tmp_path / "out").read_text().splitlines()
    table = [line.split() for line in lines if line.partition(" ")[0].isdigit()][-jobs:]
    assert [row[0] for row in table] == [str(job) for job in range(jobs)]
    assert "done" in {row[1] for row in table} <= {"done", "resumed", "ran"}
    directories = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    assert len(directories) == jobs
    assert {summary(path)["status"] for path in directories} == {"FINISHED"}
    assert litter(tmp_path) == []
    if not tracker:
        assert [status for status, _ in mlflow_runs(tmp_path / "mlflow.db")] == ["FINISHED"] * (
            jobs + 1
        )
