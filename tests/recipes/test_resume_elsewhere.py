"""A run goes on with other settings of the machine: one line names what has changed, and no other
setting may.
"""

import shutil

import pytest
from yamame.files.identity import MACHINE

RUN = (
    "env=tmaze",
    "env.length=8",
    "debug=tiny",
    "logger=none",
    "schedule.anneal_lr=false",
    "run.name=a",
    "optimizer=muon",
    "schedule.average_decay=0.9",
)
CHANGES = {
    "device": "cpu:0",
    "float32_matmul_precision": "high",
    "packing": "null",
    "packing.row_multiple": "2",
    "packing.length_multiple": "4",
    "encoder.checkpoint_layers": "true",
    "schedule.autocast": "bfloat16",
    "collector.autocast": "auto",
}
ELSEWHERE = {"encoder.compiled", "collector.compile_policy"}
"""Settings of earlier versions, which no YAML file has any more."""
OTHER_MACHINES = {
    f"{part}.{key}" for part in ("schedule", "collector") for key in ("cuda_graph", "compile")
}
"""Need a GPU, or a compiler: `tests/gpu_emulation` and `tests/trajectory` run them."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory, play):
    """A folder with a run of two updates."""
    folder = tmp_path_factory.mktemp("begun")
    status, _, err = play("train", folder, *RUN, "budget.updates=2")
    assert status == 0, err
    return folder


@pytest.fixture
def project(begun, tmp_path):
    """A copy of it."""
    shutil.copytree(begun / "runs", tmp_path / "runs")
    return tmp_path


def test_every_setting_of_a_machine_is_tried():
    assert (
        set(MACHINE)
        == {key for key in CHANGES if "packing." not in key} | ELSEWHERE | OTHER_MACHINES
    )


@pytest.mark.parametrize("key", CHANGES)
def test_a_run_goes_on_with_another_setting_of_the_machine(key, project, play):
    status, _, err = play(
        "train", project, *RUN, "budget.updates=3", "resume=true", f"{key}={CHANGES[key]}"
    )
    assert status == 0, err
    lines = [line for line in err.splitlines() if "other settings" in line]
    if key == "device":  # cpu:0 is cpu
        assert not lines
        return
    (line,) = lines
    assert f"{key}: " in line
    assert (
        line.count(" -> ") == 1
    )  # a part that is left out is one change, whatever settings it had


def test_a_run_keeps_the_settings_of_its_last_machine(project, play):
    told = []
    for updates, precision in enumerate(("high", "high", "highest"), start=3):
        more = (f"budget.updates={updates}", "resume=true", f"float32_matmul_precision={precision}")
        status, _, err = play("train", project, *RUN, *more)
        told.append("float32_matmul_precision" in err)
        assert status == 0, err
    assert told == [True, False, True]


def test_a_finished_run_stays_done_on_another_device(project, play):
    _, out, err = play("train", project, *RUN, "budget.updates=2", "resume=auto", "device=cpu:0")
    assert "runs/a is done" in out + err


@pytest.mark.parametrize(
    ("key", "value"), [("schedule.batch_size", "3"), ("optimizer.smallest", "32")]
)
def test_a_setting_of_the_experiment_must_stay(key, value, project, play):
    status, _, err = play(
        "train", project, *RUN, "budget.updates=4", "resume=true", f"{key}={value}"
    )
    assert status == 2
    assert f"{key}: " in err
    assert f"-> {value}" in err
