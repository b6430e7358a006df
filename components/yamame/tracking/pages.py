"""MLflow's web pages: the way there, and what they show of an experiment.

MLflow opens an experiment as one of generative AI, with the runs hidden, unless its address asks
for the view of machine learning. Which columns its table of runs has is kept by the reader's
browser, unless the address names a view that is stored with the experiment.
"""

import json
from pathlib import Path
from urllib.parse import urlsplit

_LOCAL = "http://127.0.0.1:5000"
_VIEW = "yamame"
_COLUMNS = (
    "eval/success_mean",
    "eval/return_mean",
    "cost/env_steps",
    "cost/cpu_s",
    "objective_best",
    "objective_mean",
)

EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    "mlflow.note.content": (
        "Runs of Yamame. A sweep is a parent run: its metrics are the best and the mean objective of its groups, its "
        "jobs are nested inside. `eval/` is of held-out tasks, `train/` of updates, `cost/` says what was spent."
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
"""What a new experiment is given: its kind, a description, and the columns that matter as a
view.
"""


def run_address(tracking_uri: str, experiment_id: str, run_id: str) -> str:
    """Where a browser shows a run, once `ui_command` serves the store.

    >>> run_address("http://host:5000", "1", "ab")
    'http://host:5000/#/experiments/1/runs/ab?workflowType=machine_learning'
    """
    return f"{_server(tracking_uri)}/#/experiments/{experiment_id}/runs/{run_id}?workflowType=machine_learning"


def experiment_address(tracking_uri: str, experiment_id: str) -> str:
    """Where a browser shows the table of an experiment's runs, with the columns that matter.

    >>> experiment_address("sqlite:////home/me/mlflow.db", "1")
    'http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=yamame'
    """
    page = f"{_server(tracking_uri)}/#/experiments/{experiment_id}/runs"
    return f"{page}?workflowType=machine_learning&viewStateShareKey={_VIEW}"


def ui_command(tracking_uri: str) -> str | None:
    """The command that serves a store to a browser; None for a store that is a server.

    >>> ui_command("sqlite:////home/me/mlflow.db")
    'mlflow ui --backend-store-uri sqlite:////home/me/mlflow.db'
    """
    if urlsplit(tracking_uri).scheme in ("http", "https"):
        return None
    here = f"sqlite:///{Path('mlflow.db').resolve()}"  # where it looks by itself
    return "mlflow ui" if tracking_uri == here else f"mlflow ui --backend-store-uri {tracking_uri}"


def _server(tracking_uri: str) -> str:
    served = urlsplit(tracking_uri).scheme in ("http", "https")
    return tracking_uri.rstrip("/") if served else _LOCAL
