"""Environments of configurations that were written before some settings existed."""

from collections.abc import Collection, Mapping
from typing import Any

from omegaconf import DictConfig, open_dict

from yamame.cli.nodes import target_of
from yamame.cli.validation import parameters_of
from yamame.files.identity import added


def complete_env(config: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The environment of a saved configuration, with the settings that its version lacked as that
    version had them.

    Args:
        config: The whole configuration.
        known: Parameters of the class of the environment; no other setting is added.
    """
    env = dict(config["env"])
    for key, value in added(config).items():
        section, _, name = key.partition(".")
        if section == "env" and name in known:
            env.setdefault(name, value)
    return env


def write_out_split(cfg: DictConfig) -> None:
    """Sets ``env.split_by``, where the class takes it and the configuration leaves it to the class,
    in place.

    A saved configuration without it would be taken for one of an earlier version, which had another
    default.
    """
    parameter = parameters_of(target_of(cfg.env)).get("split_by")
    if parameter is not None and "split_by" not in cfg.env:
        with open_dict(cfg.env):
            cfg.env.split_by = parameter.default
