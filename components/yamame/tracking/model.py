"""Former module of `yamame.deploy.mlflow_model`, which saved MLflow models name as their loader."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> Any:
    return import_module("yamame.deploy.mlflow_model")._load_pyfunc(path, model_config)
