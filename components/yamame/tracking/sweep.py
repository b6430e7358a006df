"""A sweep as one MLflow run with the runs of its jobs nested inside.

`SweepParent` is a Hydra callback; the main YAML file names it under ``hydra.callbacks``. It opens
the parent run when a multirun starts, tells the jobs by an environment variable (so jobs in other
processes are told too) and records each job's objective. `yamame.cli.app.main` closes the parent,
for it knows whether a job failed.

The same command in the same directory goes on with the same parent, unless it replaces its runs.
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
from yamame.tracking.mlflow_store import MLflowRun, absolute_uri, clean_key
from yamame.tracking.pages import experiment_address, ui_command
from yamame.tracking.summary import run_status
from yamame.tracking.tracker import EXPERIMENT, PARENT_VARIABLE, TRACKING_URI

_IDENTITY = "sweep.identity"
_open_sweeps: list[MLflowRun] = []


class SweepParent(Callback):
    """Opens a parent run for a multirun whose ``logger`` is MLflow.

    The parent's metric ``objective`` holds those of the jobs; its step is the number of the job.
    ``objective_best`` and ``objective_mean`` are of all jobs, ``mean/<overrides>`` is of those that
    differ in their seed alone; the parent's description has them as a table. A tag ``job.<number>``
    says what became of a job. Jobs may run in other processes, on machines that reach the store.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Opens the parent run."""
        node = OmegaConf.select(config, "logger")
        if node is None or not str(node.get("_target_", "")).endswith(".MLflowTracker"):
            return
        overrides = " ".join(
            text for text in config.hydra.overrides.task if key_of(text) != "launcher"
        )
        uri = absolute_uri(node.get("tracking_uri", TRACKING_URI))
        experiment = node.get("experiment", EXPERIMENT)
        description = (
            f"{Path(config.hydra.sweep.dir).resolve()} {config.hydra.job.name} {overrides}"
        )
        identity = hashlib.sha256(description.encode()).hexdigest()[:16]
        replaces = OmegaConf.select(config, "run.overwrite")
        run = None if replaces else MLflowRun.find(uri, experiment, tag=_IDENTITY, value=identity)
        if run is None:
            tags = {"sweep": overrides, _IDENTITY: identity}
            run = MLflowRun.create(uri, experiment, name=f"sweep {overrides}"[:100], tags=tags)
        else:
            run.set_status("RUNNING")
        _open_sweeps.append(run)
        os.environ[PARENT_VARIABLE] = run.run_id

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Records a job's objective; in whichever process it ran."""
        value, parent = job_return._return_value, os.environ.get(PARENT_VARIABLE)
        is_number = job_return.status is JobStatus.COMPLETED and isinstance(value, int | float)
        if parent is None or not is_number:
            return
        # A store that does not answer stops no sweep; `close_sweep` asks again.
        with contextlib.suppress(Exception):
            run = MLflowRun.reopen(
                absolute_uri(config.logger.get("tracking_uri", TRACKING_URI)), parent
            )
            _record(run, {int(config.hydra.job.num): value})


def _record(run: MLflowRun, objectives: Mapping[int, float | None]) -> None:
    """Stores objectives by the number of their job; what a job of the same command gave before is
    there already.
    """
    stored = {point.step for point in run.client.get_metric_history(run.run_id, "objective")}
    now = int(time.time() * 1000)
    missing = {
        number: value
        for number, value in objectives.items()
        if number not in stored and value is not None
    }
    run.log_metrics(
        [("objective", v, now, number) for number, v in missing.items() if math.isfinite(v)]
    )


def close_sweep(error: BaseException | None, jobs: Mapping[int, Mapping[str, Any]]) -> None:
    """Closes the parent run if it is still open, once it has what became of each job.

    Args:
        error: What the sweep ended by.
        jobs: ``overrides``, ``outcome`` and ``objective`` of every job, by its number.
    """
    if _open_sweeps:
        os.environ.pop(PARENT_VARIABLE, None)
    while _open_sweeps:
        run = _open_sweeps.pop()
        try:
            _record(run, {number: job["objective"] for number, job in jobs.items()})
            texts = {
                n: f"{job['outcome']}: {' '.join(job['overrides'])}" for n, job in jobs.items()
            }
            run.log_tags({f"job.{number}": text for number, text in texts.items()})
            _summarise(run, jobs)
            run.set_status(run_status(error))
            uri = run.client.tracking_uri
            page = experiment_address(uri, run.experiment_id)
            print_stderr(
                f"the sweep in MLflow: {'  # '.join(filter(None, (ui_command(uri), page)))}"
            )
        except (
            Exception
        ) as failure:  # databases, drivers and servers make MLflow raise almost anything
            print_stderr(
                f"MLflow does not answer, the sweep's run {run.run_id} is not closed: {one_line(failure)}"
            )


def _summarise(run: MLflowRun, jobs: Mapping[int, Mapping[str, Any]]) -> None:
    """Stores the best and the mean objective of all jobs, and the mean of each group, and describes
    them.
    """
    groups = groups_of(jobs)
    every = [value for values in groups.values() for value in values]
    if not every:
        return
    metrics = {"objective_best": max(every), "objective_mean": fmean(every)}
    if len(groups) > 1:
        metrics |= {f"mean/{name}": fmean(values) for name, values in groups.items() if values}
    now = int(time.time() * 1000)
    run.log_metrics([(clean_key(name), value, now, 0) for name, value in metrics.items()])
    rows = [
        f"| {name} | {fmean(values):.4g} | {max(values):.4g} | {len(values)} |"
        if values
        else f"| {name} | | | 0 |"
        for name, values in groups.items()
    ]
    table = ["| group | mean objective | best | jobs |", "|---|---|---|---|", *rows]
    run.log_tags({"mlflow.note.content": "\n".join(table)})


def groups_of(jobs: Mapping[int, Mapping[str, Any]]) -> dict[str, list[float]]:
    """Objectives by the overrides that not all jobs have; jobs that differ in their seed alone are
    of one group.

    >>> seeds = {n: {"overrides": ["env=wind", f"seed={n}"], "objective": n / 2} for n in (1, 2)}
    >>> groups_of({**seeds, 3: {"overrides": ["env=maze", "seed=1"], "objective": None}})
    {'env=wind': [0.5, 1.0], 'env=maze': []}
    """
    own = {
        n: [text for text in job["overrides"] if key_of(text) != "seed"] for n, job in jobs.items()
    }
    common = set.intersection(*map(set, own.values())) if own else set()
    groups: dict[str, list[float]] = {}
    for number, job in jobs.items():
        name = " ".join(text for text in own[number] if text not in common) or "all"
        values = groups.setdefault(name, [])
        if job["objective"] is not None:
            values.append(float(job["objective"]))
    return groups
