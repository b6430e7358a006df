"""What a run leaves: artifacts for the tracker, ``summary.json``, and the traceback of what the outside world broke."""

import contextlib
import traceback
from typing import TYPE_CHECKING

from yamame.cli.jobs import tell
from yamame.failures import OutsideError
from yamame.files.atomic import write_json
from yamame.report.figures import learning_curve, write_gif
from yamame.report.terminal import print_columns
from yamame.runs.held_out import render_held_out
from yamame.tracking.summary import Status, build_summary

if TYPE_CHECKING:
    from yamame.runs.run import Run


def log_artifacts(run: "Run") -> None:
    """Hands the tracker what a person wants to look at: curve, video, table, configuration, checkpoints."""
    curve, unit, log = run.progress.curve, run.progress.unit, run.tracker.log_artifact
    name = "success" if "success_mean" in curve[-1] else "return"
    columns = (unit, f"{name}_mean", f"{name}_low", f"{name}_high")
    line = [[point[column] for point in curve] for column in columns]
    label = {"env_steps": "environment steps"}.get(unit, unit)
    log(learning_curve(run.path / "curve.png", {run.name: line}, x_label=label, y_label=name))
    frames = render_held_out(run.cfg, run.policy)
    if frames is not None:
        log(write_gif(run.path / "episodes.gif", frames))
    # Episodes of one evaluation may have had fewer trials than those of another.
    run.tracker.log_table("evaluation.json", {key: [p.get(key) for p in curve] for key in curve[-1]})
    log(run.path / "config.yaml")
    for checkpoint in {run.checkpoints.last, run.checkpoints.best}:
        if checkpoint is not None:
            log(checkpoint, folder="checkpoints")


def keep_traceback(run: "Run", error: BaseException | None) -> None:
    """Keeps the traceback of a failure of the outside world, of which the command line shows one line."""
    if isinstance(error, OSError | OutsideError):
        error.add_note("then resume=true goes on")
        path = run.path / "error.txt"
        with contextlib.suppress(OSError):
            path.write_text("".join(traceback.format_exception(error)))
            error.add_note(f"the traceback is in {path}")


def write_summary(run: "Run", status: Status) -> None:
    """Writes summary.json and shows it; the path is the last line."""
    last = run.progress.curve[-1] if run.progress.curve else {}
    counted = {
        "success": last.get("success_mean"),
        "return_mean": last.get("return_mean"),
        "env_steps": run.progress.env_steps,
        "updates": run.progress.updates,
        "refused_updates": run.guard.num_refused,
        **run.costs.state_dict(),
        "seed": run.cfg.seed,
    }
    summary = build_summary(counted, status=status, extra=run.extra)
    path = write_json(run.path / "summary.json", summary)
    shown = [key for key in summary if key not in ("versions", *run.extra)]
    print_columns(run.name, [{"what": key, "value": summary[key]} for key in shown])
    tell(path)
