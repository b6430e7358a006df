"""A finished run stays finished, whatever happens to its pictures, tables and copies."""

import errno
import json
import shutil
import sqlite3
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from PIL import Image
from yamame.report.figures import write_gif
from yamame.runs import results
from yamame.runs.extras import reported
from yamame.system.signals import Terminated
from yamame.tracking.tracker import MLflowTracker

EXAMPLE = Path(__file__).parents[2] / "examples" / "mylab"
TINY = ["debug=tiny", "encoder=gru", "encoder.hidden_size=8", "run.name=a"]
MAZE = [*TINY, "env.size=5", "env.split=all", "~evaluation.env.split", "env.num_goals=1"]


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


def summary(folder: Path) -> dict:
    return json.loads((folder / "runs" / "a" / "summary.json").read_text())


def statuses(folder: Path) -> list[str]:
    with sqlite3.connect(folder / "mlflow.db") as store:
        return [status for (status,) in store.execute("select status from runs")]


def test_a_run_finishes_although_everything_after_its_end_fails(play, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "learning_curve", raising(ImportError("no backend")))
    monkeypatch.setattr(results, "write_gif", raising(OverflowError("656 seconds")))
    monkeypatch.setattr(results, "_save_model", raising(OSError(errno.EIO, "EIO")))
    monkeypatch.setattr(results, "print_columns", raising(UnicodeError("odd terminal")))
    monkeypatch.setattr(MLflowTracker, "log_table", raising(ValueError("columns differ")))
    status, _, err = play("train", tmp_path, *MAZE)
    assert status == 0, err
    for text in ("no backend", "656 seconds", "EIO", "odd terminal", "columns differ"):
        (line,) = [line for line in err.splitlines() if text in line]
        assert line.startswith("a: ")
    assert "Traceback" not in err
    assert summary(tmp_path)["status"] == "FINISHED"
    assert statuses(tmp_path) == ["FINISHED"]
    # Everything that did not fail is there.
    assert list((tmp_path / "runs" / "a" / "checkpoints").glob("step-*.pt"))
    assert list((tmp_path / "mlruns").rglob("config.yaml"))


def test_a_run_whose_environment_cannot_be_drawn_or_closed_finishes(play, tmp_path, monkeypatch):
    from yamame_envs import PassiveTMaze

    def close(env, **options):
        super(PassiveTMaze, env).close(**options)
        raise OSError(errno.EIO, "closed badly")

    monkeypatch.setattr(PassiveTMaze, "render", raising(AttributeError("no display")))
    status, _, err = play("train", tmp_path, *TINY, "logger=none", "env=tmaze", "env.length=4")
    assert (status, summary(tmp_path)["status"]) == (0, "FINISHED"), err
    assert len([line for line in err.splitlines() if "no display" in line]) == 1

    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr(PassiveTMaze, "close", close)
    status, _, err = play("train", tmp_path, *TINY, "logger=none", "env=tmaze", "env.length=4")
    assert (status, summary(tmp_path)["status"]) == (0, "FINISHED"), err
    assert "closed badly" in err


def test_an_error_in_the_last_evaluation_still_fails_the_run(play, tmp_path, monkeypatch):
    """The negative control: results are no extras."""
    from yamame.runs.run import Run

    monkeypatch.setattr(Run, "evaluate", raising(OSError(errno.EIO, "evaluation")))
    status, _, _ = play("train", tmp_path, *TINY, "logger=none", "env=tmaze", "env.length=4")
    assert (status, summary(tmp_path)["status"]) == (1, "FAILED")


def test_trials_of_a_bare_environment_without_pictures_finish(play, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("mylab", None)
    folder = shutil.copytree(EXAMPLE, tmp_path / "lab")
    chosen = ["--config-dir", "conf", "experiment=doors", "trials=repeated"]
    trials = ["trials.num_trials=2", "trials.horizon=16", "logger=none", *TINY]
    status, _, err = play("train", folder, *chosen, *trials)
    sys.modules.pop("mylab", None)
    gymnasium.registry.pop("Levers-v0", None)
    assert (status, summary(folder)["status"]) == (0, "FINISHED"), err
    assert "no video: Doors: it has no method render()" in err


def test_results_are_written_before_pictures(play, tmp_path, monkeypatch):
    assert play("train", tmp_path, *TINY, "logger=none", "env=tmaze", "env.length=4")[0] == 0
    from yamame.report import evaluations

    monkeypatch.setattr(evaluations, "draw", raising(ImportError("no backend")))
    monkeypatch.setattr(evaluations, "print_tables", raising(UnicodeError("odd terminal")))
    status, out, err = play("evaluate", tmp_path, "run=runs/a", "num_episodes=4", "output=here")
    assert status == 0, err
    assert "pictures: left out, ImportError: no backend" in err
    assert "tables: left out" in err
    assert "score" in json.loads((tmp_path / "here" / "evaluation.json").read_text())

    from yamame_envs import PassiveTMaze

    monkeypatch.setattr(PassiveTMaze, "render", raising(RuntimeError("no display")))
    status, out, err = play("play", tmp_path, "run=runs/a")
    assert status == 0, err
    assert "return " in out
    assert err.count("no display") == 1


def test_play_tells_its_return_before_its_video_fails(play, tmp_path, monkeypatch):
    assert play("train", tmp_path, *TINY, "logger=none", "env=tmaze", "env.length=4")[0] == 0
    (tmp_path / "runs" / "a" / "play").write_text("in the way")
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(Image.Image, "save", raising(OSError(errno.ENOSPC, "disk full")))
    status, out, err = play("play", tmp_path, "run=runs/a", "output=other")
    assert status == 0, err
    assert "return " in out
    assert "episode.gif: left out" in err
    assert not list((tmp_path / "other").iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Terminated()])
def test_the_end_of_the_process_is_no_failed_picture(error):
    with pytest.raises(type(error)), reported("curve"):
        raise error


def test_a_picture_that_does_not_change_may_be_shown_for_hours(tmp_path):
    """The duration of a frame has 16 bits in a GIF."""
    still = np.zeros((7000, 8, 8, 3), np.uint8)
    still[-1] = 255
    path = write_gif(tmp_path / "still.gif", still, fps=10)
    with Image.open(path) as image:
        assert image.n_frames == 2
        assert image.info["duration"] == 655_350
        image.seek(1)
        assert image.info["duration"] == 100
