"""Kinds of classes and functions of this package, by the place at which a file may name them."""

import inspect
from dataclasses import dataclass
from importlib import import_module
from pkgutil import resolve_name
from typing import Any


@dataclass(frozen=True)
class Kind:
    """Classes and functions that a file may name at a key.

    Args:
        room: Package whose ``__init__`` exports them.
        base: Dotted name of their base class; empty if there are functions alone.
        functions: Functions, by name: they have no base class that would tell them apart.
        wrappers: Classes that need another object to be built, which are not allowed.
        inner: Also allow classes in modules of the room that its ``__init__`` does not export. Set
            for components, which only compute.
    """

    room: str
    base: str = ""
    functions: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    inner: bool = False


_WORKERS = Kind("yamame_envs", "yamame_envs.Workers")
_TRACKER = "yamame.tracking.Tracker"
_DATA = ("hdf5", "minari", "npz", "runs", "torchrl")

KINDS = {
    "env": (
        Kind("yamame_envs", "torchrl.envs.EnvBase", wrappers=("HostedEnv", "RepeatedTrials")),
        _WORKERS,
    ),
    "evaluation": (_WORKERS,),
    "trials": (Kind("yamame_envs", "yamame_envs.RepeatedTrials"),),
    "workers": (_WORKERS,),
    "timestep_encoder": (
        Kind(
            "yamame.timestep",
            "yamame.timestep.MLPTimestepEncoder",
            ("make_timestep_encoder",),
            inner=True,
        ),
    ),
    "goal_encoder": (Kind("yamame.timestep", "yamame.timestep.goals.GoalEncoder", inner=True),),
    "encoder": (Kind("yamame.trajectory", "yamame.trajectory.TrajectoryEncoder", inner=True),),
    "agent": (
        Kind("yamame.heads", "yamame.heads.ActorHead", ("make_critic", "make_value_head")),
        Kind("yamame.heads", "yamame.heads.ValueRepresentation", inner=True),
        Kind("yamame.losses", "yamame.losses.SequenceLoss", inner=True),
    ),
    "relabel": (
        Kind("yamame.replay", "yamame.replay.Relabel", inner=True),
        Kind("yamame.replay", "yamame.replay.GoalFrequencies"),
    ),
    "exploration": (Kind("yamame.exploration", "yamame.exploration.Exploration", inner=True),),
    "optimizer": (
        Kind("torch.optim", "torch.optim.Optimizer"),
        Kind("yamame.training", "torch.optim.Optimizer", inner=True),
    ),
    "replay": (Kind("yamame.replay", "torchrl.data.ReplayBuffer"),),
    "collector": (Kind("yamame.collectors", "yamame.collectors.Collector"),),
    "packing": (Kind("yamame.replay", "yamame.replay.SequencePacking", inner=True),),
    "window": (Kind("yamame.replay", "yamame.replay.Window", inner=True),),
    "callbacks": (Kind("yamame.runs", "yamame.runs.Callback"),),
    "data": (Kind("yamame.data", functions=_DATA),),
    "source": (Kind("yamame.baselines", "yamame.baselines.TabularQLearning"),),
    # Checkpoints of earlier versions name trackers in yamame.runs.
    "logger": (Kind("yamame.tracking", _TRACKER), Kind("yamame.runs", _TRACKER)),
}
"""Kinds by the first part of the key. A class at another key is refused: a buffer is no encoder."""


def is_of_kind(path: str, place: str) -> bool:
    """Return whether a file may name a target of ours at a key. No target is called.

    Args:
        path: Value of ``_target_``.
        place: First part of the key.

    >>> is_of_kind("yamame.trajectory.GRUEncoder", "encoder")
    True
    >>> is_of_kind("yamame.trajectory.GRUEncoder", "env"), is_of_kind("os.system", "encoder")
    (False, False)
    """
    module, _, name = path.rpartition(".")
    for kind in KINDS.get(place, ()):
        is_inner = kind.inner and module.startswith(f"{kind.room}.")
        if module != kind.room and not is_inner:
            continue
        if module == kind.room and name in kind.functions:
            return True
        try:
            target: Any = getattr(import_module(module), name, None)
        except ModuleNotFoundError:
            # A file of another version may name a module that does not exist.
            continue
        # Modules import names of other packages, too.
        home = str(getattr(target, "__module__", "")).partition(".")[0]
        is_built = not inspect.isabstract(target) and name not in kind.wrappers
        is_ours = is_built and inspect.isclass(target) and home == kind.room.partition(".")[0]
        if kind.base and is_ours and _has_base(target, resolve_name(kind.base)):
            return True
    return False


def _has_base(target: type, base: Any) -> bool:
    """Return whether a class inherits from a base class or fulfils a protocol."""
    if base in inspect.getmro(target):
        return True
    # issubclass() raises for protocols that cannot be checked at run time.
    return getattr(base, "_is_runtime_protocol", False) and issubclass(target, base)
