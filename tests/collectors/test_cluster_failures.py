"""Failures of Ray and of its actors, with a stand-in for Ray that plays in this process."""

import pickle
from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from yamame.checks import UsageError
from yamame.collectors import RayCollector
from yamame.system.messages import OutsideError
from yamame.system.user_code import UserCodeError
from yamame.trajectory import GRUEncoder
from yamame_envs import HostedEnv, MazeRunner

MAZE = partial(MazeRunner, size=7, num_goals=1, time_limit=15)
GRU = partial(GRUEncoder, hidden_size=8, out_features=8)


class TaskError(Exception):
    """Ray's error of a task; its cause has come through pickle."""

    def __init__(self, cause):
        super().__init__("a long\ntraceback")
        self.cause = pickle.loads(pickle.dumps(cause))


class Ray:
    """Ray in this process: a task runs when its result is asked for."""

    exceptions = SimpleNamespace(RayTaskError=TaskError, RayError=ConnectionResetError)

    def __init__(self, failure=None):
        self.failure = failure
        self.is_started = False

    def is_initialized(self):
        return self.is_started

    def init(self, **options):
        if self.failure is not None:
            raise self.failure
        self.is_started = True

    def shutdown(self):
        self.is_started = False

    def put(self, value):
        return value

    def remote(self, kind):
        return self

    def options(self, **options):
        return SimpleNamespace(remote=self._actor)

    def _actor(self, config, modules):
        from yamame.collectors.worker import RolloutWorker

        worker = RolloutWorker(config, modules)

        def method(name):
            return SimpleNamespace(remote=lambda *arguments: Task(getattr(worker, name), arguments))

        return SimpleNamespace(play=method("play"), close=method("close"))

    def wait(self, tasks, num_returns=1, timeout=None):
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, task):
        try:
            return task.function(*task.arguments)
        except Exception as error:
            raise TaskError(error) from None

    def cancel(self, task):
        pass

    def kill(self, handle):
        pass


class Task:
    def __init__(self, function, arguments):
        self.function = function
        self.arguments = arguments


@pytest.fixture
def build(make_policy, make_shelf, monkeypatch):
    """Makes a collector with a stand-in for Ray."""

    def build(ray, make_env=MAZE):
        monkeypatch.setattr("yamame.collectors.cluster.import_ray", lambda owner: ray)
        policy = make_policy(MAZE(num_envs=1, seed=0), GRU)
        sizes = {"num_envs": 2, "block_steps": 10, "max_staleness": 40}
        return RayCollector(make_env, policy, make_shelf(), seed=7, **sizes)

    return build


def test_the_stand_in_collects(build):
    ray = Ray()
    collector = build(ray)
    assert ray.is_started  # before a run begins
    assert collector.collect(60).num_steps >= 60
    collector.shutdown()
    assert not ray.is_started


@pytest.mark.parametrize(
    "error", [Exception("The current node\ntimed out"), RuntimeError("x" * 10_000), ValueError()]
)
def test_a_ray_that_does_not_start_is_one_line(build, error):
    with pytest.raises(OutsideError, match=r"^RayCollector: Ray does not start: ") as raised:
        build(Ray(error))
    assert raised.value.__cause__ is error
    assert not isinstance(raised.value, UsageError)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


class LocalError(Exception):
    """An error that cannot be sent to another process."""

    def __reduce__(self):
        raise TypeError("local")


class Broken(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        raise LocalError("no map")  # fails


def make_broken(num_envs, seed):
    return HostedEnv(Broken, num_envs=num_envs, seed=seed)


def make_nothing(num_envs, seed):
    raise LocalError("no env")


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (make_broken, ["actor 0 failed: HostedEnv: the environment failed in env 0", "no map"]),
        (make_nothing, ["actor 0 failed: ", "make_nothing", "no env"]),
    ],
)
def test_an_error_of_user_code_in_an_actor_has_its_place(build, make, parts):
    collector = build(Ray(), make)
    with pytest.raises(UserCodeError) as raised:
        collector.collect(20)
    error = raised.value
    assert error.file == __file__
    assert all(part in str(error) for part in parts)
    assert f"LocalError: {parts[-1]} ({__file__}:{error.line})" in str(error)
    assert "\n" not in str(error)
