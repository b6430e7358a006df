"""Classes and functions that a configuration may name.

A configuration that a person composes may name classes of Yamame, layers and optimizers of torch
and torchrl, and classes of the packages in ``trust``.

A file (a checkpoint, a run directory, an artifact of MLflow) may come from somebody else. At each
key it may name only the kind of class that belongs there: one of the room of this kind, with the
base class of this kind. It may also name classes of packages in ``trust``, a setting that never
comes from the file itself. All names of a file are checked before anything is built, and only
modules of Yamame are imported for it.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

from yamame.checks import SettingError, require_setting
from yamame.system.messages import one_line
from yamame.system.user_code import is_of_package, user_code

OURS = ("yamame.", "yamame_envs.")
LAYERS = ("torch.nn.", "torch.optim.", "torchrl.modules.", "torchrl.objectives.")
"""Modules outside of Yamame of which a person may name layers, losses, optimizers and their
schedules.
"""
SPECIAL = ("_target_", "_partial_", "_recursive_", "_convert_", "_args_")
"""Keys of a node for Hydra, which are no arguments of the target."""


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
_WRAPPERS = ("HostedEnv", "RepeatedTrials", "CurriculumEnv")
_TRACKER = "yamame.tracking.Tracker"
_DATA = ("amago", "hdf5", "lerobot", "minari", "npz", "runs", "torchrl")

KINDS = {
    "env": (
        Kind("yamame_envs", "torchrl.envs.EnvBase", wrappers=_WRAPPERS),
        _WORKERS,
    ),
    "evaluation": (_WORKERS,),
    "trials": (Kind("yamame_envs", "yamame_envs.RepeatedTrials"),),
    "curriculum": (Kind("yamame.curriculum", "yamame.curriculum.Curriculum"),),
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
    "encoder": (
        Kind(
            "yamame.trajectory",
            "yamame.trajectory.TrajectoryEncoder",
            ("causal_transformer",),
            inner=True,
        ),
    ),
    "agent": (
        Kind("yamame.heads", "yamame.heads.ActorHead", ("make_critic", "make_value_head")),
        Kind("yamame.heads", "yamame.heads.ValueRepresentation", inner=True),
        Kind("yamame.losses", "yamame.losses.SequenceLoss", inner=True),
    ),
    "relabel": (
        Kind("yamame.replay", "yamame.replay.Relabel", inner=True),
        Kind("yamame.replay", "yamame.replay.RelabelTasks"),
        Kind("yamame.replay", "yamame.replay.GoalFrequencies"),
    ),
    "exploration": (Kind("yamame.exploration", "yamame.exploration.Exploration", inner=True),),
    "optimizer": (
        Kind("torch.optim", "torch.optim.Optimizer"),
        Kind("yamame.training", "torch.optim.Optimizer", inner=True),
    ),
    "schedule": (Kind("yamame.training", "yamame.training.OverfittingRegulator"),),
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

REGISTERING = ("popgym", "yamame_envs")
"""Modules that a file may have imported before an environment is looked up by its id
(``"popgym:popgym-..."``). Nothing inside of them may be found by such a text.
"""
GAME_LIBRARIES = ("craftax", "gymnax", "popgym_arcade", "xminigrid")
"""Libraries of which an ``id`` in a file may name a game (``"gymnax:CartPole-v1"``): the name is
looked up in their registries, and never imported (`yamame_envs.jax_games.libraries`).
"""
IDS = ("id", "ids", "names")
"""Keys of ids of environments, in which a slash is no path: ``ALE/Pong-v5``."""
DOTTED = re.compile(r"[A-Za-z]\w*(\.(?!__)[A-Za-z_]\w*)+", re.ASCII)
PACKAGE = re.compile(r"[A-Za-z]\w*(\.[A-Za-z_]\w*)*\.?", re.ASCII)


class UntrustedError(SettingError):
    """A name that needs trust.

    Args:
        key: Dotted key of the name.
        value: The name.
        condition: Condition that it does not meet, in words that follow "must".
        packages: Prefixes to add to those that are trusted.
        trust: Prefixes that are trusted already.
        hint: Text before the value to add.
    """

    def __init__(
        self,
        key: str,
        value: Any,
        condition: str,
        *,
        packages: Iterable[str],
        trust: Iterable[str] = (),
        hint: str = "a custom package must be in trust=[...]",
    ) -> None:
        self.packages = tuple(dict.fromkeys([*trust, *packages]))
        self.hint = hint
        super().__init__(key, value, condition, remedy=self._remedy(",".join(self.packages)))

    def _remedy(self, listed: str) -> str:
        return f"{self.hint}: add trust=[{listed}]"

    def as_in_python(self) -> None:
        """Write the value to add as an argument of a function."""
        self.remedy = self._remedy(", ".join(json.dumps(package) for package in self.packages))


def prefixes_of(trust: Any) -> tuple[str, ...]:
    """Return the prefixes of dotted names in some packages.

    Raises:
        UsageError: A value is no name of a package.

    >>> prefixes_of(["mylab.", "others"])
    ('mylab.', 'others.')
    """
    packages = trust if isinstance(trust, list | tuple) else [trust]
    for package in packages:
        if not isinstance(package, str) or not PACKAGE.fullmatch(package):
            raise SettingError("trust", trust, "be a list of packages, as [mylab.]")
    return tuple(f"{package.rstrip('.')}." for package in packages)


def check_name(path: Any, key: str, trust: Iterable[str] = ()) -> None:
    """Check that a person may name a target, by its text alone.

    Args:
        path: Value of ``_target_``.
        key: Dotted key of the node.
        trust: Prefixes, see `prefixes_of`.

    Raises:
        SettingError: The name has another prefix.
    """
    allowed = (*OURS, *LAYERS)
    is_name = isinstance(path, str) and DOTTED.fullmatch(path) is not None
    trusted = tuple(trust)
    if is_name and path.startswith((*allowed, *trusted)):
        return
    condition = f"begin with {' or '.join(allowed)} or a package of trust=[...]"
    if not is_name:
        raise SettingError(f"{key}._target_", path, condition)
    packages = [f"{path.partition('.')[0]}."]
    raise UntrustedError(f"{key}._target_", path, condition, packages=packages, trust=trusted)


def locate(path: str, key: str, trust: Iterable[str] = ()) -> Callable[..., Any]:
    """Import the class or function of a checked name.

    A name that a module has imported from another package does not count, as
    ``yamame.files.run_directory.shutil.rmtree``.

    Raises:
        SettingError: There is none, it belongs to another package, or it is of torch and neither a
            layer nor an optimizer.
        UserCodeError: A module of the user raised an error when it was imported.
    """
    key = f"{key}._target_"
    try:
        with user_code(f"{key} ({path})"):
            target = _import_target(path)
    except (ImportError, AttributeError, ValueError) as error:
        condition = "name a class or function"
        raise SettingError(key, path, condition, remedy=one_line(error)) from error
    package = path.partition(".")[0]
    home = str(getattr(target, "__module__", "")).split(".")
    is_own = is_of_package(target, package)
    require_setting(key, path, is_own, f"name a class or function of {package}")
    if path.startswith(LAYERS) and not path.startswith(tuple(trust)):
        # Some of torchrl's modules fetch models from elsewhere.
        fetches = "llm" in home or "rlhf" in home
        is_layer = _is_layer(target) and not fetches
        require_setting(key, path, is_layer, f"name a layer or an optimizer of {package}")
    return target


def _import_target(path: str) -> Any:
    """Import the modules of a dotted name, and return what it names.

    Unlike ``pkgutil.resolve_name``, raise the error of a module that exists and cannot be imported.
    """
    name, *names = path.split(".")
    target: Any = import_module(name)
    for attribute in names:
        inner = f"{name}.{attribute}"
        is_package = getattr(target, "__name__", None) == name and hasattr(target, "__path__")
        if is_package and (inner in sys.modules or find_spec(inner) is not None):
            target = import_module(inner)
        else:
            target = getattr(target, attribute)
        name = inner
    return target


def _is_layer(target: Any) -> bool:
    # A command line is checked before torch is imported, and imports this module.
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    return inspect.isclass(target) and issubclass(target, Module | Optimizer | LRScheduler)


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


def imports_freely(path: Sequence[str], module: str) -> bool:
    """Return whether a text ``module:name`` at some keys imports nothing that needs trust.

    >>> imports_freely(["id"], "gymnax"), imports_freely(["tasks"], "gymnax")
    (True, False)
    """
    if module in GAME_LIBRARIES:
        return path[-1] == "id"
    return module in REGISTERING and any(key in IDS for key in path)


def own_modules(env: Mapping[str, Any]) -> list[str]:
    """Return the modules that an environment's settings import if they come from the command line,
    and that need trust if they come from a file.

    >>> own_modules({"id": "mylab.doors:Door-v0", "settings": {}, "tasks": "mylab.doors:draw"})
    ['mylab.doors.']
    """
    modules = []
    for key, value in env.items():
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str) or ":" not in text:
                continue
            module = text.rpartition(":")[0]
            if not imports_freely([key], module) and f"{module}." not in modules:
                modules.append(f"{module}.")
    return modules


def without_foreign_weights(config: Any) -> Any:
    """Return a configuration from a file without paths of pretrained weights.

    The file has its own weights, so that the path, which may be somebody else's, is not needed.

    >>> encoder = {"_target_": "yamame.trajectory.HFEncoder", "path": "/home/you"}
    >>> without_foreign_weights({"encoder": encoder})
    {'encoder': {'_target_': 'yamame.trajectory.HFEncoder', 'path': None}}
    """
    if isinstance(config, list):
        return [without_foreign_weights(value) for value in config]
    if not isinstance(config, Mapping):
        return config
    kept = {key: without_foreign_weights(value) for key, value in config.items()}
    if _reads_weights(config.get("_target_")):
        kept["path"] = None
    return kept


def _reads_weights(target: Any) -> bool:
    """Return whether a target is an encoder that reads pretrained weights, under any name."""
    if not isinstance(target, str) or not target.startswith("yamame.trajectory."):
        return False
    # The early command line imports this module, and must not import torch.
    from yamame.trajectory import HFEncoder

    try:
        encoder = resolve_name(target)
    except (ImportError, AttributeError, ValueError):
        return False
    return inspect.isclass(encoder) and issubclass(encoder, HFEncoder)
