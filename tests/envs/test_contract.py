"""The contract of every environment of ``conf/env``, native or played for another library."""

import warnings
from functools import cache, partial

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from torchrl.envs import EnvBase
from torchrl.envs.utils import check_env_specs
from yamame import conf_dir
from yamame.checks import UsageError
from yamame.goals import advance, num_goals
from yamame.runs.build import build_env
from yamame_envs.testing import check_env

CHOICES = sorted(path.stem for path in (conf_dir() / "env").glob("*.yaml"))
SHORT: dict[str, list[str]] = {
    "active_tmaze": ["env.length=7"],
    "anymdp": ["env.num_actions=3", "env.num_tasks=16", "env.time_limit=9"],
    "atari": ["env.time_limit=20"],
    "dark_key_to_door": ["env.trial_limit=9", "env.time_limit=31"],
    "half_cheetah_vel": ["env.time_limit=25"],
    "memory_gym": ["+env.options.command_count=[1]"],
    "metaworld": ["env.time_limit=10"],
    "minihack": ["env.time_limit=20"],
    "tmaze": ["env.length=7"],
}
"""Settings that end episodes soon, where the usual ones do not."""
STEPS = 40
LONGEST = 400
"""Steps after which an episode without an end is not waited for."""


@cache
def configuration(choice: str) -> DictConfig:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", overrides=[f"env={choice}", *SHORT.get(choice, [])])


def make(choice: str, *, num_envs: int = 3, seed: int = 5) -> EnvBase:
    return build_env(configuration(choice), num_envs=num_envs, seed=seed)


@cache
def reason_to_skip(choice: str) -> str | None:
    try:
        make(choice, num_envs=1).close()
    except UsageError as error:
        return str(error)
    return None


@pytest.fixture(params=CHOICES)
def choice(request, skip_if_missing):
    """Every environment that is installed."""
    if reason := reason_to_skip(request.param):
        skip_if_missing(reason)
        pytest.fail(reason)
    return request.param


def actions(env: EnvBase, steps: int) -> torch.Tensor:
    """``[steps, 3, ...]``, of which an environment with fewer rows plays the first ones."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return torch.stack([env.action_spec.rand() for _ in range(steps)])


def play(env: EnvBase, moves: torch.Tensor) -> list:
    """Timesteps with their transitions."""
    current = env.reset()
    steps = []
    for move in moves:
        stepped, current = env.step_and_maybe_reset(
            current.set("action", move[: env.batch_size[0]])
        )
        steps.append(stepped.clone())
    return steps


def test_the_specs_hold_while_it_is_played(choice):
    env = make(choice)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.*", category=UserWarning)
        check_env_specs(env)
    for step in play(env, actions(env, STEPS)):
        for key in env.observation_spec.keys(True, True):
            assert env.observation_spec[key].is_in(step["next", key]), key
            assert env.observation_spec[key].is_in(step[key]), key
        assert step["next", "reward"].isfinite().all()
    env.close()


def test_it_satisfies_the_laws(choice):
    check_env(partial(make, choice), num_steps=STEPS)


def test_the_horizon_is_respected(choice):
    env = make(choice)
    limit = getattr(env, "time_limit", None)
    ended = torch.zeros(3, dtype=torch.int64)
    before = None
    for step in play(env, actions(env, min(LONGEST, (limit or LONGEST) + 1))):
        following = step["next"]
        assert torch.equal(following["done"], following["terminated"] | following["truncated"])
        assert torch.equal(following["step_index"], step["step_index"] + 1)
        if limit is not None:
            assert (following["step_index"] <= limit).all()
            torch.testing.assert_close(following["time"], following["step_index"] / limit)
            at_limit = following["step_index"] == limit
            assert (following["terminated"] | ~at_limit).all()
            assert not (following["truncated"] & at_limit).any()
        if before is not None:
            assert torch.equal(step["is_init"], before)
            assert torch.equal(step["step_index"] == 0, before)
        before = following["done"].clone()
        ended += before.squeeze(-1)
    if limit is not None and limit < LONGEST:
        assert (ended >= 1).all()
    env.close()


def test_the_reward_is_that_of_the_goals_that_were_achieved(choice):
    env = make(choice)
    if "achieved" not in env.observation_spec.keys():
        pytest.skip(f"env={choice}: has no goals")
    achieved = 0
    radius = getattr(env, "goal_radius", None)  # as `Relabel` takes it
    instruction, active = None, None
    for step in play(env, actions(env, LONGEST)):
        following = step["next"]
        first = step["is_init"].squeeze(-1)
        if instruction is None:
            instruction, active = step["goal"].clone(), torch.zeros(3, dtype=torch.int64)
        instruction[first], active[first] = step["goal"][first], 0
        active, reward = advance(
            instruction,
            active,
            following["achieved"],
            following["achieved_mask"],
            radius=radius,
        )
        assert torch.equal(following["reward"].squeeze(-1), reward)
        assert torch.equal(following["success"].squeeze(-1), active == num_goals(instruction))
        achieved += int(following["achieved_mask"].sum())
    assert achieved > 0
    env.close()


def test_it_is_open_until_it_is_closed(choice):
    env = make(choice)
    env.reset()
    assert not env.is_closed
    env.close()
    assert env.is_closed
