"""Sixteen processes that send to one server: fourteen replay a log, two are trainings.

    python fleet.py URI FOLDER

Every process is a copy of this one, which has imported everything. Two more trainings without a
tracker run beside the tracked ones. Files in the folder tell the test what happens: ``started``
when the first fifteen runs have begun, then ``go``, of the test, for the last two, and a JSON file
of each training's CPU-seconds.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path

import matplotlib.backends.backend_agg  # noqa: F401
import mlflow.tracking  # noqa: F401
import yamame_envs  # noqa: F401
from yamame.runs import api
from yamame.tracking import MLflowTracker
from yamame.tracking.sender import Sender

RECORDED = Path(__file__).with_name("recorded.jsonl")
NUM_REPLAYS = 14
ROUNDS = 2
PAUSE_S = 0.4
UPDATES = 120
WAIT_S = 5.0


def replay(uri, folder, number):
    """Log what a training has logged, at the speed of a training."""
    directory = folder / f"replay-{number}"
    directory.mkdir()
    (directory / ".lock").touch()
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    last = max(line["step"] for line in lines)
    tracker = MLflowTracker(tracking_uri=uri, flush_s=2.0, wait_s=WAIT_S)
    tracker.start(directory, name=directory.name, params={"seed": number})
    (folder / f"{directory.name}.begun").touch()
    with tracker:
        for round_ in range(ROUNDS):
            for line in lines:
                tracker.log(line["metrics"], step=round_ * (last + 1) + line["step"])
                time.sleep(PAUSE_S)
        (directory / "result.txt").write_text(f"replay {number}")
        tracker.log_artifact(directory / "result.txt")


def train(uri, folder, number, *, tracked):
    """Train for some seconds; write the CPU-seconds of the process, and those of its sender."""
    name = f"{'tracked' if tracked else 'plain'}-{number}"
    sender_s = [0.0]
    work = Sender._work

    def timed(self):
        try:
            work(self)
        finally:
            sender_s[0] += time.thread_time()

    Sender._work = timed
    # The model is made once, at the end, and imports packages for seconds.
    logger = [f"logger.tracking_uri={uri}", f"logger.wait_s={WAIT_S}", "logger.models=false"]
    settings = ["debug=tiny", f"budget.updates={UPDATES}", f"seed={number}"]
    settings += [f"run.root={folder}", f"run.name={name}"]
    settings += logger if tracked else ["logger=none"]
    before = time.process_time()
    (folder / f"{name}.begun").touch()
    api.train(*settings)
    spent = time.process_time() - before
    (folder / f"{name}.json").write_text(json.dumps({"cpu_s": spent, "sender_s": sender_s[0]}))


def fork(call, *arguments, **options):
    """Run a function in a copy of this process; return its id."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            call(*arguments, **options)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return process


def main(uri, folder):
    processes = []
    for number in range(NUM_REPLAYS):
        processes.append(fork(replay, uri, folder, number))
        time.sleep(PAUSE_S)  # people do not start together
    for round_ in range(ROUNDS):
        pair = [round_ == 0, round_ == 1]
        processes += [fork(train, uri, folder, round_, tracked=tracked) for tracked in pair]
        if round_ == 0:
            while not (folder / "go").exists():
                time.sleep(0.1)
                if os.getppid() == 1:
                    sys.exit(1)
    statuses = [os.waitpid(process, 0)[1] for process in processes]
    sys.exit(any(statuses))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
