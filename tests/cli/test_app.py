"""The door to Hydra: checked configurations, one line per mistake, sweeps, threads of jobs that run
at once.
"""

import errno
import sys
from types import SimpleNamespace

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from yamame.checks import UsageError
from yamame.cli import app
from yamame.cli.app import main
from yamame.cli.sections import Config, Integer, Node, Section, Text
from yamame.system.messages import OutsideError

TRAIN = """
defaults:
  - env: maze
  - _self_
  - override hydra/job_logging: none
  - override hydra/hydra_logging: none
hydra:
  run: {dir: .}
  sweep: {dir: "${run.root}", subdir: .}
  output_subdir: null
seed: 1
run: {root: runs, name: null, overwrite: false}
budget: {minutes: 5}
net:
  _target_: torch.nn.Linear
  in_features: 2
  out_features: ${env.size}
"""


class Run(Section):
    root: Text
    name: Text | None
    overwrite: bool


class Limits(Section):
    minutes: float


class TrainConfig(Config):
    seed: Integer
    run: Run
    budget: Limits
    env: Node
    net: Node


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs a recipe with arguments; gives its calls, exit status and standard error, and what it
    wrote.
    """
    conf, work = tmp_path / "conf", tmp_path / "work"
    (conf / "env").mkdir(parents=True)
    work.mkdir()
    (conf / "train.yaml").write_text(TRAIN)
    (conf / "env" / "maze.yaml").write_text("size: 3\n")
    (conf / "env" / "tmaze.yaml").write_text("length: 10\nsize: 4\n")
    for choice, text in (
        ("trials/repeated", "num_trials: 3"),
        ("budget/long", "minutes: 60"),
        ("preset/wide", "# @package _global_\nnet: {width: 1, height: 2}"),
    ):
        (conf / choice).parent.mkdir()
        (conf / f"{choice}.yaml").write_text(f"{text}\n")
    monkeypatch.chdir(work)

    def command(*arguments, task=lambda cfg: None, typed=False):
        calls = []

        def recipe(cfg):
            calls.append(cfg)
            return task(cfg)

        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        status = 0
        try:
            main(task if typed else recipe, config_name="train", config_dir=conf, model=TrainConfig)
        except SystemExit as exit_:
            status = exit_.code
        assert not GlobalHydra.instance().is_initialized()
        return calls, status, capsys.readouterr().err, sorted(path.name for path in work.iterdir())

    return command


def test_a_correct_command_line_reaches_the_recipe_and_writes_nothing_by_itself(command):
    calls, status, errors, written = command("seed=7", "env=tmaze")
    assert (status, errors, written) == (0, "", [])
    assert [(cfg.seed, cfg.env.length, cfg.net.out_features) for cfg in calls] == [(7, 10, 4)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sed=1"], "train: sed: no such key, did you mean seed?"),
        (["minutes=1"], "train: minutes: no such key, did you mean budget.minutes?"),
        (
            ["env=tmaze", "env.lenght=3"],
            "train: env.lenght: no such key, did you mean env.length?; env has length, size",
        ),
        (
            ["env=maz"],
            "train: env=maz: no such choice, did you mean maze or tmaze?; there are maze, tmaze",
        ),
        (["net.width=3"], "train: net.width: no such key; net has in_features, out_features"),
        (["zzz=1"], "train: zzz: no such key"),
        (["seed=[1"], "train: 'seed=[1' cannot be parsed: no viable alternative at input '[1'"),
        (["seed=???"], "train: seed: must be given; add seed=..."),
        (["seed=${nowhere}"], "train: seed: Interpolation key 'nowhere' not found"),
        (["+net.hidden=1"], "train: net.hidden: must be an argument of torch.nn.Linear"),
        (["net._target_=os.system"], "train: net._target_: must begin with yamame. or"),
        (
            ["net._target_=torch.nn.Lineal"],
            "train: net._target_: must name a class or function, got 'torch.nn.Lineal'",
        ),
        (["run.overwrite=no"], "train: run.overwrite: must be true or false, got 'no'"),
        (["run.overwrite=off"], "train: run.overwrite: must be true or false, got 'off'"),
        (["run.overwrite=null"], "train: run.overwrite: must be true or false, got null"),
        (["seed=abc"], "train: seed: must be an integer, got 'abc'"),
        (["budget.minutes=abc"], "train: budget.minutes: must be a number, got 'abc'"),
        (["net.in_features=abc"], "train: net.in_features: must be an integer, got 'abc'"),
        (["run=mine"], "train: run: must be a mapping with root, name, overwrite, got 'mine'"),
        (["~seed"], "train: seed: must be given"),
        (["env=null"], "train: env=null: no such choice; there are maze, tmaze"),
        (["env=3"], "train: env=3: no such choice; there are maze, tmaze"),
        (["trials=null"], "train: trials=null: no such choice; ~trials leaves the group out"),
        (
            ["budget=long"],
            "train: budget: there are no choices here, only settings below it, as budget.name=",
        ),
        (
            ["+hydra.callbacks.x={_target_:os.system}"],
            "train: hydra.callbacks.x: must name no target",
        ),
        (["-m", "seed=1,abc"], "train: seed: must be an integer, got 'abc'"),
        (["-m", "env=maze,null"], "train: env=maze,null: no such choice; there are maze, tmaze"),
        (["-m", "env=maze,maz"], "train: env=maz: no such choice"),
        (["-m", "seed=1,2", "sed=1"], "train: sed: no such key"),
        (
            ["-m", "seed=1,2", "net._target_=torch.nn.Linear,os.system"],
            "train: net._target_: must begin with",
        ),
    ],
)
def test_a_mistake_is_one_line_and_status_two_before_anything_is_written_or_run(
    command, arguments, message
):
    calls, status, errors, written = command(*arguments)
    assert errors.startswith(message)
    assert errors.count("\n") == 1
    assert (calls, status, written) == ([], 2, [])


def test_keys_of_a_preset_that_a_choice_does_not_take_are_named_all_at_once_with_what_drops_them(
    command,
):
    _, status, errors, _ = command("+preset=wide", "+net.depth=2")
    assert status == 2
    assert "~net.depth" not in errors
    assert [line.split(": ")[1] for line in errors.splitlines()] == [
        "net.width",
        "net.height",
        "net.depth",
    ]
    remedy = "a preset sets what this choice does not take, add ~net.width ~net.height\n"
    assert errors.endswith(remedy)
    calls, status, errors, _ = command("+preset=wide", "~net.width", "~net.height")
    assert (len(calls), status, errors) == (1, 0, "")


def test_a_usage_error_of_the_recipe_is_one_line_but_other_errors_keep_their_traceback(command):
    def refuse(cfg):
        raise UsageError("the run\nexists")

    def fail(cfg):
        raise ZeroDivisionError("a defect")

    calls, status, errors, _ = command(task=refuse)
    assert (len(calls), status, errors) == (1, 2, "train: the run\\nexists\n")
    with pytest.raises(ZeroDivisionError, match="a defect"):
        command(task=fail)


OUTSIDE = [
    (
        OSError(errno.ENOSPC, "No space left on device", "a.pt"),
        "a.pt: No space left on device; make room on its disk",
    ),
    (
        OSError(errno.EFBIG, "File too large", "a.pt"),
        "a.pt: File too large; allow larger files, with ulimit -f",
    ),
    (
        OSError(errno.EIO, "Input/output error", "a.pt"),
        "a.pt: Input/output error; check the disk",
    ),
    (
        OSError(errno.EROFS, "Read-only", "a", None, "b"),
        "a -> b: Read-only; make the file system writable",
    ),
    (PermissionError(errno.EACCES, "Denied", "a.pt"), "a.pt: Denied; change its permissions"),
    (
        NotADirectoryError(errno.ENOTDIR, "No", "a/b"),
        "a/b: No; move the file that is in the way of a directory",
    ),
    (OSError("something\nelse"), "something else"),
    (ConnectionError(), "ConnectionError"),
    (OutsideError("the environment\nfailed"), "the environment failed"),
]


def test_a_failure_of_the_outside_world_is_one_line_with_a_remedy_and_status_one(command):
    def fail(cfg):
        raise OUTSIDE[cfg.seed][0]

    for seed in (0, len(OUTSIDE) - 1):
        assert command(f"seed={seed}", task=fail)[1:3] == (1, f"train: {OUTSIDE[seed][1]}\n")
    calls, status, errors, _ = command("-m", f"seed=range({len(OUTSIDE)})", task=fail)
    assert (len(calls), status) == (len(OUTSIDE), 1)
    assert errors.splitlines() == [
        f"train: job {job}: {line}" for job, (_, line) in enumerate(OUTSIDE)
    ]


def test_a_recipe_whose_parameter_has_a_model_gets_typed_and_frozen_settings(command):
    given = []

    def typed(cfg: TrainConfig):
        given.append(cfg)

    command("seed=3", "+preset=wide", "~net.width", "~net.height", task=typed, typed=True)
    (settings,) = given
    assert isinstance(settings, TrainConfig)
    assert (settings.seed, settings.budget.minutes, settings.net.out_features) == (3, 5.0, 3)
    assert isinstance(settings.budget.minutes, float)
    with pytest.raises(ValueError, match="frozen"):
        settings.seed = 4


def test_every_job_of_a_sweep_runs(command):
    calls, status, _, _ = command("-m", "seed=1,2", "env=maze,tmaze")
    assert status == 0
    assert [(cfg.seed, cfg.env.size) for cfg in calls] == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_a_job_is_told_how_many_of_a_sweep_run_at_once_and_a_single_run_is_alone(
    command, monkeypatch
):
    told = []
    monkeypatch.setattr(app, "share_threads", lambda num_jobs: told.append(num_jobs))
    command("seed=1")
    command("-m", "seed=1,2")  # Hydra's own launcher starts them one after the other
    assert told == [1, 1, 1]
    parallel = {"mode": RunMode.MULTIRUN, "launcher": {"n_jobs": 4}}
    for changed, jobs in (({}, 4), ({"mode": RunMode.RUN}, 1), ({"launcher": {}}, 1)):
        hydra_config = SimpleNamespace(**parallel | changed)
        monkeypatch.setattr(app.HydraConfig, "get", lambda hydra_config=hydra_config: hydra_config)
        assert app._jobs_at_once() == jobs


def test_an_interrupt_ends_with_one_line_and_the_status_of_shells(command):
    def interrupt(cfg):
        raise KeyboardInterrupt

    assert command(task=interrupt)[1:3] == (130, "train: interrupted\n")
