"""Files of a run: configuration, artifacts of the tracker, ``summary.json``, error tracebacks."""

import contextlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from torchrl.envs import EnvBase

from yamame import distributed
from yamame.checks import UsageError
from yamame.cli.jobs import is_job, is_part, resuming_command
from yamame.cli.nodes import plain, select
from yamame.deploy import Interface, load
from yamame.files.atomic import atomic_writer, read_json, write_json
from yamame.files.checkpoint import LoadedCheckpoint
from yamame.files.identity import belongs_to_a_machine, differing
from yamame.files.own_code import changed_modules, own_code
from yamame.files.trust_record import recorded
from yamame.files.trusted import own_modules
from yamame.report.figures import learning_curve, write_gif
from yamame.report.terminal import print_columns
from yamame.runs.extras import reported
from yamame.runs.held_out import render_held_out
from yamame.runs.state import RunState
from yamame.system.installed import recipe_command
from yamame.system.messages import add_note, described, print_stderr, print_stdout
from yamame.system.user_code import formatted, is_failure, is_of_part
from yamame.tracking.summary import Status, build_summary, versions

HARDLY_LEARNED = "hardly_learned"
"""Key of ``summary.json`` whose value is true if the agent has hardly learned."""


def facts(env: EnvBase, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata stored with a checkpoint: threads, versions, the agent's specs, and digests
    of the user's modules.
    """
    # The number of threads changes the order of sums, and so the last bits of results.
    machine = {"threads": torch.get_num_threads(), "versions": versions()}
    return {
        "machine": {**machine, "code": own_code(config)},
        "interface": Interface.of(env).encode(),
    }


def log_artifacts(run: RunState) -> None:
    """Log table, configuration, checkpoints, curve, video and the agent with the tracker.

    The run is finished without them: an error is printed in one line.
    """
    curve = run.progress.curve
    log = run.tracker.log_artifact
    with reported(f"{run.name}: table of the evaluations"):
        # Evaluations may differ in their numbers of trials, and so in their keys.
        table = {key: [point.get(key) for point in curve] for key in curve[-1]}
        run.tracker.log_table("evaluation.json", table)
    with reported(f"{run.name}: copies for the tracker"):
        log(run.path / "config.yaml")
        # A set, because the last checkpoint is often the best one.
        for checkpoint in {run.checkpoints.last, run.checkpoints.best}:
            if checkpoint is not None:
                log(checkpoint, folder="checkpoints")

    with reported(f"{run.name}: curve.png"):
        log(_draw_curve(run))
    with reported(f"{run.name}: episodes.gif"):
        frames = render_held_out(run.cfg, run.policy)
        if frames is not None:
            log(write_gif(run.path / "episodes.gif", frames))

    step = run.progress.step
    # Such as of an encoder that needs a GPU: models are built on the CPU.
    with reported(f"{run.name}: MLflow model"):
        run.tracker.log_model(
            run.path / "model", lambda folder: _save_model(run, folder), step=step
        )


def _draw_curve(run: RunState) -> Path:
    """Draw the evaluations with their intervals."""
    curve = run.progress.curve
    unit = run.progress.unit
    name = "success" if "success_mean" in curve[-1] else "return"
    line = []
    for column in (unit, f"{name}_mean", f"{name}_low", f"{name}_high"):
        line.append([point[column] for point in curve])
    label = "environment steps" if unit == "env_steps" else unit
    return learning_curve(run.path / "curve.png", {run.name: line}, x_label=label, y_label=name)


def _save_model(run: RunState, folder: Path) -> None:
    from yamame.deploy.mlflow_model import save_model  # imports MLflow's slow model package

    save_model(load(run.path, trust=list(select(run.cfg, "trust") or [])), folder)


def write_traceback(run: RunState, error: BaseException | None, *, of_part: bool = False) -> None:
    """Write the traceback of an error to ``error.txt``, and add a note about that to the error.

    A mistake in the configuration has none, and neither has a request to end the process.

    Args:
        run: The run.
        error: The error; None if there is none.
        of_part: Whether a part of the user is known to have raised it.
    """
    if error is None or not is_failure(error):
        return
    if isinstance(error, UsageError) and not (of_part or is_of_part(error)):
        return
    path = run.path / "error.txt"
    with contextlib.suppress(Exception):  # the disk may be what failed
        path.write_text(formatted(error), encoding="utf-8", errors="backslashreplace")
        add_note(error, f"the traceback is in {path}")
        error.traceback_file = path  # type: ignore[attr-defined]


def write_config(run: RunState) -> None:
    """Write the configuration of this session as config.yaml."""
    with atomic_writer(run.path / "config.yaml") as file:
        file.write(OmegaConf.to_yaml(OmegaConf.create(plain(run.cfg))).encode())


def warn_changes(run: RunState, before: LoadedCheckpoint) -> None:
    """Print what has changed since the former session: budget, machine, the user's own code."""
    new = run.config["budget"]
    old = {**dict.fromkeys(new), **before.config["budget"]}  # of a version with fewer limits
    if any(_is_smaller(new[key], old[key]) for key in new):
        changes = differing(old, new, but_for=lambda key: False)
        if changes:
            is_smaller = all(new[key] == old[key] or _is_smaller(new[key], old[key]) for key in new)
            is_added = any(new[key] is not None and old[key] is None for key in new)
            kind = "a smaller budget" if is_smaller and not is_added else "other limits"
            print_stderr(f"{run.name}: resumed with {kind}: {'; '.join(changes)}")

    conditions = differing(
        _with_device_kind(before.config),
        _with_device_kind(run.config),
        but_for=lambda key: not belongs_to_a_machine(key),
    )
    old_machine, machine = before.values["machine"], run.components["machine"]
    conditions += differing(old_machine, machine, but_for=lambda key: key.startswith("code"))
    if conditions:
        how = "resumed with other settings; results may differ in the last bits"
        print_stderr(f"{run.name}: {how}: {'; '.join(conditions)}")

    changed = changed_modules(old_machine.get("code", {}), machine["code"])
    if changed:
        print_stderr(
            f"{run.name}: changed since the last session: {', '.join(changed)}; trajectories in "
            "replay and earlier evaluations are of the former code"
        )


def _is_smaller(limit: float | None, former: float | None) -> bool:
    return limit is not None and (former is None or limit < former)


def _with_device_kind(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration whose device has no index 0: "cuda:0" is the same as "cuda"."""
    return {**config, "device": str(config["device"]).removesuffix(":0")}


def read_summary(run: RunState) -> dict[str, Any]:
    """Return the former session's summary.json; empty if it is missing or damaged."""
    path = run.path / "summary.json"
    try:
        return read_json(path) if path.exists() else {}
    except UsageError as error:
        print_stderr(f"{error}; it is written again at the end")
        return {}


def reopen_summary(run: RunState) -> None:
    """Set the status in summary.json to RUNNING again."""
    path = run.path / "summary.json"
    # A damaged summary was reported when the run was opened.
    with contextlib.suppress(FileNotFoundError, UsageError):
        write_json(path, {**read_json(path), "status": "RUNNING"})


def write_summary(run: RunState, status: Status) -> None:
    """Write summary.json and print it, with commands for next steps; the path is the last line.

    A run inside of a recipe that makes several prints one line.
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
    with reported(f"{run.name}: summary on the terminal"):
        _print_summary(run, status, summary, path)


def _print_summary(run: RunState, status: Status, summary: Mapping[str, Any], path: Path) -> None:
    if is_part():
        name = "return_mean" if summary["success"] is None else "success"
        result = "not evaluated" if summary[name] is None else f"{name} {summary[name]:.3f}"
        cost = f"{summary['cpu_s']:.0f} CPU-s"
        print_stdout(f"{run.name}: {status.lower()}, {result}, {cost}, {path}")
        return

    if not is_job():  # a sweep prints a table of its jobs
        hidden = ("versions", *run.extra)
        rows = []
        for key, value in summary.items():
            if key not in hidden:
                rows.append({"what": key, "value": value})
        print_columns(run.name, rows)
        steps = next_steps(run, status)
        if steps:
            print_stdout("\n".join(["next:", *(f"  {step}" for step in steps)]))
    print_stdout(path)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def ended_by(run: RunState) -> str | None:
    """Return the limit or the reason of `RunState.stop` that ended the run; None if none did."""
    if run.progress.stopped:
        return run.progress.stopped
    limit = run.budget.ended(env_steps=run.progress.env_steps, updates=run.progress.updates)
    return limit and f"budget.{limit}={getattr(run.budget, limit)}"


def next_steps(run: RunState, status: Status) -> list[str]:
    """Return commands and pages for next steps: to resume, view or evaluate the run."""
    has_checkpoint = run.checkpoints.last is not None
    steps = []
    if status != "FINISHED" and has_checkpoint:
        steps.append(resuming_command(distributed.world_size()))
    try:
        pages = "  # ".join(run.tracker.pages())
    except Exception as error:  # of a custom tracker, and no reason to fail a run
        print_stderr(f"{run.name}: no pages of the tracker: {described(error)}")
        pages = ""
    if pages:
        steps.append(pages)
    if has_checkpoint:
        # Commands that load the run need trust in the packages that it names, unless it is known
        # to be this user's.
        packages = [*(select(run.cfg, "trust") or []), *own_modules(run.config["env"])]
        arguments = [f"run={run.path}"]
        if packages and not recorded(run.path, run.config).packages:
            arguments.append(f"trust=[{','.join(dict.fromkeys(packages))}]")
        text = shlex.join(arguments)
        steps.append(f"{recipe_command('play')} {text}")
        steps.append(f"{recipe_command('evaluate')} {text} control=true")
    if status == "FINISHED" and has_checkpoint and HydraConfig.initialized():
        larger = _larger_budget(run)
        if larger:
            command = resuming_command(distributed.world_size(), **larger)
            steps.append(f"{command}  # continue with a larger budget")
    return steps


def _larger_budget(run: RunState) -> dict[str, float]:
    """Return twice the limit that ended a run, by its name; empty if another reason ended it."""
    counts = {"env_steps": run.progress.env_steps, "updates": run.progress.updates}
    limit = None if run.progress.stopped else run.budget.ended(**counts)
    return {} if limit is None else {limit: 2 * getattr(run.budget, limit)}
