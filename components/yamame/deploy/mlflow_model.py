"""Trained agents as MLflow models, for MLflow's registry and servers.

The inputs are named arrays of N sessions: the observations of the agent, and ``session`` (int64, a
number that the client chooses), ``reward`` (float32), ``done`` and ``trial_start`` (bool), all
``[N]``. The output is the actions ``[N, ...]``. A session begins with the first request that has
its number. With more than `MOST_SESSIONS` sessions, the least recently used one ends.
"""

import platform
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yamame.checks import UsageError
from yamame.deploy.interface import dotted, dtype_name
from yamame.deploy.load import load
from yamame.system.installed import version_of

MOST_SESSIONS = 10_000
_AGENT = "data/agent"  # where MLflow puts data of a model
_NUMBERS = {"session": "int64", "reward": "float32", "done": "bool", "trial_start": "bool"}


def save_model(agent: Any, path: Path) -> Path:
    """Write the folder of an MLflow model, for ``mlflow.pyfunc.load_model``.

    Args:
        agent: A `yamame.deploy.DeployedAgent`.
        path: A new or empty folder.

    Raises:
        UsageError: The folder holds other files.
    """
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty:
        raise UsageError(f"save_model: {path} must be new or empty, it holds other files")
    with warnings.catch_warnings():
        # MLflow warns about its own type hints, and about optional arguments.
        warnings.simplefilter("ignore")
        _write(agent, path)
    return path


def _write(agent: Any, path: Path) -> None:
    import mlflow.pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    # A size of -1 is any number, here of sessions.
    inputs: list[Any] = []
    for key, spec in agent.observation_spec.items(True, True):
        inputs.append(TensorSpec(np.dtype(dtype_name(spec)), (-1, *spec.shape), dotted(key)))
    for name, dtype in _NUMBERS.items():
        inputs.append(TensorSpec(np.dtype(dtype), (-1,), name))
    action_spec = agent.action_spec
    output = TensorSpec(np.dtype(dtype_name(action_spec)), (-1, *action_spec.shape))

    model = Model(signature=ModelSignature(Schema(inputs), Schema([output])))
    path.mkdir(parents=True, exist_ok=True)
    agent.save_pretrained(path / _AGENT)

    # Not `mlflow.pyfunc.save_model`, which searches all installed packages for the owners of two
    # requirements, and copies a lock file if the current directory has one.
    mlflow.pyfunc.add_to_model(
        model,
        loader_module=__name__,
        data=_AGENT,
        conda_env="conda.yaml",
        python_env="python_env.yaml",
        model_config={"greedy": agent.greedy, "gamma": agent.gamma, "seed": 0},
        streamable=False,
    )
    model.save(str(path / "MLmodel"))
    _write_environment(path)


def _write_environment(path: Path) -> None:
    """Write the files with the packages that MLflow installs before it loads the model."""
    python = platform.python_version()
    requirements = [f"mlflow=={version_of('mlflow')}", f"yamame=={version_of('yamame')}"]
    (path / "requirements.txt").write_text("\n".join(requirements) + "\n")

    conda = [
        "name: mlflow-env",
        "channels:",
        "- conda-forge",
        "dependencies:",
        f"- python={python}",
        "- pip",
        "- pip:",
    ]
    conda += [f"  - {requirement}" for requirement in requirements]
    (path / "conda.yaml").write_text("\n".join(conda) + "\n")

    virtualenv = [
        f"python: {python}",
        "build_dependencies:",
        "- pip",
        "- setuptools",
        "- wheel",
        "dependencies:",
        "- -r requirements.txt",
    ]
    (path / "python_env.yaml").write_text("\n".join(virtualenv) + "\n")


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> "ServedAgent":
    """Load a model for MLflow; ``model_config`` holds options of `yamame.load`."""
    return ServedAgent(load(path, **(model_config or {})))


class ServedAgent:
    """Agent with the method ``predict`` that MLflow calls.

    Args:
        agent: A `yamame.deploy.DeployedAgent`.
    """

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        # Keys of a dictionary keep their order; the least recently used session comes first.
        self._used: dict[int, None] = {}

    def get_raw_model(self) -> Any:
        """Return the agent; MLflow calls this method by name."""
        return self.agent

    def predict(
        self, model_input: Mapping[str, npt.NDArray[Any]], params: Any = None
    ) -> npt.NDArray[Any]:
        """Return the actions ``[N, ...]`` of N sessions.

        Args:
            model_input: Arrays of N sessions, see the module.
            params: Ignored; MLflow passes it.
        """
        sessions = np.asarray(model_input["session"]).tolist()
        new = [session for session in sessions if session not in self._used]
        if new:
            self.agent.reset(new)

        observation: dict[str, Any] = {}
        for key in self.agent.observation_spec.keys(True, True):
            *parents, name = [key] if isinstance(key, str) else key
            place = observation
            for parent in parents:
                place = place.setdefault(parent, {})
            place[name] = model_input[dotted(key)]
        # MLflow's signature demands a reward at the first request as well, where there is none.
        is_new = np.isin(sessions, new)
        actions = self.agent.act(
            observation,
            reward=np.where(is_new, 0.0, model_input["reward"]),
            done=np.asarray(model_input["done"]),
            trial_start=np.asarray(model_input["trial_start"]),
            sessions=sessions,
        )
        self._remember(sessions)
        return actions

    def _remember(self, sessions: list[int]) -> None:
        """Move sessions to the end of the order of use, and end those beyond the limit."""
        for session in sessions:
            self._used.pop(session, None)
            self._used[session] = None
        surplus = max(0, len(self._used) - MOST_SESSIONS)
        ended = list(self._used)[:surplus]
        if ended:
            self.agent.forget(ended)
        for session in ended:
            del self._used[session]
