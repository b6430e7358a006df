"""The export recipe on a run that the training recipe has just made, and on one of an earlier
version.
"""

import json
import os
import warnings
from pathlib import Path

import pytest
import torch
import yamame
from yamame.replay import TrajectoryFollower

TINY = [
    "debug=tiny",
    "logger=none",
    "encoder=gru",
    "env.size=7",
    "env.split_by=walls_and_goals",
    "env.time_limit=15",
    "run.name=mine",
]
TINY += ["evaluation.video_frames=1"]


@pytest.fixture(scope="module")
def folder(play, tmp_path_factory):
    """A folder with a run, and a checkpoint of an earlier version of it."""
    folder = tmp_path_factory.mktemp("export")
    assert play("train", folder, *TINY)[0] == 0
    (file,) = (folder / "runs/mine/checkpoints").glob("*.pt")
    payload = torch.load(file, weights_only=True)
    del payload["components"]["interface"]
    torch.save(payload, folder / "old.pt")
    return folder


@pytest.fixture
def export(folder, play, monkeypatch):
    """Runs the recipe beside the run: exit status, output, error output."""
    monkeypatch.chdir(folder)
    return lambda *arguments: play("export", folder, *arguments)


def weights(agent) -> torch.Tensor:
    return torch.cat([value.flatten().double() for _, value in sorted(agent.saved.weights.items())])


def test_a_run_becomes_a_folder_and_this_a_graph(export):
    assert export("run=runs/mine", "path=agents/mine") == (0, "agents/mine\n", "")
    agent, run = yamame.load("agents/mine"), yamame.load("runs/mine")
    assert torch.equal(weights(agent), weights(run))
    assert agent.horizon == run.horizon == 15
    card = Path("agents/mine/README.md").read_text()
    assert f"| success_mean | {run.saved.about['results']['success_mean']:.4g} |" in card
    assert export("run=agents/mine", "path=mine.pt2", "num_streams=2") == (0, "mine.pt2\n", "")
    program = torch.export.load("mine.pt2")
    ((example,), _) = program.example_inputs
    assert program.module()(example)["action"].shape == (2,)


def test_the_replay_of_a_run_becomes_a_dataset(export, play, folder):
    pytest.importorskip("pyarrow")
    name = "dataset=lerobot"
    assert export("run=runs/mine", "path=datasets/mine", name) == (0, "datasets/mine\n", "")
    info = json.loads(Path("datasets/mine/meta/info.json").read_text())
    replay = TrajectoryFollower("runs/mine/replay")
    assert info["total_episodes"] == len(replay)
    assert info["total_frames"] == int((replay.lengths - 1).sum())
    arguments = [*TINY[:-2], "run.name=theirs", "data=lerobot", "data.path=datasets/mine"]
    assert play("offline", folder, *arguments)[0] == 0

    for arguments, parts in (
        (["run=runs/mine", "path=datasets/mine"], ["datasets/mine must be new or empty"]),
        (["run=agents", "path=x"], ["run: must be the directory of a run", "replay"]),
        (["run=runs/mine", "path=x", "greedy=true"], ["dataset: must be null", "greedy"]),
        (
            ["run=runs/mine", "path=x", "checkpoint=last", "num_streams=2", "trust=[mylab.]"],
            ["dataset: must be null", "remove checkpoint, trust, num_streams"],
        ),
        (["run=runs/mine", "path=x.pt2"], ["path: must be a folder with dataset=lerobot"]),
        (["run=runs/mine", "path=runs/mine/x"], ["path: must lie outside of run=runs/mine"]),
    ):
        status, out, err = export(*arguments, name)
        assert (status, out) == (2, "")
        assert all(part in err for part in parts), err
        assert len(err.splitlines()) == 1
    assert not Path("x").exists()


def test_a_checkpoint_of_an_earlier_version_is_completed_by_its_environment(export):
    with pytest.raises(ValueError, match=r"yamame export run=old.pt path=<folder>"):
        yamame.load("old.pt")
    assert export("run=old.pt", "path=agents/old") == (0, "agents/old\n", "")
    old, run = yamame.load("agents/old"), yamame.load("runs/mine")
    assert torch.equal(weights(old), weights(run))
    assert old.saved.interface == run.saved.interface
    costs = {
        "cpu_s",
        "revision",
        "evaluated_on",
    }  # which a run's summary tells, and a file does not
    assert old.saved.about == {
        key: value for key, value in run.saved.about.items() if key not in costs
    }


def test_an_mlflow_model_is_loaded_by_mlflow(export):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert export("run=runs/mine", "path=models/mine", "mlflow=true", "greedy=true")[:2] == (
            0,
            "models/mine\n",
        )
        import mlflow.pyfunc

        served = mlflow.pyfunc.load_model("models/mine")
    assert served.get_raw_model().greedy
    assert export("run=runs/mine", "path=models/mine", "mlflow=true")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run=runs/none", "path=a"],
            "run=runs/none: load: runs/none must be a run directory or a checkpoint",
        ),
        (
            ["run=runs/mine", "path=runs/mine"],
            "runs/mine must be new, empty, or written by save_pretrained",
        ),
        (
            ["run=runs/mine", "path=a.onnx", "mlflow=true"],
            "path: must be a folder with mlflow=true, got 'a.onnx'",
        ),
        (["run=runs/mine", "path=a.pt2", "gamma=0.3"], "gamma must be one of 0.1, "),
        (
            ["run=runs/mine", "path=a", "checkpoint=first"],
            "checkpoint: must be one of 'best', 'last', got 'first'",
        ),
        (["run=runs/mine", "path=a", "context_length=7"], "context_length: must be left out"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_writes_nothing(export, folder, arguments, message):
    before = sorted(os.listdir(folder))
    status, out, err = export(*arguments)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert message in line
    assert sorted(os.listdir(folder)) == before
