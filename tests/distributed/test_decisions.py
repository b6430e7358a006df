"""Decisions that ranks make together where what each of them has differs."""

import json
import os
import socket

PROGRAM = """
import json, os
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import Mock

from yamame import distributed
from yamame.runs.phases import regulate, updates_due


def failing():
    raise OSError("the disk is full")


def decide(rank):
    found = {}
    schedule = SimpleNamespace(
        updates_per_step=0.5, offline_updates=0, learning_starts=0, learning_starts_episodes=0
    )
    progress = SimpleNamespace(
        updates=100, env_steps=400, observed_updates=0, observed_steps=0, updates_allowed=150
    )
    cfg = SimpleNamespace(schedule=schedule)
    run = SimpleNamespace(cfg=cfg, progress=progress, regulator=Mock())
    # Rank 0 has collected no episode yet.
    found["due"] = [updates_due(run, [0] * rank), updates_due(run, [0])]
    learner, replay = Mock(), SimpleNamespace(num_held_out=5 if rank == 0 else 1)
    regulate(run, learner, replay)
    found["observed"] = learner.evaluate.called or progress.observed_updates > 0
    try:
        distributed.on_rank0(failing)
    except OSError as error:
        found["failed"] = str(error)
    except distributed.FailedOnRank0 as error:
        found["failed"] = error.code
    # Ranks that had exchanged different messages would not agree from here on.
    found["then"] = distributed.all_gather(rank)
    return found


children = []
for rank in range(2):
    children.append(os.fork())
    if children[-1] == 0:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        distributed._TIMEOUT = distributed._LONG_TIMEOUT = timedelta(seconds=20)
        with distributed.process_group():
            with open(f"{rank}.json", "w") as file:
                json.dump(decide(rank), file)
        os._exit(0)
for child in children:
    os.waitpid(child, 0)
"""


def test_ranks_decide_alike_where_one_has_less_than_the_others(run_forked, tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    done = run_forked(PROGRAM, cwd=tmp_path, TORCHELASTIC_RUN_ID="test", **place)
    assert sorted(os.listdir(tmp_path)) == ["0.json", "1.json"], done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["due"] == second["due"] == [0, 50]
    assert [first["observed"], second["observed"]] == [False, False]
    assert (first["failed"], second["failed"]) == ("the disk is full", 1)
    assert first["then"] == second["then"] == [0, 1]
