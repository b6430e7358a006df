"""Files of a run: configuration, artifacts for the tracker, ``summary.json``, traceback of a
failure.
"""

import contextlib
import shlex
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torchrl.envs import EnvBase

from yamame import distributed
from yamame.checks import UsageError
from yamame.cli.jobs import is_job, is_part, resuming_command, tell
from yamame.deploy import Interface, load
from yamame.files.atomic import atomic_writer, read_json, write_json
from yamame.files.checkpoint import LoadedCheckpoint
from yamame.files.identity import belongs_to_a_machine, differing
from yamame.files.trusted import own_modules
from yamame.report.figures import learning_curve, write_gif
from yamame.report.terminal import print_columns
from yamame.runs.held_out import render_held_out
from yamame.runs.state import RunState
from yamame.system.installed import recipe_command
from yamame.system.messages import OutsideError, print_stderr
from yamame.tracking.summary import Status, build_summary, versions


def facts(env: EnvBase) -> dict[str, Any]:
    """Return metadata stored with a checkpoint: threads, versions, the agent's observations and
    actions.
    """
    machine = {"threads": torch.get_num_threads(), "versions": versions()}
    return {"machine": machine, "interface": Interface.of(env).encode()}


def log_artifacts(run: RunState) -> None:
    """Hands the tracker what a person looks at (curve, video, table, configuration, checkpoints),
    and the agent.
    """
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
    run.tracker.log_table(
        "evaluation.json", {key: [p.get(key) for p in curve] for key in curve[-1]}
    )
    log(run.path / "config.yaml")
    for checkpoint in {run.checkpoints.last, run.checkpoints.best}:
        if checkpoint is not None:
            log(checkpoint, folder="checkpoints")
    try:
        run.tracker.log_model(
            run.path / "model", lambda folder: _save_model(run, folder), step=run.progress.step
        )
    except UsageError as error:  # one that a CPU cannot build, say
        print_stderr(f"{run.name}: there is no MLflow model of it: {error}")


def _save_model(run: RunState, folder: Path) -> None:
    from yamame.deploy.mlflow_model import save_model  # MLflow's own part of it takes long to load

    save_model(load(run.path, trust=list(run.cfg.get("trust") or [])), folder)


def keep_traceback(run: RunState, error: BaseException | None) -> None:
    """Keeps the traceback of a failure of the outside world, of which the command line shows one
    line.
    """
    if isinstance(error, OSError | OutsideError):
        error.add_note("once that is mended, resume=true goes on")
        path = run.path / "error.txt"
        with contextlib.suppress(OSError):
            path.write_text("".join(traceback.format_exception(error)))
            error.add_note(f"the traceback is in {path}")


def write_config(run: RunState) -> None:
    """Writes config.yaml: what the run is, since this session."""
    with atomic_writer(run.path / "config.yaml") as file:
        file.write(OmegaConf.to_yaml(run.cfg, resolve=True).encode())


def tell_changes(run: RunState, before: LoadedCheckpoint) -> None:
    """Prints what has changed since the former session: a smaller budget, other conditions of the
    machine.
    """
    old, new, changes = before.config["budget"], run.config["budget"], {}
    if any(new[key] is not None and (old[key] is None or new[key] < old[key]) for key in new):
        changes["with a smaller budget"] = (old, new)
    for how, pair in changes.items():
        if others := differing(*pair, but_for=lambda key: False):
            print_stderr(f"{run.name}: goes on {how}: {'; '.join(others)}")
    conditions = [
        *differing(
            _with_own_device(before.config),
            _with_own_device(run.config),
            but_for=lambda key: not belongs_to_a_machine(key),
        ),
        *differing(before.values["machine"], run.components["machine"], but_for=lambda key: False),
    ]
    if conditions:
        how = "resumed with other settings; results may differ in the last bits"
        print_stderr(f"{run.name}: {how}: {'; '.join(conditions)}")


def _with_own_device(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration that names the first device of a kind by its kind alone: cpu:0 is cpu."""
    return {**config, "device": str(config["device"]).removesuffix(":0")}


def read_summary(run: RunState) -> dict[str, Any]:
    """Return the former session's summary.json; empty if it is missing or damaged."""
    path = run.path / "summary.json"
    try:
        return read_json(path) if path.exists() else {}
    except UsageError as error:
        print_stderr(f"{error}; it is written anew at the end")
        return {}


def reopen_summary(run: RunState) -> None:
    """Takes back how the session before has ended, for the run goes on."""
    path = run.path / "summary.json"
    with contextlib.suppress(
        FileNotFoundError, UsageError
    ):  # a damaged one was told when the run was opened
        write_json(path, {**read_json(path), "status": "RUNNING"})


def write_summary(run: RunState, status: Status) -> None:
    """Write summary.json and print it, with commands to go on; the path is the last line.

    A run that is part of another recipe prints one line.
    """
    last = run.progress.curve[-1] if run.progress.curve else {}
    counted = {
        "success": last.get("success_mean"),
        "return_mean": last.get("return_mean"),
        "evaluated_at": last.get(run.progress.unit),
        "evaluated_on": run.novelty if last else None,
        "num_episodes": _whole(last.get("num_episodes")),
        "num_tasks": _whole(last.get("num_tasks")),
        "ended_by": ended_by(run),
        "env_steps": run.progress.env_steps,
        "updates": run.progress.updates,
        "refused_updates": run.guard.num_refused,
        **run.costs.state_dict(),
        "seed": run.cfg.seed,
    }
    summary = build_summary(counted, status=status, extra=run.extra)
    path = write_json(run.path / "summary.json", summary)
    if is_part():
        name = "return_mean" if summary["success"] is None else "success"
        outcome = "not evaluated" if summary[name] is None else f"{name} {summary[name]:.3f}"
        tell(f"{run.name}: {status.lower()}, {outcome}, {summary['cpu_s']:.0f} CPU-s, {path}")
        return
    if not is_job():  # a sweep has a table of its own
        keys = [key for key in summary if key not in ("versions", *run.extra)]
        print_columns(run.name, [{"what": key, "value": summary[key]} for key in keys])
        if steps := next_steps(run, status):
            tell("\n".join(["next:", *(f"  {step}" for step in steps)]))
    tell(path)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def ended_by(run: RunState) -> str | None:
    """The limit of the budget that is reached, or why the run was stopped before; None if it is not
    over.
    """
    limit = run.budget.ended(env_steps=run.progress.env_steps, updates=run.progress.updates)
    return run.progress.stopped or (limit and f"budget.{limit}={getattr(run.budget, limit)}")


def next_steps(run: RunState, status: Status) -> list[str]:
    """Return commands and pages to print at the end: to resume the run, view it, or play its
    agent.
    """
    goes_on = status != "FINISHED" and run.checkpoints.last is not None
    steps = [resuming_command(distributed.world_size())] if goes_on else []
    steps.append("  # ".join(run.tracker.pages()))
    if run.checkpoints.last is not None:
        packages = [*(run.cfg.get("trust") or []), *own_modules(run.config["env"])]
        trust = [f"trust=[{','.join(dict.fromkeys(packages))}]"] if packages else []
        arguments = shlex.join([f"run={run.path}", *trust])
        play, evaluate = recipe_command("play"), recipe_command("evaluate")
        steps += [f"{play} {arguments}", f"{evaluate} {arguments} control=true"]
    return [step for step in steps if step]
