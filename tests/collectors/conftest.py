"""What tests of collectors share: a replay that keeps everything, small policies, Ray on this
machine.
"""

import sys
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from tensordict import TensorDict

SLOW = """
import os
import time
from torchrl.envs import Transform, TransformedEnv
from yamame_envs import MazeRunner, PassiveTMaze


class Sleep(Transform):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def _step(self, tensordict, next_tensordict):
        time.sleep(self.seconds)
        return next_tensordict


def maze(seconds, num_envs, seed):
    env = MazeRunner(num_envs=num_envs, seed=seed, size=7, num_goals=1, time_limit=15)
    return TransformedEnv(env, Sleep(seconds))


def leaves(num_envs, seed):
    os._exit(1)


def nothing(num_envs, seed):
    raise ZeroDivisionError(f"no environment for seed {seed}")
"""


class Shelf:
    """Keeps whatever is appended."""

    def __init__(self) -> None:
        self.trajectories: list[TensorDict] = []

    def extend(self, data):
        self.trajectories += [one[: int(one["mask"].sum())].clone() for one in data.unbind(0)]

    def take(self) -> list[TensorDict]:
        taken, self.trajectories = self.trajectories, []
        return taken

    @property
    def num_steps(self) -> int:
        return sum(len(one) - 1 for one in self.trajectories)

    def check_whole(self) -> None:
        """Every trajectory goes from its first step to its end."""
        for one in self.trajectories:
            num_steps = len(one) - 1
            assert one["step_index"].flatten().tolist() == list(range(num_steps + 1))
            ends = one["next", "terminated"] | one["next", "truncated"]
            assert ends.flatten().tolist() == [False] * (num_steps - 1) + [True, False]

    def check_distinct(self) -> None:
        """None is there twice; short ones may be alike by chance."""
        long = [one for one in self.trajectories if len(one) > 10]
        assert len(long) > 20
        played = ("observation", "goal", "action")
        assert len(
            {tuple(bytes(one[key].contiguous().numpy()) for key in played) for one in long}
        ) == len(long)


def _policy(env, encoder):
    from yamame.agent import InContextAgent
    from yamame.heads import ActorHead, PopArt, make_critic
    from yamame.timestep import MLPGoalEncoder, MLPTimestepEncoder

    torch.manual_seed(0)
    agent = InContextAgent(
        env.observation_spec,
        env.full_action_spec["action"],
        timestep_encoder=partial(MLPTimestepEncoder, hidden_size=16, out_size=8),
        goal_encoder=MLPGoalEncoder,
        trajectory_encoder=encoder,
        actor=partial(ActorHead, hidden_size=16),
        critic=partial(make_critic, hidden_size=16),
        returns=PopArt,
        gammas=(0.9,),
        probability_floor=0.0,
    )
    return agent.policy()


@pytest.fixture(scope="session")
def make_policy():
    """Makes a small policy for an environment; the same one each time."""
    return _policy


@pytest.fixture(scope="session")
def make_shelf():
    """Makes a replay that keeps everything."""
    return Shelf


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A module of a user's own, in a folder that only this process knows: environments that take
    their time.
    """
    folder = tmp_path_factory.mktemp("own")
    (folder / "slow_envs.py").write_text(SLOW)
    sys.path.append(str(folder))
    import slow_envs

    yield slow_envs
    sys.path.remove(str(folder))
    del sys.modules["slow_envs"]


@pytest.fixture(scope="session")
def import_ray():
    """Imports Ray as a collector does."""
    if find_spec("ray") is None:
        pytest.skip("needs pip install 'yamame[ray]'")
    from yamame.collectors.cluster import import_ray

    return import_ray


@pytest.fixture(scope="module")
def local_ray(import_ray):
    """Ray on this machine, for all tests of a module."""
    from yamame.system.signals import restoring_handlers

    ray = import_ray("the tests")
    with restoring_handlers():
        ray.init(
            "local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error"
        )
    yield ray
    ray.shutdown()
