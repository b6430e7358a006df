"""Laws of games of four libraries; each is skipped where it is not installed."""

from functools import partial
from importlib.util import find_spec

import pytest
import torch
from yamame.system.messages import one_line
from yamame_envs import JaxEnv, RepeatedTrials
from yamame_envs.adapters.extras import MissingExtra
from yamame_envs.testing import check_env

GAMES = {
    "gymnax": ("gymnax:MemoryChain-bsuite", {}, 30),
    "xminigrid": (
        "xminigrid:XLand-MiniGrid-R1-9x9",
        {"height": 6, "width": 6, "view_size": 5, "max_steps": 9},
        20,
    ),
    "craftax": ("craftax:Craftax-Classic-Symbolic-v1", {"max_timesteps": 6}, 12),
    "popgym_arcade": ("popgym_arcade:AutoEncodeEasy", {}, 12),
}
"""An id, settings that end episodes soon, and steps to play, of each library."""


def make(library: str, *, num_envs: int = 3, seed: int = 5, **more) -> JaxEnv:
    id, settings, _ = GAMES[library]
    return JaxEnv(id=id, settings=settings, num_envs=num_envs, seed=seed, **more)


@pytest.fixture(params=GAMES)
def library(request):
    """Every library that is installed; that of another package is a reason as well."""
    for module in ("jax", request.param):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    try:
        make(request.param, num_envs=1)
    except MissingExtra as error:
        pytest.skip(one_line(error))
    return request.param


def test_laws_of_a_game(library):
    check_env(partial(make, library), num_steps=GAMES[library][2])


def test_trials_repeat_a_task_and_its_first_timestep(library):
    env = RepeatedTrials(make(library, num_envs=2), num_trials=None, horizon=14)
    current = env.reset()
    first = current["observation"]
    for _ in range(13):
        current["action"] = torch.ones(2, dtype=torch.int64)
        _, current = env.step_and_maybe_reset(current)
        begins = current["trial_start"].squeeze(-1)
        assert (current["observation"][begins] == first[begins]).all()


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
