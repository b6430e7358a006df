"""A trained agent as an MLflow model, to be registered and served by what MLflow has for that.

The model takes named arrays of N sessions: what the agent observes, and ``session`` (int64, a
number of your own), ``reward`` (float32), ``done`` and ``trial_start`` (bool), all ``[N]``. It
answers with the actions ``[N, ...]``. A session begins when its number is first seen; of more than
`MOST_SESSIONS` the one that was asked for longest ago is forgotten.
"""

import platform
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from yamame.checks import UsageError
from yamame.deploy.load import load
from yamame.system.installed import version_of

MOST_SESSIONS = 10_000
_AGENT = "data/agent"  # where MLflow puts data of a model
_NUMBERS = {"session": "int64", "reward": "float32", "done": "bool", "trial_start": "bool"}


def save_model(agent: Any, path: Path) -> Path:
    """Writes the folder of an MLflow model; it is loaded by ``mlflow.pyfunc.load_model``.

    Args:
        agent: A `yamame.deploy.DeployedAgent`.
        path: A folder that is not there or empty.

    Raises:
        UsageError: There is something at this place.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"save_model: {path} must be new or empty, it holds other files")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # MLflow warns of its own type hints, and of what it is not given
        _write(agent, path)
    return path


def _write(agent: Any, path: Path) -> None:
    import mlflow.pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    entries = {
        ".".join([key] if isinstance(key, str) else key): v
        for key, v in agent.observation_spec.items(True, True)
    }
    inputs: list[Any] = [
        TensorSpec(_dtype(spec), (-1, *spec.shape), name) for name, spec in entries.items()
    ]
    inputs += [TensorSpec(np.dtype(dtype), (-1,), name) for name, dtype in _NUMBERS.items()]
    outputs: list[Any] = [TensorSpec(_dtype(agent.action_spec), (-1, *agent.action_spec.shape))]
    model = Model(signature=ModelSignature(Schema(inputs), Schema(outputs)))
    path.mkdir(parents=True, exist_ok=True)
    agent.save_pretrained(path / _AGENT)

    # Not `mlflow.pyfunc.save_model`, which looks through all installed packages for the owners of
    # two requirements and copies a lock file that it finds in the present directory.
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
    """Write what MLflow installs before it loads the model elsewhere."""
    python = platform.python_version()
    requirements = [f"{package}=={version_of(package)}" for package in ("mlflow", "yamame")]
    (path / "requirements.txt").write_text("\n".join(requirements) + "\n")

    conda = ["name: mlflow-env", "channels:", "- conda-forge", "dependencies:"]
    conda += [f"- python={python}", "- pip", "- pip:"]
    conda += [f"  - {requirement}" for requirement in requirements]
    (path / "conda.yaml").write_text("\n".join(conda) + "\n")

    virtualenv = [f"python: {python}", "build_dependencies:", "- pip", "- setuptools", "- wheel"]
    virtualenv += ["dependencies:", "- -r requirements.txt"]
    (path / "python_env.yaml").write_text("\n".join(virtualenv) + "\n")


def _dtype(spec: Any) -> np.dtype[Any]:
    return np.dtype(str(spec.dtype).removeprefix("torch."))


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> "ServedAgent":
    """Load a model for MLflow; ``model_config`` holds options of `yamame.load`."""
    return ServedAgent(load(path, **(model_config or {})))


class ServedAgent:
    """An agent behind MLflow's ``predict``.

    Args:
        agent: A `yamame.deploy.DeployedAgent`.
    """

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self._asked: dict[int, None] = {}  # the session that was asked for longest ago comes first

    def get_raw_model(self) -> Any:
        """The agent, as MLflow asks for it."""
        return self.agent

    def predict(
        self, model_input: Mapping[str, npt.NDArray[Any]], params: Any = None
    ) -> npt.NDArray[Any]:
        """The actions ``[N, ...]`` of N sessions; see the module."""
        given = {name: np.asarray(model_input[name]) for name in _NUMBERS}
        sessions = given["session"].tolist()
        new = [session for session in sessions if session not in self._asked]
        if new:
            self.agent.reset(new)
        observation: dict[str, Any] = {}
        for key in self.agent.observation_spec.keys(True, True):
            parts, place = [key] if isinstance(key, str) else list(key), observation
            for part in parts[:-1]:
                place = place.setdefault(part, {})
            place[parts[-1]] = model_input[".".join(parts)]
        reward = np.where(np.isin(given["session"], new), 0.0, given["reward"])
        flags = {name: given[name] for name in ("done", "trial_start")}
        actions = self.agent.act(observation, reward=reward, sessions=sessions, **flags)
        self._remember(sessions)
        return actions

    def _remember(self, sessions: list[int]) -> None:
        for session in sessions:
            self._asked.pop(session, None)
            self._asked[session] = None
        over = list(self._asked)[: max(0, len(self._asked) - MOST_SESSIONS)]
        if over:
            self.agent.forget(over)
        for session in over:
            del self._asked[session]
