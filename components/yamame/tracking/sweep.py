"""A sweep as one MLflow run, with the runs of its jobs nested inside.

`SweepParent` is a Hydra callback that the main YAML file names under ``hydra.callbacks``. It
creates the parent run when a multirun starts, passes its id to the jobs in an environment variable,
and stores each job's objective. `yamame.cli.app.main` closes the parent.

The same command in the same directory continues the same parent, unless it replaces its runs.
"""

import contextlib
import hashlib
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from yamame.files.identity import key_of
from yamame.system.messages import one_line, print_stderr
from yamame.tracking.mlflow_store import MLflowRun, absolute_uri
from yamame.tracking.names import clean_key
from yamame.tracking.pages import (
    COST_COLUMNS,
    SCORE_COLUMNS,
    experiment_address,
    ui_command,
)
from yamame.tracking.summary import run_status
from yamame.tracking.tracker import EXPERIMENT, PARENT_VARIABLE, TRACKING_URI

_IDENTITY = "sweep.identity"
# Hydra makes the callback and keeps it for itself, so the end of the sweep finds the parent here.
_open_sweeps: list[MLflowRun] = []


class SweepParent(Callback):
    """Creates a parent run for a multirun whose ``logger`` is MLflow.

    The metric ``objective`` of the parent holds the objectives of the jobs, with the job's number
    as the step. ``objective_best`` and ``objective_mean`` summarise all jobs, ``mean/<overrides>``
    the jobs that differ in their seed alone; a table in the description has them, too. Scores and
    costs are logged under the names that they have in the jobs, as means over the jobs that ended,
    and ``best/<name>`` is the largest score. A tag ``job.<number>`` has the outcome of a job. Jobs
    may run in other processes, on any machine that reaches the store.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Create the parent run, or continue it."""
        node = OmegaConf.select(config, "logger")
        if node is None or not str(node.get("_target_", "")).endswith(".MLflowTracker"):
            return

        # The same jobs on another launcher are the same sweep.
        given = config.hydra.overrides.task
        overrides = " ".join(text for text in given if key_of(text) != "launcher")
        folder = Path(config.hydra.sweep.dir).resolve()
        description = f"{folder} {config.hydra.job.name} {overrides}"
        identity = hashlib.sha256(description.encode()).hexdigest()[:16]

        uri = absolute_uri(node.get("tracking_uri", TRACKING_URI))
        experiment = node.get("experiment", EXPERIMENT)
        run = None
        if not OmegaConf.select(config, "run.overwrite"):
            run = MLflowRun.find(uri, experiment, tag=_IDENTITY, value=identity)
        if run is None:
            tags = {"sweep": overrides, _IDENTITY: identity}
            run = MLflowRun.create(uri, experiment, name=f"sweep {overrides}"[:100], tags=tags)
        else:
            run.set_status("RUNNING")
        _open_sweeps.append(run)
        os.environ[PARENT_VARIABLE] = run.run_id

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Store a job's objective, in the process in which the job ran."""
        parent = os.environ.get(PARENT_VARIABLE)
        if parent is None or job_return.status is not JobStatus.COMPLETED:
            return
        objective = job_return._return_value
        if not isinstance(objective, int | float):
            return

        # A store that does not answer does not stop the sweep; `close_sweep` sends it again.
        with contextlib.suppress(Exception):
            uri = absolute_uri(config.logger.get("tracking_uri", TRACKING_URI))
            run = MLflowRun.reopen(uri, parent)
            _log_objectives(run, {int(config.hydra.job.num): objective})


def _log_objectives(run: MLflowRun, objectives: Mapping[int, float | None]) -> None:
    """Store the finite objectives of jobs that have none yet, by the number of the job."""
    # The same command may have stored objectives before, and the job itself, too.
    stored = {point.step for point in run.client.get_metric_history(run.run_id, "objective")}
    now = max(0, int(time.time() * 1000))
    points = []
    for number, objective in objectives.items():
        if number in stored or objective is None or not math.isfinite(objective):
            continue
        points.append(("objective", objective, now, number))
    run.log_metrics(points)


def close_sweep(error: BaseException | None, jobs: Mapping[int, Mapping[str, Any]]) -> None:
    """Store the outcome of each job in the open parent run, if any, and close it.

    Args:
        error: Exception that ended the sweep, or None.
        jobs: ``overrides``, ``outcome`` and ``objective`` of every job, by its number.
    """
    if _open_sweeps:
        os.environ.pop(PARENT_VARIABLE, None)
    while _open_sweeps:
        run = _open_sweeps.pop()
        try:
            _log_objectives(run, {number: job["objective"] for number, job in jobs.items()})
            outcomes = {}
            for number, job in jobs.items():
                outcomes[f"job.{number}"] = f"{job['outcome']}: {' '.join(job['overrides'])}"
            run.log_tags(outcomes)
            _log_groups(run, jobs)
            _log_means(run)
            run.set_status(run_status(error))

            uri = run.client.tracking_uri
            page = experiment_address(uri, run.experiment_id)
            command = ui_command(uri)
            shown = page if command is None else f"{command}  # {page}"
            print_stderr(f"the sweep in MLflow: {shown}")
        except Exception as failure:  # MLflow raises errors of databases, drivers and servers
            reason = one_line(failure)
            print_stderr(
                f"MLflow does not answer, the sweep's run {run.run_id} is not closed: {reason}"
            )


def _log_groups(run: MLflowRun, jobs: Mapping[int, Mapping[str, Any]]) -> None:
    """Store mean and best objective of all jobs, the mean of each group, and a table of them."""
    groups = groups_of(jobs)
    objectives: list[float] = []
    for values in groups.values():
        objectives += values
    if not objectives:
        return

    metrics = {"objective_best": max(objectives), "objective_mean": fmean(objectives)}
    table = ["| group | mean objective | best | jobs |", "|---|---|---|---|"]
    for name, values in groups.items():
        if not values:
            table.append(f"| {name} | | | 0 |")
            continue
        table.append(f"| {name} | {fmean(values):.4g} | {max(values):.4g} | {len(values)} |")
        if len(groups) > 1:
            metrics[f"mean/{name}"] = fmean(values)

    _log_now(run, metrics)
    table += ["", "Metrics under eval/ and cost/ are means over the jobs, best/ is their best."]
    run.log_tags({"mlflow.note.content": "\n".join(table)})


def _log_means(run: MLflowRun) -> None:
    """Store means of the jobs' scores and costs, so that the row of the sweep is not empty."""
    pattern = f"tags.`mlflow.parentRunId` = '{run.run_id}' and attributes.status = 'FINISHED'"
    order = ["attributes.start_time ASC"]
    children = run.client.search_runs([run.experiment_id], pattern, order_by=order)
    # A job that was made anew, after its directory was deleted, counts once.
    latest = {child.info.run_name: child.data.metrics for child in children}

    metrics = {}
    for name in (*SCORE_COLUMNS, *COST_COLUMNS):
        values = [logged[name] for logged in latest.values() if name in logged]
        values = [value for value in values if math.isfinite(value)]
        if not values:
            continue
        metrics[name] = fmean(values)
        if name in SCORE_COLUMNS:
            metrics[f"best/{name}"] = max(values)
    _log_now(run, metrics)


def _log_now(run: MLflowRun, metrics: Mapping[str, float]) -> None:
    """Store numbers of the whole sweep."""
    now = max(0, int(time.time() * 1000))
    run.log_metrics([(clean_key(name), value, now, 0) for name, value in metrics.items()])


def groups_of(jobs: Mapping[int, Mapping[str, Any]]) -> dict[str, list[float]]:
    """Group the objectives of jobs that differ in their seed alone.

    A group is named by the overrides that not all jobs have.

    >>> seeds = {n: {"overrides": ["env=wind", f"seed={n}"], "objective": n / 2} for n in (1, 2)}
    >>> groups_of({**seeds, 3: {"overrides": ["env=maze", "seed=1"], "objective": None}})
    {'env=wind': [0.5, 1.0], 'env=maze': []}
    """
    overrides = {}
    for number, job in jobs.items():
        overrides[number] = [text for text in job["overrides"] if key_of(text) != "seed"]
    common = set.intersection(*map(set, overrides.values())) if overrides else set()

    groups: dict[str, list[float]] = {}
    for number, job in jobs.items():
        name = " ".join(text for text in overrides[number] if text not in common) or "all"
        values = groups.setdefault(name, [])
        if job["objective"] is not None:
            values.append(float(job["objective"]))
    return groups
