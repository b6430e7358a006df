"""Natively batched TorchRL environments for in-context reinforcement learning.

Names are loaded on first use, so importing this package is cheap and imports neither torch nor TorchRL. Where
Gymnasium is installed, importing it also registers the environments there:
``gymnasium.make("yamame_envs:yamame/MazeRunner-v0")``.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from yamame_envs.registration import register as register

if TYPE_CHECKING:
    from yamame_envs.base import BatchedEnv as BatchedEnv
    from yamame_envs.goal_env import GoalEnv as GoalEnv
    from yamame_envs.mazerunner import MazeRunner as MazeRunner
    from yamame_envs.tmaze import PassiveTMaze as PassiveTMaze

_HOMES = {
    "BatchedEnv": "yamame_envs.base",
    "GoalEnv": "yamame_envs.goal_env",
    "MazeRunner": "yamame_envs.mazerunner",
    "PassiveTMaze": "yamame_envs.tmaze",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])


if find_spec("gymnasium") is not None:
    register()
