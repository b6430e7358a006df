"""A sweep as one MLflow run with the runs of its jobs nested inside.

`SweepParent` is a Hydra callback; the main YAML file names it under ``hydra.callbacks``. It opens the parent
run when a multirun starts, tells the jobs by an environment variable (so jobs in other processes are told
too), records each job's objective and closes the parent when the multirun ends. Hydra does not tell callbacks
of a multirun that failed, so `yamame.cli.app.main` closes the parent then.
"""

import math
import os
import time
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from yamame.tracking.mlflow_store import MLflowRun, Point, absolute_uri
from yamame.tracking.summary import Status, run_status
from yamame.tracking.tracker import EXPERIMENT, PARENT_VARIABLE, TRACKING_URI

_open_sweeps: list[MLflowRun] = []


class SweepParent(Callback):
    """Opens a parent run for a multirun whose tracker is MLflow.

    Args:
        tracker: Key of the tracker in the configuration.
        metric: Name of the jobs' objective in the parent run; its step is the number of the job.
    """

    def __init__(self, *, tracker: str = "logger", metric: str = "objective"):
        self.tracker = tracker
        self.metric = metric

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Opens the parent run."""
        node = OmegaConf.select(config, self.tracker)
        if node is None or not str(node.get("_target_", "")).endswith(".MLflowTracker"):
            return
        overrides = " ".join(config.hydra.overrides.task)
        run = MLflowRun.create(
            absolute_uri(node.get("tracking_uri", TRACKING_URI)),
            node.get("experiment", EXPERIMENT),
            name=f"sweep {overrides}"[:100],
            tags={"sweep": overrides},
        )
        _open_sweeps.append(run)
        os.environ[PARENT_VARIABLE] = run.run_id

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Records a job's objective."""
        if not _open_sweeps or job_return.status is not JobStatus.COMPLETED:
            return
        value = job_return.return_value
        if isinstance(value, int | float) and math.isfinite(value):
            point = Point(self.metric, value, int(config.hydra.job.num), int(time.time() * 1000))
            _open_sweeps[-1].log_points([point])

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Closes the parent run."""
        _close("FINISHED")


def close_sweep(error: BaseException | None) -> None:
    """Closes a parent run that is still open, for the sweep did not end by itself."""
    _close(run_status(error))


def _close(status: Status) -> None:
    os.environ.pop(PARENT_VARIABLE, None) if _open_sweeps else None
    while _open_sweeps:
        _open_sweeps.pop().finish(status)
