"""The jobs of a sweep: names, directories, what fails, and the table that says what became of
each.
"""

import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import OmegaConf
from yamame.checks import UsageError
from yamame.cli import jobs
from yamame.cli.app import main
from yamame.cli.jobs import AlreadyDone, mark_resumed, resume_mode
from yamame.cli.names import run_name

TRAIN = """
defaults:
  - _self_
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none
hydra:
  run: {dir: .}
  sweep: {dir: "${run.root}", subdir: .}
  output_subdir: null
seed: 0
size: 1
resume: null
logger: {_target_: yamame.tracking.MLflowTracker}
run: {root: runs, name: null, overwrite: false}
"""
FORKING = """
import os

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.utils import JobReturn, JobStatus


class ForkingLauncher(BasicLauncher):
    def launch(self, job_overrides, initial_job_idx):
        returned = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            process = os.fork()
            if process == 0:
                super().launch([overrides], number)
                os._exit(0)
            os.waitpid(process, 0)
            returned.append(JobReturn(status=JobStatus.COMPLETED))
        return returned
"""


@pytest.fixture
def sweep(tmp_path, monkeypatch, capsys):
    """Runs a task from the command line: exit status, output, error output."""
    (tmp_path / "train.yaml").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)

    def run(task, *arguments):
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        status = 0
        try:
            main(task, config_name="train", config_dir=tmp_path, needs_store=False)
        except SystemExit as exit_:
            status = exit_.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def task(cfg):
    """A job of every kind, by its seed."""
    if cfg.seed == 1:
        raise ZeroDivisionError("an unlucky seed\nwith details")
    if cfg.seed == 2:
        raise UsageError("size: must be\nodd")
    if cfg.seed == 3:
        raise AlreadyDone(SimpleNamespace(path=Path("runs/three"), objective=0.25))
    if cfg.seed == 4:
        mark_resumed()
    jobs.note_objective("return")
    Path(f"{cfg.seed}.done").touch()
    return cfg.seed / 10


TABLE = """\
job  outcome  overrides  return or error
0    ran      seed=0     0
1    failed   seed=1     ZeroDivisionError: an unlucky seed
2    failed   seed=2     size: must be\\nodd
3    done     seed=3     0.25
4    resumed  seed=4     0.4
5    ran      seed=5     0.5

group  jobs  mean return
all    4     0.2875

next: yamame report
"""


def learning(cfg):
    """A job that has hardly learned, unless its seed is 1."""
    if cfg.seed != 1:
        jobs.note_hardly_learned()
    return 0.5


def test_jobs_that_have_hardly_learned_are_named_once_after_the_table(sweep):
    _, out, _ = sweep(learning, "-m", "seed=0,1,2", "size=2")
    (line,) = [line for line in out.splitlines() if "hardly learned" in line]
    assert "job 0 (seed=0), job 2 (seed=2);" in line
    assert line.endswith("/howto/does_not_learn.html")
    assert out.index("job  outcome") < out.index(line)
    _, out, _ = sweep(learning, "-m", "seed=1", "size=2,3")
    assert "hardly learned" not in out


def rows_of(out):
    """The rows of the table of jobs."""
    lines = out.splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("job  outcome")]
    rows = []
    for line in lines[head + 1 :]:
        if not line[:1].isdigit():
            break
        rows.append(line)
    return rows


@pytest.mark.parametrize("process", ["the same process", "processes of their own"])
def test_a_job_that_fails_leaves_the_others_alone_and_a_table_says_what_became_of_each(
    sweep, tmp_path, monkeypatch, process
):
    launcher = []
    if process != "the same process":
        (tmp_path / "hydra_plugins").mkdir()
        (tmp_path / "hydra_plugins" / "forking.py").write_text(FORKING)
        monkeypatch.syspath_prepend(str(tmp_path))
        module = importlib.import_module("hydra_plugins.forking")
        Plugins.instance().register(module.ForkingLauncher)
        node = {"_target_": "hydra_plugins.forking.ForkingLauncher"}
        ConfigStore.instance().store(group="hydra/launcher", name="forking", node=node)
        launcher = ["hydra/launcher=forking"]
    status, out, err = sweep(task, "-m", "seed=0,1,2,3,4,5", "size=2", *launcher)
    assert status == 1
    assert out.endswith(TABLE)
    if not launcher:  # what others print, pytest does not see
        assert "Traceback" in err
        assert "train: job 2: size: must be\\nodd\n" in err
        assert "runs/three is done" in err
    assert sorted(path.name for path in tmp_path.glob("*.done")) == ["0.done", "4.done", "5.done"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["multirun.yaml"]
    assert jobs.SWEEP_VARIABLE not in os.environ


def test_a_sweep_that_is_interrupted_tells_which_jobs_were_not_begun_and_how_it_goes_on(sweep):
    def interrupted(cfg):
        if cfg.seed == 1:
            raise KeyboardInterrupt
        return 0.5

    status, out, _ = sweep(interrupted, "-m", "seed=0,1,2", "size=2,3", "run.overwrite=true")
    assert status == 130
    lines = out.splitlines()
    assert rows_of(out) == [
        "0    ran        seed=0 size=2  0.5",
        "1    ran        seed=0 size=3  0.5",
        "2    stopped    seed=1 size=2",
        "3    not begun  seed=1 size=3",
        "4    not begun  seed=2 size=2",
        "5    not begun  seed=2 size=3",
    ]
    assert lines[-1] == "next: the same command (runs continue unless run.overwrite=true)"
    # Each job is announced, with its place among those that are planned.
    announced = [line for line in lines if " of 6): " in line]
    assert announced == [
        "job 0 (1 of 6): seed=0 size=2",
        "job 1 (2 of 6): seed=0 size=3",
        "job 2 (3 of 6): seed=1 size=2",
    ]


def test_a_sweep_that_is_interrupted_in_its_last_job_goes_on_by_the_same_command(sweep):
    def interrupted(cfg):
        if cfg.seed == 1:
            raise KeyboardInterrupt

    _, out, _ = sweep(interrupted, "-m", "seed=0,1")
    assert out.splitlines()[-2:] == [
        "1    stopped  seed=1",
        "next: the same command (runs continue unless run.overwrite=true)",
    ]


def test_rows_are_of_the_jobs_that_ran_where_more_is_swept_over_than_the_command_line_says(
    sweep, tmp_path
):
    params = "# @package hydra.sweeper\nparams: {seed: '0,4,5'}\n"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "seeds.yaml").write_text(params)
    status, out, _ = sweep(task, "-m", "+own=seeds", "size=2,3")
    assert status == 0
    rows = {" ".join(line.split()[1:]) for line in rows_of(out)}
    jobs_that_ran = ("ran seed=0 size={} 0", "resumed seed=4 size={} 0.4", "ran seed=5 size={} 0.5")
    assert rows == {text.format(size) for text in jobs_that_ran for size in (2, 3)}


@pytest.mark.parametrize("added", ["+own=seeds", "hydra/sweeper=basic"])
def test_jobs_of_the_sweeper_s_parameters_are_planned_with_those_of_the_command_line(
    sweep, tmp_path, added
):
    def interrupted(cfg):
        raise KeyboardInterrupt

    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "seeds.yaml").write_text(
        "# @package hydra.sweeper\nparams: {seed: '0,4'}\n"
    )
    _, out, _ = sweep(interrupted, "-m", added, "size=2,3")
    overrides = [f"size={size}" for size in (2, 3)]
    if added == "+own=seeds":
        overrides = [f"seed={seed} {size}" for seed in (0, 4) for size in overrides]
    rows = [" ".join(line.split()) for line in rows_of(out)]
    states = ["stopped", *["not begun"] * (len(overrides) - 1)]
    expected = zip(range(len(overrides)), states, overrides, strict=True)
    assert rows == [f"{number} {state} {text}" for number, state, text in expected]


def test_rows_are_of_the_jobs_that_ran_whatever_their_order(sweep):
    status, out, _ = sweep(lambda cfg: cfg.seed, "-m", "seed=shuffle(0,1,2,3,4,5,6,7)")
    assert status == 0
    rows = [line.split() for line in rows_of(out)]
    assert sorted(row[2] for row in rows) == [f"seed={seed}" for seed in range(8)]
    assert all(row[2] == f"seed={row[3]}" for row in rows)


def test_a_sweep_whose_jobs_all_end_well_has_status_zero(sweep):
    status, out, err = sweep(task, "-m", "seed=0,5")
    assert (status, err) == (0, "")
    assert rows_of(out) == ["0    ran      seed=0     0", "1    ran      seed=5     0.5"]
    assert out.splitlines()[-1] == "next: yamame report"


def test_means_are_those_of_jobs_that_differ_in_their_seed_alone(sweep):
    status, out, _ = sweep(lambda cfg: cfg.seed * cfg.size, "-m", "seed=0,5", "size=2,3")
    assert status == 0
    assert out.splitlines()[-5:-2] == [
        "group   jobs  mean objective",
        "size=2  2     5",
        "size=3  2     7.5",
    ]
    status, out, _ = sweep(lambda cfg: cfg.size, "-m", "seed=1", "size=2,3")
    assert "mean" not in out


NOT_LOGGED = "logger._target_=yamame.tracking.NullTracker"


@pytest.mark.parametrize(
    ("arguments", "following"),
    [
        ([], ["yamame report"]),
        ([NOT_LOGGED], []),
        (
            [
                f"{NOT_LOGGED},yamame.tracking.MLflowTracker",
                "run.name='${logger._target_}-${seed}'",
            ],
            ["yamame report"],
        ),
        (["+logger.experiment=mine"], ["yamame report store.experiment=mine"]),
        (
            ["+logger.experiment=a,b", "run.name='${logger.experiment}-${seed}'"],
            ["yamame report store.experiment=a", "yamame report store.experiment=b"],
        ),
        (
            ["+logger.tracking_uri=sqlite:///b.db"],
            ["yamame report store.tracking_uri=sqlite:///b.db"],
        ),
    ],
)
def test_a_report_is_proposed_for_runs_that_are_in_mlflow(sweep, arguments, following):
    status, out, _ = sweep(task, "-m", "seed=0,5", *arguments)
    assert status == 0
    assert [
        line.removeprefix("next: ") for line in out.splitlines() if "next:" in line
    ] == following


def test_no_report_is_proposed_where_no_job_has_ended_well(sweep):
    status, out, _ = sweep(task, "-m", "seed=1,2")
    assert status == 1
    assert "next:" not in out


def test_what_ends_the_process_ends_the_sweep_and_the_table_shows_the_jobs_before(sweep, tmp_path):
    def interrupted(cfg):
        if cfg.seed == 5:
            raise KeyboardInterrupt
        return task(cfg)

    status, out, _ = sweep(interrupted, "-m", "seed=0,5,4")
    assert status == 130
    assert "0    ran" in out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["multirun.yaml"]


def test_folders_of_sweeps_that_were_killed_are_swept_and_those_of_others_are_not(
    sweep, tmp_path, monkeypatch
):
    monkeypatch.setattr(jobs.socket, "gethostname", lambda: "here")
    names = [
        f".sweep-here-{os.getpid()}-a",
        f".sweep-here-{os.getppid()}-b",
        f".sweep-there-{os.getpid()}-c",
    ]
    for name in names:
        (tmp_path / "runs" / name).mkdir(parents=True)
    sweep(task, "-m", "seed=0")
    assert sorted(path.name for path in (tmp_path / "runs").glob(".sweep*")) == names[1:]


@pytest.mark.parametrize("name", ["run.name=x", "run.name=x-${size}"])
@pytest.mark.parametrize("launcher", [[], ["hydra/launcher=absent"]])
def test_jobs_that_would_share_a_directory_are_refused_before_the_first(
    sweep, tmp_path, name, launcher
):
    node = {"_target_": "no.such.Launcher"}
    ConfigStore.instance().store(group="hydra/launcher", name="absent", node=node)
    status, out, err = sweep(
        task, "-m", "seed=0,5", "size=2,3", name, "run.overwrite=true", *launcher
    )
    second = "job 1 (seed=0 size=3)" if name == "run.name=x" else "job 2 (seed=5 size=2)"
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"job 0 (seed=0 size=2) and {second} share {tmp_path / 'runs'}/x" in err
    assert [path.name for path in tmp_path.iterdir()] == ["train.yaml"]


def test_the_same_name_in_other_directories_is_another_run(sweep, tmp_path):
    assert sweep(task, "-m", "seed=0", "run.name=x", "run.root=runs,others")[0] == 0
    assert sweep(task, "-m", "seed=0,5", "run.name='mine-${seed}'")[0] == 0


def named(*overrides, seed=0, recipe="train", **choices):
    job = {"config_name": recipe}
    hydra_config = {
        "job": job,
        "runtime": {"choices": choices},
        "overrides": {"task": list(overrides)},
    }
    cfg = {"run": {"name": None}, "seed": seed}
    return run_name(OmegaConf.create(cfg), OmegaConf.create(hydra_config))


def test_a_name_that_is_cut_ends_in_a_hash_of_all_that_makes_it_and_the_seed():
    assert (
        named("env=tmaze", "env.size=3", env="tmaze", encoder="gru")
        == "tmaze-gru-env.size=3-seed=0"
    )
    assert named("env=tmaze", recipe="ppo", env="tmaze", encoder="gru") == "ppo-tmaze-gru-seed=0"
    many = [f"agent.critic.hidden_size_of_layer_{index}=16" for index in range(9)]
    names = {
        named(*many, last, seed=seed, env="tmaze", encoder="gru")
        for last in ("z=1", "z=2", "z=[1,2]")
        for seed in (0, 12)
    }
    assert len(names) == 6
    assert {len(name) for name in names} == {80}
    assert {name.rpartition("-")[2] for name in names} == {"seed=0", "seed=12"}
    first = named(*many, "z=1")
    assert named("z=1", *reversed(many), "budget.updates=3", "seed=0", "resume=auto") == first


def test_resuming_is_automatic_in_a_sweep_unless_runs_are_replaced_and_what_is_said_holds(
    monkeypatch,
):
    for mode, replaced, said, answer in (
        (RunMode.RUN, False, None, False),
        (RunMode.MULTIRUN, False, None, "auto"),
        (RunMode.MULTIRUN, True, None, False),
        (RunMode.MULTIRUN, False, False, False),
        (RunMode.MULTIRUN, False, True, True),
        (RunMode.RUN, False, "auto", "auto"),
    ):
        monkeypatch.setattr(jobs.HydraConfig, "get", lambda mode=mode: SimpleNamespace(mode=mode))
        cfg = OmegaConf.create({"resume": said, "run": {"overwrite": replaced}})
        assert resume_mode(cfg) == answer


@pytest.mark.parametrize(
    ("num_processes", "told"),
    [
        (
            1,
            "yamame train --config-dir 'my conf' --config-name mine hydra.searchpath=x "
            "env=tmaze '~trials' resume=true",
        ),
        (
            2,
            "torchrun --nproc-per-node=2 --no-python yamame train --config-dir 'my conf' "
            "--config-name mine ",
        ),
    ],
)
def test_the_command_that_goes_on_has_all_that_the_run_was_begun_with(
    num_processes, told, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    source = {"provider": "command-line", "path": "my conf"}
    typed = ["env=tmaze", "~trials", "resume=auto", "run.overwrite=true"]
    hydra_config = {
        "job": {"name": "train", "config_name": "mine"},
        "runtime": {"config_sources": [source]},
        "overrides": {"hydra": ["hydra.searchpath=x", "hydra.mode=RUN"], "task": typed},
    }
    monkeypatch.setattr(jobs.HydraConfig, "get", lambda: OmegaConf.create(hydra_config))
    assert jobs.resuming_command(num_processes).startswith(told)
