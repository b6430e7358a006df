"""Environments of configurations that were written before some settings existed."""

from collections.abc import Collection, Mapping
from typing import Any

from omegaconf import DictConfig, open_dict

from yamame.cli.nodes import target_of, with_changes
from yamame.cli.validation import parameters_of
from yamame.files.identity import added


def complete_env(config: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the environment of a saved configuration with the settings its version lacked.

    Args:
        config: Whole configuration.
        known: Parameters of the class of the environment; no other settings are added.

    Returns:
        Settings in which the missing ones have the values that reproduce the earlier version.
    """
    env = dict(config["env"])
    for key, value in added(config).items():
        section, _, name = key.partition(".")
        if section == "env" and name in known:
            env.setdefault(name, value)
    return env


def with_default_split(cfg: Any) -> Any:
    """Return a configuration in which ``env.split_by`` is given, by default that of the class.

    A saved configuration without it would be read as one of an earlier version, whose default was
    different.
    """
    parameter = parameters_of(target_of(cfg.env)).get("split_by")
    if parameter is None or "split_by" in cfg.env:
        return cfg
    if isinstance(cfg, DictConfig):
        # Composed configurations take no new keys otherwise.
        with open_dict(cfg.env):
            cfg.env.split_by = parameter.default
        return cfg
    return with_changes(cfg, {"env": {"split_by": parameter.default}})
