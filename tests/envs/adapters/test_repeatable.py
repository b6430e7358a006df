"""An environment that its seed does not decide is reported; one that it decides is not."""

import random
import sys
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from yamame.system.messages import begin_lines, end_lines
from yamame_envs import Gym, Workers
from yamame_envs.adapters import repeatable

GLOBAL = "global random generator"
LEFT = "leaves something"
INSTANCE = "depends on the instance"


class Pure(gymnasium.Env):
    """Walk whose noise comes from the seed alone."""

    observation_space = spaces.Dict(
        at=spaces.Box(-np.inf, np.inf, (2,), np.float64), flag=spaces.Discrete(2)
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.normal(size=2)
        return self._seen(), {}

    def step(self, action):
        self.at = self.at + action + self.np_random.normal(size=2)
        return self._seen(), float(self.at[0]), bool(self.at[1] > 3), False, {}

    def _seen(self):
        return {"at": self.at, "flag": int(self.at[0] > 0)}  # the same array, written again below


class WithNaN(Pure):
    def _seen(self):
        return {"at": np.array([np.nan, 1.0]), "flag": 0}


class NumpyNoise(Pure):
    def _seen(self):
        return {"at": np.random.random(2), "flag": 0}


class PythonNoiseInStep(Pure):
    def step(self, action):
        observation, reward, *ends = super().step(action)
        observation["at"] = observation["at"] + random.random()
        return observation, reward, *ends


class HiddenChoice(Pure):
    """Shows its choice, which may be the same again, long after the reset."""

    def reset(self, *, seed=None, options=None):
        self.mark = random.choice([0, 1])
        return super().reset(seed=seed)


class SeededChoice(Pure):
    """Seeds the generator before the only draw of an episode."""

    def reset(self, *, seed=None, options=None):
        random.seed(seed)
        self.mark = random.choice([0, 1])
        return super().reset(seed=seed)


class TorchNoiseInReward(Pure):
    def step(self, action):
        observation, _, *ends = super().step(action)
        return observation, float(torch.rand(1)), *ends


class SeedsTheGlobalGenerator(Pure):
    """Repeats itself alone, and not where another environment draws in between."""

    def reset(self, *, seed=None, options=None):
        np.random.seed(seed)
        return super().reset(seed=seed)

    def step(self, action):
        observation, reward, *ends = super().step(action)
        observation["at"] = np.random.random(2)
        return observation, reward, *ends


class Leftover(Pure):
    steps = 0

    def step(self, action):
        self.steps += 1
        observation, reward, *ends = super().step(action)
        return observation, reward + self.steps, *ends


class OwnGenerator(Pure):
    def __init__(self):
        self.generator = np.random.default_rng()

    def step(self, action):
        observation, _, *ends = super().step(action)
        return observation, float(self.generator.random()), *ends


class EndsByItsHistory(Pure):
    steps = 0

    def step(self, action):
        self.steps += 1
        observation, reward, _, *rest = super().step(action)
        return observation, reward, self.steps % 7 == 0, *rest


class OfTheInstance(Pure):
    made = 0

    def __init__(self):
        type(self).made += 1
        self.number = self.made

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + self.number, *rest


class BreaksLater(Pure):
    def step(self, action):
        raise ZeroDivisionError


class OnlyOnce(NumpyNoise):
    """Cannot be made twice in a process."""

    made = False

    def __init__(self):
        if self.made:
            raise RuntimeError("already open")
        type(self).made = True


CAUSES = {
    Pure: None,
    WithNaN: None,
    BreaksLater: None,
    NumpyNoise: GLOBAL,
    HiddenChoice: "global generator of random;",
    SeededChoice: None,
    PythonNoiseInStep: GLOBAL,
    TorchNoiseInReward: GLOBAL,
    SeedsTheGlobalGenerator: GLOBAL,
    Leftover: LEFT,
    OwnGenerator: LEFT,
    EndsByItsHistory: LEFT,
    OfTheInstance: INSTANCE,
    OnlyOnce: GLOBAL,
}
PLACES = {
    PythonNoiseInStep: "the observation after step 1",
    TorchNoiseInReward: "the reward after step 1",
    NumpyNoise: "the observation after reset",
    EndsByItsHistory: "the end after step",
}


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    module = ModuleType("repeating")
    monkeypatch.setitem(sys.modules, "repeating", module)
    before = dict(gymnasium.registry)
    for kind in CAUSES:
        setattr(module, kind.__name__, kind)
        gymnasium.register(f"{kind.__name__}-v0", entry_point=kind, max_episode_steps=50)
    monkeypatch.setattr(repeatable, "_checked", {})
    yield
    end_lines()
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


@pytest.mark.parametrize("kind", CAUSES)
def test_what_the_seed_does_not_decide_is_reported_once_with_its_cause(kind, capsys):
    for _ in range(2):
        Gym(id=f"{kind.__name__}-v0") if kind is not OnlyOnce else _make_once()
    lines = capsys.readouterr().err.splitlines()
    if CAUSES[kind] is None:
        assert lines == []
        return
    (line,) = lines
    assert f"Gym('{kind.__name__}-v0')" in line
    assert CAUSES[kind] in line
    assert PLACES.get(kind, "") in line


def _make_once():
    OnlyOnce.made = False
    return Gym(id="OnlyOnce-v0")


def test_every_run_reports_it_again_and_once(capsys):
    Gym(id="NumpyNoise-v0")
    for _ in range(2):
        begin_lines()
        for _ in range(2):
            Gym(id="NumpyNoise-v0")
        end_lines()
    assert capsys.readouterr().err.count("not reproducible") == 3


@pytest.mark.parametrize("kind", [NumpyNoise, SeedsTheGlobalGenerator, TorchNoiseInReward])
def test_the_global_generators_keep_their_state(kind):
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    Gym(id=f"{kind.__name__}-v0", success=None)
    assert random.getstate() == states[0]
    np.testing.assert_equal(np.random.get_state(), states[1])
    assert torch.equal(torch.get_rng_state(), states[2])


def test_slow_environments_and_those_in_worker_processes_are_not_played(monkeypatch, capsys):
    Gym(id="NumpyNoise-v0", success=None, workers=Workers(num_processes=1)).close()
    assert capsys.readouterr().err == ""
    now = iter(range(0, 10_000, 3))
    monkeypatch.setattr(repeatable.time, "monotonic", lambda: next(now))
    Gym(id="NumpyNoise-v0", success=None)
    assert capsys.readouterr().err == ""
