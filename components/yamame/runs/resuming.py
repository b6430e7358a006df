"""How a run goes on from a checkpoint, or is found to be done."""

import contextlib
from collections.abc import Mapping
from typing import Any, Literal

from yamame import distributed
from yamame.checks import UsageError
from yamame.cli.jobs import AlreadyDone
from yamame.files.atomic import read_json
from yamame.files.checkpoint import LoadedCheckpoint
from yamame.files.identity import compare_config, differing, leaves_what_was_done
from yamame.files.run_directory import RunDirectory, SharedDirectory
from yamame.runs import outcome
from yamame.runs.state import RunState
from yamame.system.signals import exit_if_received


def claim(run: RunState, mode: bool | Literal["auto"]) -> RunDirectory:
    """The directory of a run, which the first rank claims for all."""
    setting, claimed = run.cfg.run, []

    def open_it() -> bool:
        claimed.append(
            RunDirectory.open(setting.root, run.name, resume=mode, overwrite=setting.overwrite)
        )
        return claimed[0].resumed

    resumed = distributed.on_rank0(open_it)
    return claimed[0] if claimed else SharedDirectory(run.path, resumed=resumed)


def goes_on(run: RunState, *, unless_done: bool) -> bool:
    """Return whether there is a checkpoint to resume from.

    Raises:
        UsageError: The run is finished and its checkpoints are gone, or its configuration is
            another one.
        AlreadyDone: Nothing is left to do, and the run is to go on ``unless_done``.
    """
    summary = outcome.read_summary(run)
    is_finished = summary.get("status") == "FINISHED"
    if run.checkpoints.last is None:
        if is_finished:
            raise UsageError(
                f"resume: {run.checkpoints.directory} must hold the checkpoints of a finished run, it holds none; "
                "bring them back, or begin anew with run.overwrite=true"
            )
        return False
    saved = run.checkpoints.read_config()
    compare_config(saved, run.config)
    if (
        unless_done
        and is_finished
        and not differing(saved, run.config, but_for=leaves_what_was_done)
    ):
        loaded = run.checkpoints.load({"progress": run.progress, "budget": run.budget})
        _forget_stop(run, saved)
        counted = {"env_steps": run.progress.env_steps, "updates": run.progress.updates}
        exit_if_received()
        if run.spends(**counted) and counted.items() <= summary.items():
            run.objective = loaded.metric or 0.0
            raise AlreadyDone(run)
    return True


def restore(run: RunState) -> LoadedCheckpoint:
    """Restores the last checkpoint that can be: the first rank finds it, the others follow."""
    loaded = distributed.on_rank0(lambda: run.checkpoints.load(run.components))
    if not distributed.is_rank0():
        run.checkpoints.load(run.components, which=run.checkpoints.path(loaded.step))
    with contextlib.suppress(FileNotFoundError, UsageError):  # never written, or damaged
        run.costs.include_summary(read_json(run.path / "summary.json"))
    _forget_stop(run, loaded.config)
    return loaded


def _forget_stop(run: RunState, saved: Mapping[str, Any]) -> None:
    """A run that was stopped before its budget was spent goes on if it is given another."""
    if saved["budget"] != run.config["budget"]:
        run.progress.stopped = None
