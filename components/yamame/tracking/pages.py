"""Addresses of MLflow's web pages, and the view that is stored with an experiment."""

import json
from pathlib import Path
from urllib.parse import urlsplit

_LOCAL = "http://127.0.0.1:5000"
_VIEW = "yamame"
# By default MLflow opens an experiment as one of generative AI, with the runs hidden.
_MACHINE_LEARNING = "workflowType=machine_learning"
SCORE_COLUMNS = ("eval/success_mean", "eval/return_mean")
COST_COLUMNS = ("cost/env_steps", "cost/cpu_s")
_COLUMNS = (*SCORE_COLUMNS, *COST_COLUMNS, "objective_best", "objective_mean")

EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    "mlflow.note.content": (
        "Runs of Yamame. A sweep is a parent run: its metrics are means over its jobs, `best/` has "
        "the best job of each, and its jobs are nested inside. `eval/` has results on held-out "
        "tasks, `train/` means over updates, `cost/` time and steps."
    ),
    f"mlflow.sharedViewState.{_VIEW}": json.dumps(
        {
            "searchFilter": "",
            "orderByKey": "attributes.start_time",
            "orderByAsc": False,
            "startTime": "ALL",
            "lifecycleFilter": "Active",
            "datasetsFilter": [],
            "modelVersionFilter": "All Runs",
            # By default the columns are kept by the reader's browser.
            "selectedColumns": [f"metrics.`{name}`" for name in _COLUMNS],
            "columnOrder": [],
            "columnWidths": {},
            "runsExpanded": {},
            "runsPinned": [],
            "runsHidden": [],
            "runsVisibilityMap": {},
            "runsHiddenMode": "FIRST_10_RUNS",
            "viewMaximized": False,
            "runListHidden": False,
            "isAccordionReordered": False,
            "useGroupedValuesInCharts": True,
            "hideEmptyCharts": True,
            "groupBy": None,
            "groupsExpanded": {},
            "autoRefreshEnabled": True,
            "globalLineChartConfig": {
                "xAxisKey": "step",
                "lineSmoothness": 0,
                "selectedXAxisMetricKey": "",
            },
        }
    ),
}
"""Tags of a new experiment: its kind, a description, and a view with the important columns."""


def run_address(tracking_uri: str, experiment_id: str, run_id: str) -> str:
    """Return the address of a run's page, once `ui_command` serves the store.

    >>> run_address("http://host:5000", "1", "ab")
    'http://host:5000/#/experiments/1/runs/ab?workflowType=machine_learning'
    """
    page = f"{_server(tracking_uri)}/#/experiments/{experiment_id}/runs/{run_id}"
    return f"{page}?{_MACHINE_LEARNING}"


def experiment_address(tracking_uri: str, experiment_id: str) -> str:
    """Return the address of the table of an experiment's runs, with the important columns.

    >>> experiment_address("sqlite:////home/me/mlflow.db", "1")
    'http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=yamame'
    """
    page = f"{_server(tracking_uri)}/#/experiments/{experiment_id}/runs"
    return f"{page}?{_MACHINE_LEARNING}&viewStateShareKey={_VIEW}"


def ui_command(tracking_uri: str) -> str | None:
    """Return the command that serves a store to a browser; None for a store that is a server.

    >>> ui_command("sqlite:////home/me/mlflow.db")
    'mlflow ui --backend-store-uri sqlite:////home/me/mlflow.db'
    """
    if urlsplit(tracking_uri).scheme in ("http", "https"):
        return None
    default = f"sqlite:///{Path('mlflow.db').resolve()}"
    if tracking_uri == default:
        return "mlflow ui"
    return f"mlflow ui --backend-store-uri {tracking_uri}"


def _server(tracking_uri: str) -> str:
    if urlsplit(tracking_uri).scheme in ("http", "https"):
        return tracking_uri.rstrip("/")
    return _LOCAL
