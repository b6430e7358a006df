"""Laws of games of four libraries; each is skipped where it is not installed.

``YAMAME_TEST_LIBRARIES=gymnax,craftax`` names libraries that must not be skipped, as the sessions
``jax`` of nox do.
"""

import os
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from yamame.checks import UsageError
from yamame.files.building import build_node
from yamame.system.messages import one_line
from yamame_envs import JaxEnv, RepeatedTrials
from yamame_envs.adapters.extras import MissingExtra
from yamame_envs.testing import check_env

GAMES = {
    "gymnax": {"id": "gymnax:MemoryChain-bsuite"},
    "xminigrid": {
        "id": "xminigrid:XLand-MiniGrid-R1-9x9",
        "settings": {"height": 6, "width": 6, "view_size": 5, "max_steps": 9},
    },
    "craftax": {"id": "craftax:Craftax-Classic-Symbolic-v1", "settings": {"max_timesteps": 6}},
    "popgym_arcade": {"id": "popgym_arcade:SkittlesEasy", "time_limit": 5},
}
"""A game of each library, with settings that end episodes soon."""
NUM_STEPS = {"gymnax": 30, "xminigrid": 20, "craftax": 12, "popgym_arcade": 12}
EXPECTED = os.environ.get("YAMAME_TEST_LIBRARIES", "").split(",")


def make(library: str, *, num_envs: int = 3, seed: int = 5, **more) -> JaxEnv:
    return JaxEnv(**GAMES[library], num_envs=num_envs, seed=seed, **more)


def test_libraries_that_must_not_be_skipped_are_among_those_tested():
    assert set(EXPECTED) <= {"", *GAMES}


@pytest.fixture(params=GAMES)
def library(request):
    """Every library that is installed; that of another package is a reason as well."""
    for module in ("jax", request.param):
        if find_spec(module) is None and request.param not in EXPECTED:
            pytest.skip(f"{module} is not installed")
    try:
        make(request.param, num_envs=1)
    except MissingExtra as error:
        if request.param in EXPECTED:
            raise
        pytest.skip(one_line(error))
    return request.param


def test_laws_of_a_game(library):
    check_env(partial(make, library), num_steps=NUM_STEPS[library])


def test_rows_do_not_depend_on_an_odd_number_of_others(library):
    actions = torch.randint(0, 2, (10, 17), generator=torch.Generator().manual_seed(1))
    played = []
    for num_envs in (17, 3):  # chunks of 16 and of 3 worlds
        env = make(library, num_envs=num_envs)
        current = env.reset()
        steps = []
        for action in actions:
            step, current = env.step_and_maybe_reset(current.set("action", action[:num_envs]))
            seen = step.select("observation", ("next", "reward"), ("next", "done"))
            steps.append(seen[:3].clone())
        played.append(torch.stack(steps))
    assert (played[0] == played[1]).all()
    assert played[0]["next", "done"].any()
    assert (played[0]["observation"][:, 0] != played[0]["observation"][:, 1]).any()


def test_trials_repeat_a_task_and_its_first_timestep(library):
    env = RepeatedTrials(make(library, num_envs=2), num_trials=None, horizon=14)
    current = env.reset()
    first = current["observation"]
    num_trials = 0
    for _ in range(13):
        current["action"] = torch.ones(2, dtype=torch.int64)
        _, current = env.step_and_maybe_reset(current)
        begins = current["trial_start"].squeeze(-1)
        num_trials += int(begins.sum())
        assert (current["observation"][begins] == first[begins]).all()
    assert num_trials > 1


def test_unknown_ids_and_settings_of_a_library_are_named_by_their_key(library):
    node = {"_target_": "yamame_envs.JaxEnv", "num_envs": 1}
    unknown = {"id": f"{library}:NoSuchGame"}
    for wrong, key in (
        (unknown, "env.id: must "),
        ({**unknown, "settings": {"max_steps": 3}}, "env.id: must "),
        ({**GAMES[library], "settings": {"no_such_setting": 3}}, "env.settings"),
    ):
        with pytest.raises(UsageError) as raised:
            build_node({**node, **wrong}, "env")
        assert str(raised.value).startswith(key)
        assert "\n" not in str(raised.value)


def test_games_of_arcade_end_at_their_own_limits_and_not_at_that_of_their_base_class():
    if find_spec("popgym_arcade") is None:
        pytest.skip("popgym_arcade is not installed")
    limits = {}
    for name in ("CartPoleEasy", "SkittlesEasy", "BattleShipEasy"):
        limits[name] = JaxEnv(id=f"popgym_arcade:{name}").time_limit
    assert limits == {"CartPoleEasy": 200, "SkittlesEasy": 100, "BattleShipEasy": 128}


def rules(key):
    """Goals of XLand-MiniGrid: hold one of two objects."""
    import jax.numpy as jnp
    from jax import random

    tile = random.randint(key, (), 3, 11)
    goal = jnp.stack([jnp.int32(1), tile, jnp.int32(1), jnp.int32(0), jnp.int32(0)])
    tiles = jnp.stack([jnp.array([tile, 1]), jnp.array([3, 2])])
    return {"goal": goal.astype(jnp.uint8), "init_tiles": tiles.astype(jnp.uint8)}


def test_rulesets_of_xland_from_keys_are_held_out_and_shared_by_trials():
    for module in ("jax", "xminigrid"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    hashes = {}
    for split in ("train", "test"):
        env = make("xminigrid", num_envs=3, tasks=rules, split=split)
        found: set[int] = set()
        for seed in range(8):
            env.set_seed(seed)
            env.reset()
            found.update(env.task_hashes().tolist())
        hashes[split] = found
    assert hashes["train"]
    assert not hashes["train"] & hashes["test"]

    trials = RepeatedTrials(make("xminigrid", tasks=rules), num_trials=2)
    current = trials.reset()
    task = trials.task_hashes()
    starts = [current["observation"]]
    while not current["trial_start"].all() or len(starts) < 2:
        current["action"] = torch.zeros(3, dtype=torch.int64)
        _, current = trials.step_and_maybe_reset(current)
        if current["trial_start"].all():
            starts.append(current["observation"])
    assert (trials.task_hashes() == task).all()
    assert (starts[0] != starts[1]).any()
    picture = trials.render()
    assert picture.shape[-1] == 3
