"""Which classes and functions a configuration may name: the one place that says whom Yamame trusts.

A person types a configuration, and may name what is ours, layers and optimizers of torch and
torchrl, and what lies in a package of ``trust``. A file (a checkpoint, a run directory, an artifact
of MLflow) may be a stranger's: it may name only what the YAML files name, in the places where they
name it, and what lies in a package of ``trust``. That setting comes from what the person composes,
never from the file. Everything is checked before anything is imported or built.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, Literal, NotRequired

from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from yamame.checks import SettingError, require_setting
from yamame.system.messages import one_line

OURS = ("yamame.", "yamame_envs.")
LAYERS = ("torch.nn.", "torch.optim.", "torchrl.modules.", "torchrl.objectives.")
"""Beside what is ours, a person may name classes in here that are layers, losses, optimizers or
their schedules.
"""
SPECIAL = {
    "_target_": NotRequired[Any],
    "_partial_": NotRequired[bool],
    "_recursive_": NotRequired[bool],
    "_convert_": NotRequired[Literal["none", "partial", "object", "all"]],
    "_args_": NotRequired[list[Any]],
}
"""Keys of a node that tell Hydra how to build it, and what they may be."""

_OPTIMIZERS = "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD"
_ENVS = (
    "ActiveTMaze AnyMDP Atari Bandits Crafter DarkKeyDoor Gym GymGoals HalfCheetahVel MazeRunner "
    "MemoryGym MetaFrozenLake MetaWorld MiniGrid MiniHack MultiDomain POPGym PackageDelivery "
    "PassiveTMaze Wind Workers"
)
_IN_FILES = {
    "env": {"yamame_envs": _ENVS},
    "evaluation": {"yamame_envs": "Workers"},
    "trials": {"yamame_envs": "RepeatedTrials"},
    "workers": {"yamame_envs": "Workers"},
    "timestep_encoder": {"yamame.timestep": "MLPTimestepEncoder make_timestep_encoder"},
    "goal_encoder": {"yamame.timestep": "MLPGoalEncoder TokenGoalEncoder"},
    "encoder": {
        "yamame.trajectory": "GRUEncoder HFEncoder LSTMEncoder LinearRecurrentEncoder MambaEncoder "
        "MemoEncoder MemorylessEncoder RSMEncoder TransformerEncoder WindowEncoder"
    },
    "agent": {
        "yamame.heads": "ActorHead BinnedReturns PopArt make_critic make_value_head",
        "yamame.losses": "MultiGammaREDQLoss SeparateREDQLoss SequencePPOLoss",
    },
    "relabel": {"yamame.replay": "GoalFrequencies Relabel"},
    "exploration": {"yamame.exploration": "BilevelEpsilon EdgeEpsilon EpsilonGreedy GaussianNoise"},
    "optimizer": {"torch.optim": _OPTIMIZERS, "yamame.training": "MuonAdamW"},
    "replay": {"yamame.replay": "TrajectoryReplayBuffer"},
    "collector": {"yamame.collectors": "RayCollector SyncCollector"},
    "packing": {"yamame.replay": "SequencePacking"},
    "window": {"yamame.replay": "Window"},
    "callbacks": {"yamame.runs": "CostLimit EarlyStopping"},
    "data": {"yamame.data": "hdf5 minari npz runs torchrl"},
    "source": {"yamame.baselines": "TabularQLearning"},
    "logger": {
        "yamame.tracking": "MLflowTracker NullTracker",
        "yamame.runs": "MLflowTracker NullTracker",
    },
}
IN_FILES = {
    place: frozenset(f"{room}.{name}" for room, names in rooms.items() for name in names.split())
    for place, rooms in _IN_FILES.items()
}
"""What a file may name, by the first part of the key; a name elsewhere is refused: a buffer is no
encoder.
"""
_REGISTERING = ("popgym", "yamame_envs")
"""Modules that a file may have imported before an environment is looked for
(``"popgym:popgym-..."``).
"""
_TEXTS = ("device", "expected", "logger", "run")
"""Settings whose texts may hold a colon and name no module."""
_DEEPEST = 32
_DOTTED = re.compile(r"[A-Za-z]\w*(\.(?!__)[A-Za-z_]\w*)+", re.ASCII)
_PACKAGE = re.compile(r"[A-Za-z]\w*(\.[A-Za-z_]\w*)*\.?", re.ASCII)


def prefixes_of(trust: Any) -> tuple[str, ...]:
    """The prefixes of what lies in some packages.

    Raises:
        UsageError: Something is no name of a package.

    >>> prefixes_of(["mylab.", "others"])
    ('mylab.', 'others.')
    """
    packages = [trust] if isinstance(trust, str) else trust
    for package in packages if isinstance(packages, list | tuple) else [packages]:
        if not isinstance(package, str) or not _PACKAGE.fullmatch(package):
            raise SettingError("trust", trust, "be a list of packages, as [mylab.]")
    return tuple(f"{package.rstrip('.')}." for package in packages)


def check_name(path: Any, key: str, trust: Iterable[str] = ()) -> None:
    """Refuses a target that a person may not name, by its text alone.

    Args:
        path: What stands at ``_target_``.
        key: Where the node stands.
        trust: Prefixes, see `prefixes_of`.
    """
    allowed = (*OURS, *LAYERS)
    if (
        not isinstance(path, str)
        or not _DOTTED.fullmatch(path)
        or not path.startswith((*allowed, *trust))
    ):
        condition = f"begin with {' or '.join(allowed)} or a package of trust=[...]"
        raise SettingError(f"{key}._target_", path, condition)


def locate(path: str, key: str, trust: Iterable[str] = ()) -> Callable[..., Any]:
    """The class or function that a checked name stands for.

    What a module has only imported from another package is not in it:
    ``yamame.files.run_directory.shutil.rmtree``.

    Raises:
        SettingError: There is none, it belongs to another package, or it is of torch and no layer
            or optimizer.
    """
    key = f"{key}._target_"
    try:
        target = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        condition = "name a class or function"
        raise SettingError(key, path, condition, remedy=one_line(error)) from error
    package, home = path.partition(".")[0], str(getattr(target, "__module__", ""))
    if not callable(target) or home.partition(".")[0] != package:
        raise SettingError(key, path, f"name a class or function of {package}")
    if path.startswith(LAYERS) and not path.startswith(tuple(trust)):
        is_layer = inspect.isclass(target) and issubclass(target, Module | Optimizer | LRScheduler)
        # Those fetch models from elsewhere.
        fetches = not {"llm", "rlhf"}.isdisjoint(home.split("."))
        condition = f"name a layer or an optimizer of {package}"
        require_setting(key, path, is_layer and not fetches, condition)
    return target


def check_file(config: Any, trust: Iterable[str] = ()) -> None:
    """Refuses a configuration from a file that names what a stranger may not name; nothing is
    imported.

    Args:
        config: As the file has it, before anything of it is resolved.
        trust: Prefixes of what may be named beside our own classes, see `prefixes_of`.

    Raises:
        SettingError: Names the key and the value.

    >>> check_file({"encoder": {"_target_": "os.system"}})
    Traceback (most recent call last):
    yamame.checks.SettingError: encoder._target_: must be a class of Yamame that belongs there, ...
    """
    own = "name a package of your own in trust=[...]"
    for path, value in _entries(config, ()):
        key, name, text = ".".join(path), path[-1] if path else "", isinstance(value, str)
        problem = None
        remedy = None
        if name == "_target_":
            known = IN_FILES.get(path[0], frozenset())
            mine = text and _DOTTED.fullmatch(value) and value.startswith(tuple(trust))
            if not text or not (value in known or mine):
                problem = "a class of Yamame that belongs there, in a file"
                remedy = own
        elif name == "_partial_":
            problem = None if isinstance(value, bool) else "true or false"
        elif name in SPECIAL:
            problem = "absent in a file"
        elif (
            type(value) not in (dict, list, str, int, float, bool, type(None))
            or len(path) > _DEEPEST
        ):
            problem = f"plain data, no more than {_DEEPEST} levels deep"
        elif "${" in key or (text and "${" in value):
            problem = "a value and no interpolation, in a file"
        elif text and ":" in value and path[0] not in _TEXTS:
            module = value.rpartition(":")[0]
            if module not in _REGISTERING and not f"{module}.".startswith(tuple(trust)):
                problem = "a text that imports no module, in a file"
                remedy = own
        if problem is not None:
            key = key or "configuration"
            raise SettingError(key, value, f"be {problem}", remedy=remedy)


def own_modules(env: Mapping[str, Any]) -> list[str]:
    """Modules that an environment's settings import when they come from the command line, and need
    trust from a file.

    >>> own_modules({"id": "mylab.doors:Door-v0", "settings": {}, "tasks": "mylab.doors:draw"})
    ['mylab.doors.']
    """
    texts = [value for value in env.values() if isinstance(value, str) and ":" in value]
    modules = dict.fromkeys(text.rpartition(":")[0] for text in texts)
    return [f"{module}." for module in modules if module not in _REGISTERING]


def without_foreign_weights(config: Any) -> Any:
    """A configuration from a file whose own weights come next: a path in it may be a stranger's,
    and is not opened.

    >>> node = {"_target_": "yamame.trajectory.HFEncoder", "path": "/home/you"}
    >>> without_foreign_weights({"encoder": node})
    {'encoder': {'_target_': 'yamame.trajectory.HFEncoder', 'path': None}}
    """
    if isinstance(config, list):
        return [without_foreign_weights(value) for value in config]
    if not isinstance(config, Mapping):
        return config
    kept = {key: without_foreign_weights(value) for key, value in config.items()}
    return (
        {**kept, "path": None} if config.get("_target_") == "yamame.trajectory.HFEncoder" else kept
    )


def _entries(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value, containers before what is in them."""
    yield path, value
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _entries(item, (*path, str(name)))
