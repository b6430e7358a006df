"""What is answered before torch is loaded, as a user meets it: in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
WITH_HELP = (
    "train",
    "ppo",
    "distill",
    "offline",
    "evaluate",
    "play",
    "report",
    "export",
    "serve",
    "sync",
    "doctor",
    "leaderboard",
    "reproduce",
    "probe",
    "replay_batch",
    "import_amago",
)
LIGHT = """
import json, os, runpy, sys
import yamame.cli.front
if len(sys.argv) > 2:
    import yamame.cli.app
else:
    for name in ("torch", "torchrl", "tensordict", "mlflow"):
        sys.modules[name] = None  # importing it fails
answers = []
for line in json.loads(sys.argv[1]):
    if os.fork() == 0:
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        sys.argv = line
        runpy.run_path(line[0], run_name="__main__")
        sys.exit()
    status = os.waitstatus_to_exitcode(os.wait()[1])
    answers.append((line, status, open("stdout").read(), open("stderr").read()))
print(json.dumps(answers))
"""


def ask(*lines: tuple[str, ...], with_torch: bool = False) -> list[subprocess.CompletedProcess]:
    """What recipes answer to arguments, each in a copy of one process that has loaded what
    answers; torch cannot be imported there unless ``with_torch``.
    """
    asked = json.dumps(
        [[str(RECIPES / f"{recipe}.py"), *arguments] for recipe, *arguments in lines]
    )
    command = [sys.executable, "-c", LIGHT, asked, *(["torch"] if with_torch else [])]
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout
    return [subprocess.CompletedProcess(*answer) for answer in json.loads(out)]


def test_help_loads_no_torch_and_begins_with_what_the_recipe_does_and_examples():
    for recipe, asked in zip(
        WITH_HELP, ask(*((recipe, "--help") for recipe in WITH_HELP)), strict=True
    ):
        assert (asked.returncode, asked.stderr) == (0, ""), recipe
        assert asked.stdout.count(f"yamame {recipe}") >= 2
        assert "Keys, as key=value:" in asked.stdout


def test_help_shows_groups_first_what_is_chosen_and_every_key_with_its_description():
    (asked,) = ask(("train", "--help", "env=tmaze", "encoder=gru"))
    out = asked.stdout
    assert out.index("Groups") < out.index("  encoder ") < out.index("Keys") < out.index("Flags")
    assert "*gru gru_rounded gru_selective" in out
    assert "env.length=32                                Steps from the start to" in out
    assert "evaluation.greedy=true                       Act by the most probable action" in out
    resume = out.partition("  resume=")[2].partition("  trust=")[0]
    assert "auto in a sweep" in " ".join(resume.split())  # a description of several lines
    assert "encoder.d_model" not in out  # that of another choice


def test_every_key_has_a_description_also_arguments_of_other_packages():
    (asked,) = ask(("train", "--help", "trials=repeated", "callbacks=early_stopping"))
    rows = asked.stdout.partition("Keys, as key=value:")[2].splitlines()
    keys = [
        row for row in rows if row.startswith("  ") and row[2:3].strip() and "=" in row.split()[0]
    ]
    bare = [row.split("=")[0].strip() for row in keys if len(row.split()) == 1]
    assert len(keys) > 100
    assert [key for key in bare if not key.endswith("_target_")] == []
    assert re.search(r"optimizer\.lr=\S+ +Learning rate", asked.stdout)
    # Values are those of YAML.
    assert not re.search(r"\bNone\b|``", asked.stdout)


MISTAKES = [
    (
        ("env.length=8",),
        "env.length: no such key; it is a key of env=active_tmaze, env=package_delivery, "
        "env=tmaze;",
    ),
    (("seed",), "seed: must be key=value, as seed=1"),
    (("encodr=gru",), "encodr: no such key, did you mean encoder"),
    (("env.encoder=gru",), "env.encoder: no such key, did you mean encoder=gru?"),
    (("encoder=gruu",), "encoder=gruu: no such choice, did you mean gru?"),
    (("-m", "seed=0,1", "env.sizze=3"), "env.sizze: no such key, did you mean env.size?"),
    (("-m", "encoder=gru,lstmm"), "encoder=lstmm"),
    (("seed=[1",), "cannot be parsed"),
    (("--nosuch",), "settings have no dashes before them"),
    (("--resolve",), "--resolve: must come with --cfg"),
    (("--package=env",), "--package: must come with --cfg"),
    (("--shell-completion",), "--shell-completion: Expecting one subcommand"),
    (("--cfg", "job", "-m"), "--cfg job -m: Only one of"),
    (("--config-name=../../etc/passwd",), "--config-name: must be the name of a YAML file"),
    (("--config-name=/etc/passwd",), "--config-name: must be the name of a YAML file"),
    (
        ("-m", "seed=0,1", "hydra.sweeper.max_batch_size=0"),
        "hydra.sweeper.max_batch_size: must be a positive integer or null, got 0",
    ),
    (("run.name=None",), "run.name=None: must be null where there is no value"),
    (("-m", "run.name=a,None"), "run.name=a,None: must be null"),
    (("budget.minutes=None",), "budget.minutes=None: must be null"),
]
WRONG_VALUES = [
    (
        ("budget.minutes=abc",),
        "budget.minutes: must be 'auto' or a number above 0 and below inf or null, got 'abc'",
    ),
    (("-m", "seed=0,-1"), "seed: must be an integer of at least 0, got -1"),
    (("device=gpuu",), "device: must be one of cpu, cuda, "),
    (("-m", "device=cpu,cuda:x"), "got 'cuda:x'"),
    (("+budgets.updates=3",), "did you mean budget.updates"),
    (("encoder=gru", "++encoder={foo: 1}"), "encoder.foo: must be an argument of yamame."),
    (("++evaluation.env={lenght: 3}",), "evaluation.env.lenght: must be an argument of "),
]


@pytest.mark.parametrize(("mistakes", "with_torch"), [(MISTAKES, False), (WRONG_VALUES, True)])
def test_a_mistake_is_told_in_one_line_and_one_in_keys_and_choices_without_torch(
    mistakes, with_torch
):
    lines = [("train", *given) for given, _ in mistakes]
    for asked, (_, message) in zip(ask(*lines, with_torch=with_torch), mistakes, strict=True):
        assert asked.returncode == 2, message
        assert message in asked.stderr
        assert asked.stderr.count("\n") == 1
        assert "a preset sets" not in asked.stderr


SEVERAL = ("seed=-1", "schedule.batch_size=0", "device=gpuu", "+surprise=1")
OF_CLASSES = ("encoder.hidden_size=-1", "optimizer.lr=true", "replay._target_=os.system")


def test_all_mistakes_are_told_at_once_each_in_a_line():
    given = (*SEVERAL, *OF_CLASSES)
    several, sweep = ask(
        ("train", "encoder=gru", *given),
        ("train", "-m", "encoder=gru,lstm", *given),
        with_torch=True,
    )
    for asked in (several, sweep):
        assert asked.returncode == 2
        lines = asked.stderr.splitlines()
        assert sorted(line.split(":")[1].strip() for line in lines) == [
            "device",
            "encoder.hidden_size",
            "optimizer.lr",
            "replay._target_",
            "schedule.batch_size",
            "seed",
            "surprise",
        ]
        assert all(line.startswith("train: ") for line in lines)


def test_a_file_that_cannot_be_parsed_is_told_with_its_line_without_torch(tmp_path):
    broken = tmp_path / "experiment" / "broken.yaml"
    broken.parent.mkdir()
    broken.write_text("seed: 1\na: [")
    given = ("train", "--config-dir", str(tmp_path), "experiment=broken")
    for asked in ask(given, (*given, "--help"), (*given, "--cfg", "job")):
        assert asked.returncode == 2
        assert asked.stderr.startswith(f"train: {broken}:2: cannot be parsed: ")
        assert asked.stderr.count("\n") == 1


def test_a_log_begins_at_once_with_a_stamped_line_and_only_that_of_a_training_run():
    train, *others = ask(*((recipe, "seed=0") for recipe in ("train", "doctor", "play")))
    assert re.fullmatch(r"\d\d:\d\d:\d\d  train: loading\n", train.stdout)
    assert [asked.stdout for asked in others] == ["", ""]


@pytest.mark.parametrize(
    "program", [[str(RECIPES / "report.py")], ["-c", "from yamame.cli.console import main; main()"]]
)
def test_help_ends_in_order_when_its_reader_has_seen_enough(program):
    command = [sys.executable, *program, "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_the_configuration_and_completions_are_shown_without_torch():
    shown, completions, searched = ask(
        ("train", "--cfg", "job", "env=tmaze"),
        ("train", "-sc", "install=bash"),
        ("train", "env=tmaze", "--info"),
    )
    assert (searched.returncode, searched.stderr) == (0, "")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "_target_: yamame_envs.PassiveTMaze" in shown.stdout
    assert "complete -o nospace" in completions.stdout


def test_a_run_that_is_there_is_refused_before_torch_is_loaded(tmp_path):
    run = tmp_path / "ppo-tmaze-gru-seed=0"
    run.mkdir()
    (run / ".lock").touch()
    (run / "config.yaml").touch()
    given = ("ppo", "env=tmaze", "encoder=gru", f"run.root={tmp_path}")
    free = ("resume=true", "resume=auto", "run.overwrite=true", "run.name=other")
    refused, *others = ask(given, *((*given, setting) for setting in free))
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"ppo: run.name: {run} exists; continue it with resume=true")
    assert refused.stdout == ""
    assert not [asked.args for asked in others if f"{run} exists" in asked.stderr]


def test_a_place_that_cannot_be_is_told_in_a_line(tmp_path):
    (refused,) = ask(("train", "env=tmaze", f"run.root={tmp_path}/{'a' * 300}"))
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "File name too long" in refused.stderr


LOADING = """
import gc, sys
import yamame.cli.front as front
gc.disable()
front.prepare_process()  # as `yamame.train` does: what a program has decided holds
assert not gc.isenabled()
gc.enable()
sys.argv = ["train.py", "seed=1"]
front.check_command_line("train")
assert not gc.isenabled()
imported = []
imported.append(imported)  # as a module, which refers to itself
before = gc.get_freeze_count()
front.read_line([], "conf", "train")
assert gc.isenabled()
assert gc.get_freeze_count() > before + 1000
assert not any(imported is each for each in gc.get_objects())
front.read_line([], "conf", "train")  # once, for what came later may become garbage
later = []
assert any(later is each for each in gc.get_objects())
"""


def test_no_garbage_is_looked_for_among_what_is_imported_and_later_again(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LOADING], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interruption_while_a_recipe_is_imported_is_a_line(tmp_path):
    (tmp_path / "hydra.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(RECIPES / "evaluate.py"), "run=a"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stderr == "evaluate: interrupted\n"
    assert done.returncode in (-signal.SIGINT, 130)
    # Any other error keeps its traceback.
    (tmp_path / "hydra.py").write_text("raise ZeroDivisionError\n")
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stderr.startswith("Traceback")


def test_closed_streams_are_replaced(tmp_path):
    command = f"{sys.executable} {RECIPES / 'train.py'} sed=1 >&- 2>&-"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")
