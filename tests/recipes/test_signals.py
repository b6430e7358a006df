"""Signals at any moment of a run: a last checkpoint, the truth about the end, the status of
requeueing, the same bits.

`YAMAME_SIGNALS=100 pytest -m slow tests/recipes/test_signals.py` sends so many.
"""

import json
import os
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL = (
    *(
        "encoder.d_model=16",
        "encoder.num_layers=1",
        "env.time_limit=20",
        "schedule.steps_per_iteration=64",
    ),
    *("schedule.learning_starts=128", "schedule.updates_per_step=0.04", "schedule.batch_size=4"),
    *("schedule.regulator=null", "schedule.num_envs=16"),
    *("schedule.learning_starts_episodes=0", "schedule.batch_timesteps=null"),
    *("schedule.anneal_lr=false", "evaluation.num_episodes=8", "evaluation.interval=300"),
    *(
        "checkpoint.interval=200",
        "budget.env_steps=1024",
        "budget.minutes=null",
        "replay.capacity=800",
    ),
    *("evaluation.video_frames=20", "encoder=transformer"),
)
PPO = ("debug=tiny", "budget.updates=null", "budget.env_steps=4000", "budget.minutes=null")
DISTILL = (
    "debug=tiny",
    "budget.updates=40",
    "schedule.updates_per_iteration=5",
    "evaluation.interval=10",
)
OF_A_NAME = ("/progress/saved_at", "/histories/_storage/owner", "/histories/_storage/parts")
NAMES = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP")

PROGRAM = """
import importlib, json, os, random, signal, sys, time
from pathlib import Path

root, recipe, logger, number, *arguments = sys.argv[1:]
sys.path.insert(0, root)
module = importlib.import_module(recipe)  # once: every run is a copy of this process
import matplotlib.pyplot, torch, yamame_envs
if logger == "mlflow":
    import mlflow
from yamame.cli.app import main
from yamame.system.signals import SIGNALS, exit_while_loading

for heard in SIGNALS:
    signal.signal(heard, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a copy hears none before it listens
torch.set_num_threads(1)
moments, sent, runs, outcomes = random.Random(0), 0, 0, []


def start(directory):
    process = os.fork()
    if process:
        return process
    with open(f"err{len(outcomes)}", "w") as err, open("out", "w") as out:
        os.dup2(err.fileno(), 2), os.dup2(out.fileno(), 1)
    exit_while_loading()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    resume = str((directory / "config.yaml").exists()).lower()
    own = (f"logger={logger}", f"run.name={directory.name}", f"resume={resume}")
    sys.argv = [f"{recipe}.py", *arguments, *own]
    status = 1
    try:
        main(module.train, config_name=recipe, resumable=True)
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


def newest(directory):
    return max((path.name for path in directory.glob("checkpoints/*.pt")), default="")


def truth(directory):
    if not (directory / "summary.json").exists():
        return None
    summary = json.loads((directory / "summary.json").read_text())
    file = directory / "checkpoints" / newest(directory)
    components = torch.load(file, weights_only=True)["components"]
    saved = {key: components["progress"][key] for key in ("env_steps", "updates")}
    return {"status": summary["status"], "last": saved == {key: summary[key] for key in saved}}


while sent < int(number):
    directory = Path(f"runs/r{runs}")
    before, process = newest(directory), start(directory)
    if sent % 3:  # from its first moment on, or after some of its work
        until = time.monotonic() + 30
        while newest(directory) == before and time.monotonic() < until:
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.005)
    time.sleep(moments.uniform(0.0, 0.8))
    over = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    name = SIGNALS[sent % len(SIGNALS)]
    if not over:
        os.kill(process, name)
        sent += 1
    asked = time.monotonic()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    err = Path(f"err{len(outcomes)}").read_text()
    outcome = {"signal": None if over else name.name, "code": code, "err": err}
    outcome |= {"seconds": time.monotonic() - asked, "run": runs, "truth": truth(directory)}
    outcomes.append(outcome)
    if code not in (0, 75):
        break
    runs += code == 0
for last in (f"runs/r{runs}", "runs/whole"):
    code = os.waitstatus_to_exitcode(os.waitpid(start(Path(last)), 0)[1])
    assert code == 0, Path(f"err{len(outcomes)}").read_text()
Path("outcomes.json").write_text(json.dumps(outcomes))
"""


def points(folder, name):
    """All metrics of a run but those of clocks and of the machine, and its status."""
    with sqlite3.connect(folder / "mlflow.db") as database:
        ((identity, status),) = database.execute(
            "select run_uuid, status from runs where name = ?", [name]
        ).fetchall()
        found = database.execute(
            "select key, step, value from metrics where run_uuid = ? and key not like "
            "'cost/%' and key not like "
            "'system/%' order by key, step",
            [identity],
        ).fetchall()
    return status, found


@pytest.fixture
def check(run_forked, tmp_path, components, differing):
    """Sends signals to runs, which are resumed, and compares each with one that was never
    stopped.
    """
    return partial(compare, run_forked, tmp_path, components, differing)


def compare(run_forked, tmp_path, components, differing, recipe, number, *arguments, logger="none"):
    done = run_forked(PROGRAM, str(RECIPES), recipe, logger, str(number), *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    hit = [outcome for outcome in outcomes if outcome["code"] == 75]
    for outcome in hit:
        assert outcome["truth"] in (None, {"status": "KILLED", "last": True}), outcome
        lines = [line for line in outcome["err"].splitlines() if outcome["signal"] in line]
        assert len(lines) == 1, outcome["err"]
        (line,) = lines
        assert ("resume=true" in line) or ("before the run started" in line)
    assert [outcome["err"] for outcome in outcomes if "Traceback" in outcome["err"]] == []
    for outcome in outcomes:  # those that had ended by themselves
        if outcome["code"] != 75:
            assert (outcome["code"], outcome["truth"]["status"]) == (0, "FINISHED"), outcome
    whole = components(tmp_path / "runs/whole")
    for run in range(max(outcome["run"] for outcome in outcomes) + 1):
        assert differing(whole, components(tmp_path / f"runs/r{run}"), skip=OF_A_NAME) == []
        if logger == "mlflow":
            assert points(tmp_path, f"r{run}") == points(tmp_path, "whole")
    slowest = max(outcome["seconds"] for outcome in hit)
    print(f"{recipe}: {len(outcomes)} starts, {len(hit)} signals hit, slowest end {slowest:.2f} s")
    return hit


def test_a_run_that_five_signals_end_goes_on_to_the_same_bits(check):
    hit = check("train", 5, *SMALL)
    assert {outcome["signal"] for outcome in hit} <= set(NAMES)
    assert len(hit) >= 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("recipe", "share", "arguments", "logger"),
    [("train", 0.6, SMALL, "mlflow"), ("ppo", 0.2, PPO, "none"), ("distill", 0.2, DISTILL, "none")],
)
def test_many_signals(check, recipe, share, arguments, logger):
    number = int(share * int(os.environ.get("YAMAME_SIGNALS", "20")))
    hit = check(recipe, number, *arguments, logger=logger)
    assert len(hit) >= 0.5 * number  # the others came when a run was over, and changed nothing


IN_THE_LAST_ITERATION = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import train
from yamame.cli.app import main
from yamame.runs.run import Run

learned, asked = Run.learned, False
def learned_and_asked(self, metrics):
    global asked
    learned(self, metrics)
    if self.progress.env_steps >= self.cfg.budget.env_steps and not (asked or self.resumed):
        asked = True
        os.kill(os.getpid(), signal.SIGTERM)
Run.learned = learned_and_asked
sys.argv = ["train.py", *sys.argv[2:]]
main(train.train, config_name="train", resumable=True)
"""


def test_a_run_that_is_asked_to_end_in_its_last_iteration_misses_no_update(run_forked, tmp_path):
    arguments = [*SMALL, "logger=none", "run.name=a", "resume=auto"]
    arguments += ["schedule.updates_per_step=0.1", "budget.env_steps=448"]
    counts = []
    for code in (75, 0):
        done = run_forked(IN_THE_LAST_ITERATION, str(RECIPES), *arguments, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        counts.append(json.loads((tmp_path / "runs/a/summary.json").read_text())["updates"])
    assert counts == [32, 32]  # a tenth of the 448 steps but the first 128


EVALUATION = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import train
import yamame.evaluation.held_out as held_out
from yamame.cli.app import main

act, acted = held_out.act, 0
def act_and_count(*args, **options):
    global acted
    acted += 1
    if acted == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return act(*args, **options)
held_out.act = act_and_count
sys.argv = ["train.py", "debug=tiny", "logger=none", "run.name=a", "encoder=memoryless"]
try:
    main(train.train, config_name="train", resumable=True)
finally:
    print(acted)
"""


def test_an_evaluation_does_not_delay_the_end(run_forked, tmp_path, components):
    done = run_forked(EVALUATION, str(RECIPES), cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (75, 1), done.stderr
    assert int(done.stdout.split()[-1]) <= 4  # of 50 steps
    summary = json.loads((tmp_path / "runs/a/summary.json").read_text())
    assert (summary["status"], summary["updates"]) == ("KILLED", 2)
    assert components(tmp_path / "runs/a")["progress"]["updates"] == 2


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 75), ("SIGTERM", 75)])
def test_a_recipe_that_is_still_loading_leaves_nothing(tmp_path, name, status):
    """Sent when the first imports are done, which is before torch."""
    program = (
        "import os, runpy, signal, sys, yamame.system.signals\n"
        "leave = yamame.system.signals.exit_while_loading\n"
        "yamame.system.signals.exit_while_loading = lambda: leave() or "
        f"os.kill(os.getpid(), signal.{name})\n"
        f"sys.argv = ['train.py', 'debug=tiny']\n"
        f"runpy.run_path({str(RECIPES / 'train.py')!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (status, f"{name}: ended before the run started\n")
    assert list(tmp_path.iterdir()) == []
