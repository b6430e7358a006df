"""Settings in the place of others: choices of earlier versions, and replaced classes.

The command line may replace the class of a choice, as ``env._target_=mylab.Env``. A choice sets
arguments of its own class. The replacing class may not take them: those that the command line did
not set are then removed.
"""

import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from yamame.checks import UsageError
from yamame.cli.validation import has_any_keyword, parameters_of
from yamame.files.trusted import SPECIAL, check_name, locate, prefixes_of

FORMER_CHOICES = {
    "callbacks=cost_limit": "set budget.cpu_s=SECONDS",
    "experiment=cpu_popgym": "set env=popgym env.id=NAME budget.cpu_s=150",
    "experiment=cpu_position_only_cartpole": "set env=popgym env.id=PositionOnlyCartPoleEasy",
    "experiment=cpu_repeat_previous": "set env=popgym env.id=RepeatPreviousEasy",
    "experiment=cpu_tmaze_gru": "set experiment=cpu_tmaze encoder=gru_selective",
}
"""Choices of earlier versions, each with the setting in its place."""
_CHANGES_OF_ENV = ("evaluation.env", "source.env")
"""Nodes with further arguments of the environment."""


def instead_of_former(choice: str) -> str | None:
    """Return what to set in the place of a choice of an earlier version; None for other choices.

    >>> instead_of_former("callbacks=cost_limit")
    'callbacks=cost_limit: replaced, set budget.cpu_s=SECONDS'
    """
    instead = FORMER_CHOICES.get(choice)
    return instead and f"{choice}: replaced, {instead}"


def leave_out_replaced(cfg: Any, overridden: Collection[str]) -> list[str]:
    """Remove the settings that belong to a class that the command line has replaced.

    Args:
        cfg: The composed configuration, which is changed.
        overridden: Keys that the command line set; settings below them stay.

    Returns:
        The keys that were removed.
    """
    if not isinstance(cfg, DictConfig):
        return []
    removed: list[str] = []
    for key in overridden:
        owner, _, name = key.rpartition(".")
        target = _target_at(cfg, owner) if owner and name == "_target_" else None
        if target is None:
            continue
        places = [owner, *_CHANGES_OF_ENV] if owner == "env" else [owner]
        for place in places:
            node = OmegaConf.select(cfg, place)
            if isinstance(node, DictConfig):
                removed += _remove(node, place, target, overridden)
    return removed


def _target_at(cfg: DictConfig, owner: str) -> Callable[..., Any] | None:
    """Return the class of a node; None if it cannot be named, which `check` reports."""
    node = OmegaConf.select(cfg, owner)
    if not isinstance(node, DictConfig):
        return None
    trust = cfg.get("trust", ())
    if OmegaConf.is_config(trust):
        trust = OmegaConf.to_container(trust)
    try:
        prefixes = prefixes_of(trust)
        check_name(node["_target_"], owner, prefixes)
        return locate(node["_target_"], owner, prefixes)
    except UsageError:
        return None


def _remove(
    node: DictConfig, place: str, target: Callable[..., Any], overridden: Collection[str]
) -> Iterator[str]:
    names = _argument_names(target)
    if names is None:
        return
    for name in list(node):
        key = f"{place}.{name}"
        is_given = any(f"{each}.".startswith(f"{key}.") for each in overridden)
        if name in SPECIAL or is_given or name in names:
            continue
        with open_dict(node):
            del node[name]
        yield key


def _argument_names(target: Callable[..., Any]) -> set[str] | None:
    """Return the names of the arguments of a function or constructor; None if it takes any.

    A constructor with ``**kwargs`` passes them to that of its base class, which names them:

    >>> from torch.optim import AdamW
    >>> class Mine(AdamW):
    ...     def __init__(self, params, extra=1, **kwargs): ...
    >>> names = _argument_names(Mine)
    >>> "extra" in names, "fused" in names, "momentum" in names
    (True, True, False)
    """
    constructors: list[Callable[..., Any]] = [target]
    if inspect.isclass(target):
        constructors = [each for each in target.__mro__[:-1] if "__init__" in vars(each)]
    names: set[str] = set()
    for constructor in constructors:
        names.update(parameters_of(constructor))
        if not has_any_keyword(constructor):
            return names
    return None
