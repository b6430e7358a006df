"""Parts of `tools/first_gpu_run.py` run on the device, and find a recording that is wrong."""

import importlib
import json
import math
from pathlib import Path

import pytest
import torch
from yamame.collectors import SyncCollector

TOOLS = Path(__file__).parents[2] / "tools"
ACTIONS = "actions that differ after new weights"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a part in this process: its results by name, and what is wrong."""
    monkeypatch.syspath_prepend(str(TOOLS))
    job = importlib.import_module("gpu.job")

    def run(part, choice="", module=None):
        own = job.Job(part, choice, "cuda", True, tmp_path, math.inf, [])
        importlib.import_module(f"gpu.{module or part}").run(own)
        lines = (tmp_path / "results.jsonl").read_text().splitlines()
        return {
            line["name"]: line for line in map(json.loads, lines) if line["part"] == part
        }, own.failures

    return run


def test_the_machine_is_measured(run):
    found, failures = run("machine")
    assert failures == []
    assert found["gpu"]["value"] == "Emulated"
    assert found["kernel in a graph"]["value"] > 0
    assert found["GRU encoder under autocast, error of small gradients"]["value"] == 0


def test_what_is_recorded_equals_what_is_not(run):
    found, failures = run("parity")
    assert failures == []
    assert found["recorded losses, largest relative difference"]["value"] < 1e-5
    for kind in ("with sigma_reparam", "without"):
        line = found[f"{ACTIONS}, {kind}"]
        assert line["value"] == 0
        assert line["with_old_weights"] > 0.1
    assert found["mazerunner on both devices"]["value"] == "equal"


def test_a_recording_that_acts_with_old_weights_is_found(run, monkeypatch):
    update, collectors = SyncCollector.update_policy_weights_, []

    def update_ordinary(self, *weights):
        if self not in collectors:
            collectors.append(self)
        if collectors.index(self) % 2 == 0:  # every second one is recorded
            update(self, *weights)

    monkeypatch.setattr(SyncCollector, "update_policy_weights_", update_ordinary)
    found, failures = run("parity", "acting")
    assert f"{ACTIONS}, without" in failures
    assert found[f"{ACTIONS}, without"]["value"] > 0.1


@pytest.mark.parametrize("choice", ["updates", "acting", "shapes", "waits", "sampling"])
def test_speed_is_measured_and_waits_are_counted(choice, run):
    found, failures = run("speed", choice, module="throughput")
    assert failures == []
    assert all(line["value"] > 0 for line in found.values() if line.get("unit") == "ms")
    kind = {"updates": "update", "acting": "step of 128"}.get(choice)
    if kind is not None:
        assert found[f"{kind}, bfloat16: ordinary time over recorded time"]["value"] > 0
    if choice == "waits":
        assert found["waits of the host in a recorded step"]["value"] == 0
        assert found["waits of the host in a recorded update"]["value"] == 1


def test_a_fit_with_the_preset_of_a_gpu_ends_with_an_evaluation(run, monkeypatch):
    launches, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "replay", lambda self: (launches.append(1), replay(self))
    )
    found, failures = run("fit")
    assert failures == []
    assert found["held-out return at the end"]["updates"] == 40
    assert launches
