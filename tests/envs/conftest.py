import pytest
import torch
from torchrl.data import Bounded
from torchrl.envs import EnvBase
from yamame_envs import (
    ActiveTMaze,
    Bandits,
    BatchedEnv,
    DarkKeyDoor,
    MazeRunner,
    MetaFrozenLake,
    PackageDelivery,
    PassiveTMaze,
    RepeatedTrials,
    Wind,
    XLand,
)
from yamame_envs.streams import fold, integers, uniform


class Drift(BatchedEnv):
    """Push a point to a hidden place: continuous actions, and a length of the episode that is
    drawn.
    """

    def __init__(self, *, num_envs=1, time_limit=9, seed=0, device="cpu"):
        low, high = torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 4.0])
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            action=Bounded(low, high),
            observations={
                "observation": Bounded(
                    -100.0, 100.0, shape=(2,), dtype=torch.float32, device=device
                )
            },
            seed=seed,
            device=device,
        )

    def draw_tasks(self, task_seed):
        return {
            "hidden": uniform(fold(task_seed, 0), 2).float(),
            "stop": integers(fold(task_seed, 1), 12),
        }

    def begin(self, task):
        return {"place": torch.zeros_like(task["hidden"])}

    def transition(self, task, state, action):
        place = state["place"] + action
        reward = -(place - task["hidden"]).norm(dim=-1, keepdim=True)
        return {"place": place}, reward, state["step_index"] >= task["stop"].unsqueeze(-1)

    def observe(self, task, state):
        return {"observation": state["place"].clone()}


def _maze(**settings):
    return MazeRunner(**{"size": 5, "num_goals": 2, "min_goals": 1, "time_limit": 13, **settings})


def _shuffled_maze(**settings):
    return _maze(randomize_actions=True, **settings)


def _corridor(**settings):
    return PassiveTMaze(**{"length": 5, **settings})


def _fetch(**settings):
    return ActiveTMaze(**{"length": 4, **settings})


def _delivery(**settings):
    return PackageDelivery(
        **{"length": 2, "min_packages": 1, "max_packages": 1, "time_limit": 14, **settings}
    )


def _dark(**settings):
    return DarkKeyDoor(**{"size": 2, "trial_limit": 4, "time_limit": 11, **settings})


def _dark_with_reset_steps(**settings):
    return _dark(attempts="reset_step", light=True, randomize_actions=True, **settings)


def _wind(**settings):
    return Wind(**{"time_limit": 7, "goal_radius": 0.8, **settings})


def _lake(**settings):
    return MetaFrozenLake(**{"size": 2, "num_trials": 3, **settings})


def _hard_lake(**settings):
    return MetaFrozenLake(**{"size": 3, "num_trials": 2, "hard": True, "slip": 0.1, **settings})


def _bandits(**settings):
    return Bandits(**{"time_limit": 7, "num_arms": 3, **settings})


def _xland(**settings):
    return XLand(**{"size": 5, "num_trials": 2, "trial_limit": 6, **settings})


def _xland_with_rules_and_doors(**settings):
    level = {"depth": 1, "prune": 0.6}
    rooms = {"rooms": "R2", "size": 5, "view_size": 3}
    return XLand(**{**rooms, "level": level, "num_trials": 2, "trial_limit": 6, **settings})


def _xland_with_reset_steps(**settings):
    return _xland(trial_end="reset_step", **settings)


def _twin(kind):
    """The same in the environment that shows what is hidden."""
    return lambda **settings: kind(observable=True, **settings)


KINDS = {
    "maze": _maze,
    "shuffled": _shuffled_maze,
    "drift": Drift,
    "delivery": _delivery,
    "lake": _lake,
    "hard lake": _hard_lake,
    "corridor": _corridor,
    "fetch": _fetch,
    "dark": _dark,
    "dark, reset steps": _dark_with_reset_steps,
    "wind": _wind,
    "bandits": _bandits,
    "xland": _xland,
    "xland, rules": _xland_with_rules_and_doors,
    "xland, reset steps": _xland_with_reset_steps,
    **{
        f"{name}, twin": _twin(kind)
        for name, kind in (
            ("shuffled", _shuffled_maze),
            ("delivery", _delivery),
            ("hard lake", _hard_lake),
            ("xland, rules", _xland_with_rules_and_doors),
        )
    },
}
TRIALS = {
    "trials": lambda **settings: RepeatedTrials(_maze(**settings), num_trials=2),
    "trials, horizon": lambda **settings: RepeatedTrials(
        _lake(**settings), num_trials=None, horizon=17
    ),
    "trials of trials": lambda **settings: RepeatedTrials(
        RepeatedTrials(_delivery(**settings), num_trials=2), num_trials=2, num_warmup=1
    ),
}
FIXED_LENGTH = {"corridor", "fetch", "dark", "dark, reset steps", "wind", "bandits"}
"""Kinds of which all episodes have the same number of steps."""


def _actions_of(env, steps, seed=0):
    """Actions [steps, N, ...] such that row i's do not depend on the number of rows."""
    rows = torch.arange(env.batch_size[0])
    drawn = []
    for t in range(steps):
        key = fold(torch.tensor(seed), rows, t)
        spec = env.action_spec
        if hasattr(spec, "n"):
            drawn.append(integers(key, int(spec.n)))
        else:
            share = uniform(key, spec.shape[-1]).float()
            drawn.append(spec.space.low + share * (spec.space.high - spec.space.low))
    return drawn


def _play(env, steps, *, td=None, seed=0, fused=True, start=0):
    """Returns the list of full timesteps of a continuing rollout and the timestep after it."""
    td = env.reset() if td is None else td
    step = env._step_and_maybe_reset if fused else lambda td: EnvBase._step_and_maybe_reset(env, td)
    seen = []
    for action in _actions_of(env, start + steps, seed)[start:]:
        td.set("action", action)
        done, td = step(td)
        seen.append(done.clone())
    return seen, td


def _same(a, b):
    """Equality of all entries, bit for bit."""
    assert set(a.keys(True, True)) == set(b.keys(True, True))
    for key in a.keys(True, True):
        assert a[key].dtype == b[key].dtype, key
        assert torch.equal(a[key], b[key]), key


def _different(a, b):
    return any(not torch.equal(a[key], b[key]) for key in a.keys(True, True))


@pytest.fixture(params=KINDS)
def kind(request):
    """Every kind of environment."""
    return request.param


@pytest.fixture
def number(kind):
    """The number of a kind among all."""
    return list(KINDS).index(kind)


@pytest.fixture
def make(kind):
    """Builds an environment of every kind."""
    return KINDS[kind]


@pytest.fixture(params=[*KINDS, *TRIALS])
def native(request):
    """Builds an environment of every kind, and repeated trials in some."""
    return {**KINDS, **TRIALS}[request.param]


@pytest.fixture(
    params=[
        "shuffled",
        "drift",
        "hard lake",
        "fetch",
        "wind",
        "bandits",
        "xland, rules",
        "trials, horizon",
        "trials of trials",
    ]
)
def kind_of_each_class(request):
    """Builds an environment of every class, but for those that differ from another in their rules
    alone.

    Deliveries are in trials.
    """
    return {**KINDS, **TRIALS}[request.param]


@pytest.fixture(
    params=["shuffled, twin", "drift", "delivery", "hard lake", "corridor", "dark, reset steps"]
)
def inner(request):
    """Builds environments that differ in what a wrapper may see of them: goals, attempts, ends,
    actions.
    """
    return KINDS[request.param]


@pytest.fixture
def desynchronised(kind):
    """Whether rows of this kind end at different times."""
    return kind not in FIXED_LENGTH


@pytest.fixture
def maze():
    return _maze


@pytest.fixture
def corridor():
    return _corridor


@pytest.fixture
def drift():
    return Drift


@pytest.fixture
def actions_of():
    return _actions_of


@pytest.fixture
def play():
    return _play


@pytest.fixture
def same():
    return _same


@pytest.fixture
def different():
    return _different
