"""Write components/yamame/tracking/mlflow_schema.sql, the tables of an empty MLflow store.

    python tools/make_mlflow_schema.py

A new store is created from this file, which is much faster than MLflow's migrations. Run it when
the version of MLflow in uv.lock changes.
"""

import sqlite3
import tempfile
from pathlib import Path

import mlflow
from mlflow.tracking import MlflowClient

TARGET = Path(__file__).parents[1] / "components/yamame/tracking/mlflow_schema.sql"


def make_schema() -> str:
    """Return the statements that create the tables of the installed version of MLflow."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlflow.db"
        MlflowClient(f"sqlite:///{path}").search_experiments()
        database = sqlite3.connect(path)
        # MLflow creates its default experiment itself, with the place of its files.
        database.execute("delete from experiments")
        statements = list(database.iterdump())
        database.close()

    made_by = f"-- Tables of an empty MLflow store, made by MLflow {mlflow.__version__}"
    return "\n".join([f"{made_by} (tools/make_mlflow_schema.py).", *statements]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(make_schema())
