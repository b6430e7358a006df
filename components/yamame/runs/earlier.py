"""Environments of configurations that were written before some settings existed."""

from collections.abc import Collection, Mapping
from typing import Any

from omegaconf import DictConfig, open_dict

from yamame.cli.nodes import target_of
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


def set_default_split(cfg: DictConfig) -> None:
    """Set ``env.split_by`` to the default of the class, in place, if it is not given.

    A saved configuration without it would be read as one of an earlier version, whose default was
    different.
    """
    parameter = parameters_of(target_of(cfg.env)).get("split_by")
    if parameter is not None and "split_by" not in cfg.env:
        with open_dict(cfg.env):
            cfg.env.split_by = parameter.default
