"""How several processes find each other, which GPU each takes, and how long they wait."""

import json
import os
import socket
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from tensordict import TensorDict
from yamame import distributed
from yamame.checks import UsageError
from yamame.cli.jobs import is_slurm_step
from yamame.collectors import Episodes
from yamame.distributed import Launch, launched
from yamame.runs.run import Run
from yamame.tracking.costs import CostMeter

BATCH = {
    "SLURM_JOB_ID": "70123", "SLURM_NTASKS": "16", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "gpu[01-02]",
}  # fmt: skip
"""What a batch script sees."""
STEP = BATCH | {
    "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_NODELIST": "gpu[01-02]", "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
}  # fmt: skip
TORCHRUN = {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"}
PLACE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}


@pytest.fixture
def environment(monkeypatch):
    """Sets variables, of all that say how processes were started."""

    def set_all(variables):
        for name in (*STEP, *TORCHRUN, *PLACE, "SLURM_STEP_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Launch()),
        (BATCH, Launch()),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, Launch()),
        (STEP, Launch(16, 11, 3, "tcp://gpu01:20123")),
        (STEP | {"SLURM_STEP_ID": "0"}, Launch(16, 11, 3, "tcp://gpu01:20123")),
        (STEP | {"SLURM_STEP_ID": "2"}, Launch(16, 11, 3, "tcp://gpu01:22141")),
        (STEP | PLACE, Launch(16, 11, 3, "tcp://10.0.0.1:1234")),
        (TORCHRUN, Launch(8, 5, 1)),
        (STEP | TORCHRUN | PLACE, Launch(8, 5, 1)),  # a torchrun per machine
    ],
)
def test_processes_of_torchrun_and_of_a_step_are_recognized(variables, expected, environment):
    environment(variables)
    assert Launch.of_environment() == expected
    assert launched() == (expected.world_size, expected.rank)
    assert is_slurm_step() == expected.init_method.startswith("tcp")


@pytest.mark.parametrize(
    ("variables", "num_gpus", "index"),
    [
        (STEP, 8, 3),
        (STEP, 4, 3),
        (STEP, 1, 0),  # --gpus-per-task=1
        (STEP, 2, None),
        (STEP, 0, None),
        (TORCHRUN, 2, 1),
        (TORCHRUN, 1, None),
    ],
)
def test_a_process_takes_the_gpu_of_its_local_rank(
    variables, num_gpus, index, environment, monkeypatch
):
    environment(variables)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    calls = []
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    for name in ("init_process_group", "new_group"):
        monkeypatch.setattr(
            distributed.distributed, name, lambda *given, **named: calls.append(named)
        )
    monkeypatch.setattr(distributed.distributed, "destroy_process_group", lambda: None)
    if index is None:
        with (
            pytest.raises(UsageError, match=r"device: .*local rank"),
            distributed.process_group("cuda"),
        ):
            pass
        assert calls == []
        return
    with distributed.process_group("cuda"):
        gpu, joined, long = calls
    assert gpu == joined["device_id"] == torch.device("cuda", index)
    assert (joined["world_size"], joined["rank"]) == launched()
    assert joined["timeout"] < long["timeout"]


@pytest.mark.parametrize("variables", [STEP, TORCHRUN])
def test_an_index_would_put_all_ranks_on_one_gpu_and_is_refused(variables, environment):
    environment(variables)
    with pytest.raises(UsageError, match=r"device: .*cuda:1"), distributed.process_group("cuda:1"):
        pass
    environment({})
    with distributed.process_group("cuda:1"):  # one process may
        assert distributed.world_size() == 1


PROGRAM = """
import json, os, sys, time
from datetime import timedelta

from yamame import distributed

children = []
for rank in range(2):
    children.append(os.fork())
    if children[-1] == 0:
        os.environ |= {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        distributed._TIMEOUT = timedelta(seconds=1)
        found = {}
        with distributed.process_group():
            found["ranks"] = distributed.all_gather(distributed.rank())
            found["written"] = distributed.on_rank0(lambda: time.sleep(2.5) or "ready")
            if rank == 0:
                time.sleep(2.5)
            found["late"] = distributed.all_gather(rank)
            if rank == 0:
                time.sleep(2.5)
            try:
                distributed.any_rank(True)
                found["short"] = "was waited for"
            except RuntimeError:
                found["short"] = "was not waited for"
            with open(f"{rank}.json", "w") as file:
                json.dump(found, file)
            os._exit(0)
for child in children:
    os.waitpid(child, 0)
"""


def test_ranks_of_a_step_meet_and_wait_long_for_what_may_take_long_alone(run_forked, tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    variables = STEP | {"SLURM_STEP_NUM_TASKS": "2"} | place
    done = run_forked(PROGRAM, cwd=tmp_path, **variables)
    assert sorted(os.listdir(tmp_path)) == ["0.json", "1.json"], done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["ranks"] == second["ranks"] == [0, 1]
    assert first["written"] == second["written"] == "ready"
    assert first["late"] == second["late"] == [0, 1]
    assert second["short"] == "was not waited for"


def test_a_rank_whose_environments_hang_is_not_waited_for_as_long_as_an_evaluation(monkeypatch):
    groups = []

    def gather(values, value, group):
        groups.append(group)
        values[:] = [value] * len(values)

    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "_long_group", "long")
    monkeypatch.setattr(distributed.distributed, "all_gather_object", gather)
    run = SimpleNamespace(progress=Mock(), callbacks=Mock())
    assert Run.count(run, Episodes.none()).num_steps == 0
    CostMeter().gather()
    assert groups == [None, None]
    state = torch.nn.BatchNorm1d(2).state_dict()
    state["held"] = (TensorDict({"x": torch.ones(3)}, [3]), [3])
    (found, _) = distributed.PerRank(Mock(state_dict=lambda: state)).state_dict().values()
    assert found is not state
    assert found.keys() == state.keys()
    assert found._metadata == state._metadata
    assert found["held"][0]["x"].tolist() == [1.0] * 3
    assert found["held"][1] == [3]
    assert groups[2:] == ["long"]
