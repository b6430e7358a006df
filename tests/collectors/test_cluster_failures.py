"""Failures of Ray and of its actors, with a stand-in for Ray that plays in this process."""

import itertools
import pickle
from collections import Counter
from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from yamame.checks import ArgumentError, UsageError
from yamame.collectors import RayCollector
from yamame.collectors.cluster import actor_seeds
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

    def __init__(self, *failures):
        self.failures = list(failures)  # of its starts
        self.is_started = False
        self.num_shutdowns = 0
        self.dying = Counter()  # how often each actor dies instead of answering
        self.spawned = []  # the options of each actor

    def is_initialized(self):
        return self.is_started

    def init(self, **options):
        if self.failures:
            raise self.failures.pop(0)
        self.is_started = True

    def shutdown(self):
        self.num_shutdowns += 1
        self.is_started = False

    def put(self, value):
        return value

    def remote(self, kind):
        return self

    def options(self, **options):
        self.spawned.append(options)
        return SimpleNamespace(remote=self._actor)

    def _actor(self, config, modules):
        from yamame.collectors.worker import RolloutWorker

        worker = RolloutWorker(config, modules)
        # The seed of an actor has its number, and how often it was replaced.
        pairs = itertools.product(range(4), range(8))
        index = next(i for i, before in pairs if config.seed == actor_seeds(7, 0, i, before)[0])

        def method(name):
            return SimpleNamespace(
                remote=lambda *arguments: Task(getattr(worker, name), arguments, index)
            )

        return SimpleNamespace(play=method("play"), close=method("close"))

    def wait(self, tasks, num_returns=1, timeout=None):
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, task):
        if self.dying[task.actor] > 0:
            self.dying[task.actor] -= 1
            raise ConnectionResetError("the machine is gone")
        try:
            return task.function(*task.arguments)
        except Exception as error:
            raise TaskError(error) from None

    def cancel(self, task):
        pass

    def kill(self, handle):
        pass


class Task:
    def __init__(self, function, arguments, actor):
        self.function = function
        self.arguments = arguments
        self.actor = actor


@pytest.fixture
def build(make_policy, make_shelf, monkeypatch):
    """Makes a collector with a stand-in for Ray."""

    def build(ray, make_env=MAZE, **settings):
        monkeypatch.setattr("yamame.collectors.cluster.import_ray", lambda owner: ray)
        policy = make_policy(MAZE(num_envs=1, seed=0), GRU)
        sizes = {"num_envs": 2, "block_steps": 10, "max_staleness": 40}
        return RayCollector(make_env, policy, make_shelf(), seed=7, **sizes | settings)

    return build


def test_the_stand_in_collects(build):
    ray = Ray()
    collector = build(ray)
    assert ray.is_started  # before a run begins
    assert collector.collect(60).num_steps >= 60
    collector.shutdown()
    assert not ray.is_started


ERRORS = [Exception("The current node\ntimed out"), RuntimeError("x" * 10_000), ValueError()]


@pytest.mark.parametrize("error", ERRORS)
def test_a_ray_that_does_not_start_twice_is_one_line(build, error, capsys):
    ray = Ray(ValueError(), error)
    with pytest.raises(OutsideError, match=r"^RayCollector: Ray does not start") as raised:
        build(ray)
    assert raised.value.__cause__ is error
    assert not isinstance(raised.value, UsageError)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500
    assert ray.num_shutdowns == 2  # what has started is ended
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("error", ERRORS)
def test_a_ray_that_does_not_start_once_is_started_again_with_a_line(build, error, capsys):
    ray = Ray(error)
    assert build(ray).collect(20).num_steps >= 20
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("RayCollector: Ray does not start, once more")


def test_an_address_where_nothing_answers_is_tried_once(build):
    ray = Ray(ConnectionError("nothing there"), ValueError("a second start"))
    with pytest.raises(ArgumentError, match="nothing there"):
        build(ray, address="10.0.0.1:6379")
    assert ray.num_shutdowns == 0


ACTORS = {"num_workers": 4, "num_envs": 4, "max_staleness": 40}


def test_actors_are_spread_over_machines(build):
    ray = Ray()
    build(ray, **ACTORS).collect(40)
    assert [options["scheduling_strategy"] for options in ray.spawned] == ["SPREAD"] * 4


def test_actors_that_die_with_their_machine_count_as_one_death(build):
    ray = Ray()
    collector = build(ray, **ACTORS)
    ray.dying.update({0: 3, 1: 3, 2: 3, 3: 3})
    assert collector.collect(40).num_steps >= 40
    assert collector.metrics()["lost_actors"] == 12


def test_an_actor_that_dies_a_fourth_time_before_any_answer_ends_the_run(build):
    ray = Ray()
    collector = build(ray, **ACTORS)
    ray.dying.update({0: 4, 1: 4, 2: 4, 3: 4})
    with pytest.raises(OutsideError, match=r"actor \d died 4 times.*the machine is gone"):
        collector.collect(40)


def test_an_answer_of_another_actor_forgives_deaths(build):
    ray = Ray()
    collector = build(ray, **ACTORS)
    ray.dying.update({0: 6})
    assert collector.collect(400).num_steps >= 400
    assert collector.metrics()["lost_actors"] == 6


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
