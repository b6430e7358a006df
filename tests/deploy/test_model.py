"""Models loaded by MLflow decide as their agents, and enforce their signature."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from yamame.checks import UsageError
from yamame.deploy import DeployedAgent
from yamame.deploy import mlflow_model as model


@pytest.fixture(scope="module")
def mlflow():
    """Return MLflow, imported without its many warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow.exceptions
        import mlflow.pyfunc

        yield mlflow


@pytest.fixture(scope="module")
def path(maze, tmp_path_factory, mlflow):
    """Return the folder of a model."""
    return model.save_model(
        DeployedAgent(maze.saved, greedy=True), tmp_path_factory.mktemp("models") / "maze"
    )


def asked(seen, sessions, reward=None, done=None):
    num = len(sessions)
    return {
        **seen,
        "session": np.array(sessions, np.int64),
        "reward": np.zeros(num, np.float32) if reward is None else np.array(reward, np.float32),
        "done": np.zeros(num, bool) if done is None else np.array(done),
        "trial_start": np.zeros(num, bool),
    }


def test_a_model_decides_as_its_agent(maze, path, mlflow, observations):
    served, agent = mlflow.pyfunc.load_model(str(path)), DeployedAgent(maze.saved, greedy=True)
    agent.reset(sessions=[4, 2])
    told = []
    for t in range(30):
        seen, reward, done = observations(agent, 2, seed=t), [0.1 * t, -0.1], [t == 9, t == 20]
        expected = agent.act(seen, reward=None if t == 0 else reward, done=done, sessions=[4, 2])
        answer = served.predict(asked(seen, [4, 2], reward, done))
        np.testing.assert_array_equal(answer, expected)
        told.append(answer)
    assert len(np.unique(told)) > 1
    named = [entry.name for entry in served.metadata.signature.inputs.inputs]
    assert named == ["observation", "goal", "session", "reward", "done", "trial_start"]
    assert served.metadata.signature.outputs.inputs[0].type == np.dtype("int64")


def test_inputs_that_do_not_fit_the_signature_are_refused(path, mlflow, observations, maze):
    served, seen = mlflow.pyfunc.load_model(str(path)), observations(DeployedAgent(maze.saved), 1)
    good = asked(seen, [0])
    assert served.predict(good).shape == (1,)
    for wrong in (
        {key: value for key, value in good.items() if key != "goal"},
        good | {"observation": np.zeros((1, 5), np.float32)},
        good | {"session": np.array(["a"])},
    ):
        with pytest.raises(
            mlflow.exceptions.MlflowException, match=r"(?i)schema|shape|type|missing"
        ):
            served.predict(wrong)


def test_options_are_chosen_when_the_model_is_loaded(path, mlflow, maze):
    config = {"greedy": False, "gamma": 0.9}
    agent = mlflow.pyfunc.load_model(str(path), model_config=config).get_raw_model()
    assert (agent.greedy, agent.gamma) == (False, 0.9)


def test_the_least_recently_used_session_is_forgotten(maze, observations, monkeypatch):
    monkeypatch.setattr(model, "MOST_SESSIONS", 3)
    agent = DeployedAgent(maze.saved, greedy=True)
    served, seen = model.ServedAgent(agent), observations(agent, 1)
    for session in (1, 2, 3, 1, 4):
        served.predict(asked(seen, [session], [1.0]))
    assert sorted(agent.sessions) == [1, 3, 4]


def test_a_folder_with_files_is_refused(maze, tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"must be new or empty, it holds other files"):
        model.save_model(DeployedAgent(maze.saved), tmp_path)


def test_the_model_names_what_mlflow_installs_before_it_loads_the_model(path, mlflow):
    needed = Path(mlflow.pyfunc.get_model_dependencies(str(path)))
    lines = needed.read_text().splitlines()
    assert [line.partition("==")[0] for line in lines] == ["mlflow", "yamame"]
    from mlflow.utils.environment import _PythonEnv

    virtualenv = _PythonEnv.from_yaml(path / "python_env.yaml")
    assert virtualenv.dependencies == ["-r requirements.txt"]
    conda = mlflow.pyfunc.get_model_dependencies(str(path), format="conda")
    assert conda.endswith("conda.yaml")
