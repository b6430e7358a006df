"""Resuming a run from its last checkpoint, or finding that it is finished."""

import contextlib
import math
from collections.abc import Mapping
from typing import Any, Literal

from yamame import distributed
from yamame.checks import UsageError
from yamame.cli.jobs import AlreadyDone, is_part, note_hardly_learned, note_objective
from yamame.files.atomic import read_json
from yamame.files.checkpoint import LoadedCheckpoint
from yamame.files.identity import compare_config, differing, leaves_what_was_done
from yamame.files.run_directory import RunDirectory, SharedDirectory
from yamame.runs import results
from yamame.runs.state import RunState
from yamame.system.signals import exit_if_received


def open_directory(run: RunState, mode: bool | Literal["auto"]) -> RunDirectory:
    """Open the directory of a run; rank 0 locks it for all ranks."""
    setting = run.cfg.run
    opened: list[RunDirectory] = []

    def open_it() -> bool:
        directory = RunDirectory.open(
            setting.root, run.name, resume=mode, overwrite=setting.overwrite
        )
        opened.append(directory)
        return directory.resumed

    resumed = distributed.on_rank0(open_it)
    # The lock cannot be sent to other ranks, only whether the run is resumed.
    return opened[0] if opened else SharedDirectory(run.path, resumed=resumed)


def can_resume(run: RunState, *, unless_done: bool) -> bool:
    """Return whether there is a checkpoint to resume from.

    Args:
        run: The run.
        unless_done: Whether to raise `AlreadyDone` if nothing is left to do.

    Raises:
        UsageError: The run is finished and its checkpoints are missing, or its configuration
            differs.
        AlreadyDone: The run is finished, and its configuration requires nothing further.
    """
    summary = results.read_summary(run)
    is_finished = summary.get("status") == "FINISHED"
    if run.checkpoints.last is None:
        if is_finished:
            raise UsageError(
                f"{run.checkpoints.directory} must hold the checkpoints of a finished run, it "
                "holds none",
                key="resume",
                remedy="restore them, or start again with run.overwrite=true",
            )
        return False

    saved = _without_foreign(run, run.checkpoints.read_config())
    current = _without_foreign(run, run.config)
    compare_config(saved, current)
    if unless_done and is_finished:
        if not differing(saved, current, but_for=leaves_what_was_done):
            _raise_if_done(run, summary, saved)
    return True


def _without_foreign(run: RunState, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration without settings of the schedule that its recipe does not have.

    Presets that are written for several recipes leave them in saved configurations.
    """
    fields = getattr(type(run.cfg.schedule), "model_fields", None)
    if fields is None or not isinstance(config.get("schedule"), Mapping):
        return config
    own = {name: value for name, value in config["schedule"].items() if name in fields}
    return {**config, "schedule": own}


def _raise_if_done(run: RunState, summary: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    counters = {"progress": run.progress, "budget": run.budget, "costs": run.costs}
    loaded = run.checkpoints.load(counters)
    _forget_stop(run, saved)
    counted = {"env_steps": run.progress.env_steps, "updates": run.progress.updates}
    exit_if_received()
    # A summary of other counts belongs to a checkpoint that was lost since.
    if run.is_spent(**counted) and counted.items() <= summary.items():
        run.objective = loaded.metric or 0.0
        note_objective(run.progress.outcome_name)
        if summary.get(results.HARDLY_LEARNED):
            note_hardly_learned()
        raise AlreadyDone(run)


def restore(run: RunState) -> LoadedCheckpoint:
    """Restore the last intact checkpoint: rank 0 finds it, the other ranks load the same one."""
    loaded = distributed.on_rank0(lambda: run.checkpoints.load(run.components))
    if not distributed.is_rank0():
        run.checkpoints.load(run.components, which=run.checkpoints.path(loaded.step))
    with contextlib.suppress(FileNotFoundError, UsageError):  # never written, or damaged
        run.costs.include_summary(read_json(run.path / "summary.json"))
    _forget_stop(run, loaded.config)
    run.resumed_at = (run.progress.env_steps, run.progress.updates)
    return loaded


def without_progress(run: RunState) -> str | None:
    """Return why a resumed session has made neither a step nor an update before a limit of time.

    Call it before the last evaluation, which takes time as well.

    Returns:
        A line; None if the session has made any, or if no limit of time ended it.
    """
    counts = {"env_steps": run.progress.env_steps, "updates": run.progress.updates}
    if is_part() or run.progress.stopped or run.resumed_at != tuple(counts.values()):
        return None
    limit = run.budget.ended(**counts)
    if limit == "cpu_s":
        unit, start = "CPU-seconds", run.costs.session_cpu_s
    elif limit == "minutes":
        unit, start = "minutes", run.budget.session_s / 60
    else:
        return None

    total = getattr(run.budget, limit)
    left = run.budget.left(**counts)[limit] + start
    reason = f"all {total:g} {unit} of budget.{limit} had been used up before"
    if left > 0:
        reason = f"the start took {start:.3g} {unit}, and {left:.3g} of {total:g} were left"
    # A start takes as long again, and the last evaluation of this session is still to come.
    enough = math.ceil(total - left + 3 * start)
    remedy = f"set budget.{limit}={enough} or more"
    return f"{run.name}: resumed, but no update was made: {reason}; {remedy}"


def _forget_stop(run: RunState, saved: Mapping[str, Any]) -> None:
    """Let a run that was stopped before the end of its budget continue with a different budget."""
    if _limits(saved["budget"]) != _limits(run.config["budget"]):
        run.progress.stopped = None


def _limits(budget: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of a budget; earlier versions lacked some, which is to have none."""
    return {name: limit for name, limit in budget.items() if limit is not None}
