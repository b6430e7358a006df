"""Sweeps over groups with keys of the swept choices, composed as Hydra composes each job alone."""

import shlex
import sys
from pathlib import Path

import pytest
from yamame.checks import UsageError
from yamame.cli.app import main
from yamame.cli.command_line import jobs_of, read_command_line
from yamame.cli.jobs import check_sweep, command
from yamame.cli.settings import CONFIGS
from yamame.cli.sweeps import planned
from yamame.system.installed import conf_dir

OWN = """
# @package _global_
defaults:
  - override /env: tmaze
hydra:
  sweeper:
    params: {encoder: 'gru,lstm'}
"""


def check(*arguments: str) -> list[list[str]]:
    """Check the jobs of a sweep of the training recipe, and return their overrides."""
    line = read_command_line(["-m", *arguments], str(conf_dir()), "train")
    return check_sweep(planned(line), CONFIGS["train"])[1]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["encoder=gru,lstm", "encoder.hidden_size=32"], 2),
        (["encoder=gru,lstm", "encoder.hidden_size=16,32"], 4),
        (["env=tmaze,active_tmaze", "env.length=8"], 2),
        (["agent=amago,bc", "agent.gammas=[0.9]"], 2),
        (["optimizer=muon,adamw", "optimizer.lr=1e-3"], 2),
        (["experiment=cpu_tmaze,tmaze_400", "env.length=9"], 2),
        (["trials=repeated,none"], 2),
        (["env=tmaze,active_tmaze", "encoder=gru,lstm", "optimizer=muon,adamw", "env.length=8"], 8),
        (["encoder=gru,lstm", "seed=0,1", "+encoder.max_time_constant=50"], 0),
    ],
)
def test_every_job_that_is_valid_alone_is_valid_in_a_sweep(arguments, count):
    if count == 0:
        with pytest.raises(UsageError, match=r"encoder\.max_time_constant"):
            check(*arguments)
    else:
        assert len(check(*arguments)) == count


def test_the_devices_of_all_jobs_are_known_before_the_first_begins():
    line = read_command_line(["-m", "hardware=cpu,gpu"], str(conf_dir()), "train")
    assert check_sweep(planned(line), CONFIGS["train"]).devices == {"cpu", "cuda"}


@pytest.mark.parametrize(
    ("arguments", "job", "key"),
    [
        (
            ["encoder=gru,transformer", "encoder.hidden_size=32"],
            r"job 1 \(encoder=transformer\)",
            "encoder.hidden_size",
        ),
        (["env=wind,tmaze", "env.length=8"], r"job 0 \(env=wind\)", "env.length"),
        (
            ["trials=repeated,none", "trials.num_trials=2"],
            r"job 1 \(trials=none\)",
            "trials.num_trials",
        ),
        (
            ["encoder=gru", "encoder.hidden_size=8,a"],
            r"job 1 \(encoder.hidden_size=a\)",
            "encoder.hidden_size",
        ),
    ],
)
def test_a_job_that_is_wrong_is_named(arguments, job, key):
    with pytest.raises(UsageError, match=rf"^{key}: .*; in {job}$"):
        check(*arguments)


def test_parameters_of_the_sweeper_are_jobs_like_those_of_the_command_line(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "own.yaml").write_text(OWN)
    own = ["--config-dir", str(tmp_path), "experiment=own"]
    assert len(check(*own, "encoder.hidden_size=8", "seed=0,1")) == 4
    with pytest.raises(UsageError, match=r"encoder\.d_model: .*; in job 0 \(encoder=gru\)$"):
        check(*own, "encoder.d_model=8")
    # The command line takes the place of a parameter, as in Hydra.
    jobs = check(*own, "encoder=transformer", "encoder.d_model=8", "encoder.num_heads=2")
    assert [job[0] for job in jobs] == ["encoder=transformer"]


LAUNCH = {
    "hydra.sweeper.max_batch_size": (["0", "-1"], ["3", "null"]),
    "hydra.launcher.n_jobs": (["0", "1.5", "true", "null", "two"], ["1", "64", "-1", "-1000"]),
    "hydra.launcher.jobs_per_device": (["0", "-1", "1.0", "true", "null", "two"], ["1", "1000"]),
}


@pytest.mark.parametrize("key", LAUNCH)
def test_numbers_of_jobs_are_checked_and_named_as_settings_of_the_whole_sweep(key):
    wrong, right = LAUNCH[key]
    for value in wrong:
        with pytest.raises(UsageError, match=rf"^{key}: must be .*, got '?{value}'?$"):
            check("launcher=local", "seed=0,1", f"{key}={value}")
    for value in right:
        assert len(check("launcher=local", "seed=0,1", f"{key}={value}")) == 2


def test_a_sweep_of_one_job_names_it_by_its_number():
    with pytest.raises(UsageError, match=r"^env\.length: .*; in job 0$"):
        check("env=wind", "env.length=8")


def test_the_mode_of_hydra_is_a_sweep_too():
    line = read_command_line(["hydra.mode=MULTIRUN", "seed=0,1"], str(conf_dir()), "train")
    assert line.is_sweep
    assert len(list(jobs_of(line))) == 2


MAIN = """
defaults:
  - _self_
  - part: plain
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none
hydra:
  run: {dir: .}
  sweep: {dir: ".", subdir: .}
  output_subdir: null
seed: 0
"""


@pytest.fixture
def sweep(tmp_path, monkeypatch, capsys):
    """Runs a recipe that keeps no runs, with choices of a user's own: status, output, errors."""
    own = tmp_path / "own folder"
    for folder in (tmp_path / "conf" / "part", own / "part"):
        folder.mkdir(parents=True)
    (tmp_path / "conf" / "quiet.yaml").write_text(MAIN)
    (tmp_path / "conf" / "part" / "plain.yaml").write_text("other: 1\n")
    (own / "part" / "first.yaml").write_text("size: 1\nname: a\n")
    (own / "part" / "second.yaml").write_text("size: 2\nname: b\n")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def run(task, *arguments):
        monkeypatch.setattr(sys, "argv", ["quiet.py", "--config-dir", str(own), *arguments])
        status = 0
        try:
            main(task, config_name="quiet", config_dir=tmp_path / "conf", needs_store=False)
        except SystemExit as exit_:
            status = exit_.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_recipe_without_runs_leaves_no_file(sweep):
    seen = []

    def task(cfg):
        seen.append((cfg.part.name, cfg.part.size, cfg.seed))
        return 0.5

    status, _, err = sweep(task, "-m", "part=first,second", "part.size=3,4", "seed=7")
    assert status == 0, err
    assert seen == [("a", 3, 7), ("a", 4, 7), ("b", 3, 7), ("b", 4, 7)]
    assert list(Path().iterdir()) == []


def test_the_command_line_of_a_job_can_be_pasted(sweep):
    commands = []

    def task(cfg):
        commands.append(command())

    status, _, err = sweep(task, "-m", "part=first,second", "part.name='a b'", "seed=1")
    assert status == 0, err
    assert len(commands) == 2
    for text, choice in zip(commands, ("first", "second"), strict=True):
        arguments = shlex.split(text)[2:]
        again = []
        status, _, err = sweep(lambda cfg, again=again: again.append(cfg), *arguments[2:])
        assert status == 0, err
        assert arguments[0] == "--config-dir"
        assert again[0].part == {"size": 1 + (choice == "second"), "name": "a b"}
