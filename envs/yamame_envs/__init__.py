"""TorchRL environments for in-context reinforcement learning.

Some are natively batched, others play third-party environments. Names are loaded on first use, so
importing this package is cheap and imports neither torch nor TorchRL. Where Gymnasium is installed,
importing it also registers the environments there:
``gymnasium.make("yamame_envs:yamame/MazeRunner-v0")``.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from yamame_envs.registration import register as register

if TYPE_CHECKING:
    from yamame_envs.adapters.env import HostedEnv as HostedEnv
    from yamame_envs.adapters.goals import GymGoals as GymGoals
    from yamame_envs.adapters.gym import Gym as Gym
    from yamame_envs.adapters.workers import Workers as Workers
    from yamame_envs.bandits import Bandits as Bandits
    from yamame_envs.base import BatchedEnv as BatchedEnv
    from yamame_envs.context import ContextEnv as ContextEnv
    from yamame_envs.curriculum import CurriculumEnv as CurriculumEnv
    from yamame_envs.darkroom import DarkKeyDoor as DarkKeyDoor
    from yamame_envs.delivery import PackageDelivery as PackageDelivery
    from yamame_envs.frozenlake import MetaFrozenLake as MetaFrozenLake
    from yamame_envs.goal_env import GoalEnv as GoalEnv
    from yamame_envs.jax_games.env import JaxEnv as JaxEnv
    from yamame_envs.mazerunner import MazeRunner as MazeRunner
    from yamame_envs.suites.anymdp import AnyMDP as AnyMDP
    from yamame_envs.suites.atari import Atari as Atari
    from yamame_envs.suites.crafter import Crafter as Crafter
    from yamame_envs.suites.half_cheetah import HalfCheetahVel as HalfCheetahVel
    from yamame_envs.suites.memory_gym import MemoryGym as MemoryGym
    from yamame_envs.suites.metaworld import MetaWorld as MetaWorld
    from yamame_envs.suites.minigrid import MiniGrid as MiniGrid
    from yamame_envs.suites.minihack import MiniHack as MiniHack
    from yamame_envs.suites.multi_domain import MultiDomain as MultiDomain
    from yamame_envs.suites.popgym import POPGym as POPGym
    from yamame_envs.tmaze import ActiveTMaze as ActiveTMaze
    from yamame_envs.tmaze import PassiveTMaze as PassiveTMaze
    from yamame_envs.trials import RepeatedTrials as RepeatedTrials
    from yamame_envs.wind import Wind as Wind
    from yamame_envs.xland.env import XLand as XLand

_HOMES = {
    "ActiveTMaze": "yamame_envs.tmaze",
    "AnyMDP": "yamame_envs.suites.anymdp",
    "Atari": "yamame_envs.suites.atari",
    "Bandits": "yamame_envs.bandits",
    "BatchedEnv": "yamame_envs.base",
    "ContextEnv": "yamame_envs.context",
    "Crafter": "yamame_envs.suites.crafter",
    "CurriculumEnv": "yamame_envs.curriculum",
    "DarkKeyDoor": "yamame_envs.darkroom",
    "GoalEnv": "yamame_envs.goal_env",
    "Gym": "yamame_envs.adapters.gym",
    "GymGoals": "yamame_envs.adapters.goals",
    "HalfCheetahVel": "yamame_envs.suites.half_cheetah",
    "HostedEnv": "yamame_envs.adapters.env",
    "JaxEnv": "yamame_envs.jax_games.env",
    "MazeRunner": "yamame_envs.mazerunner",
    "MemoryGym": "yamame_envs.suites.memory_gym",
    "MetaFrozenLake": "yamame_envs.frozenlake",
    "MetaWorld": "yamame_envs.suites.metaworld",
    "MiniGrid": "yamame_envs.suites.minigrid",
    "MiniHack": "yamame_envs.suites.minihack",
    "MultiDomain": "yamame_envs.suites.multi_domain",
    "POPGym": "yamame_envs.suites.popgym",
    "PackageDelivery": "yamame_envs.delivery",
    "PassiveTMaze": "yamame_envs.tmaze",
    "RepeatedTrials": "yamame_envs.trials",
    "Wind": "yamame_envs.wind",
    "Workers": "yamame_envs.adapters.workers",
    "XLand": "yamame_envs.xland.env",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


if find_spec("gymnasium") is not None:
    register()
