"""Environments of configurations that were written before some settings existed."""

from collections.abc import Collection, Mapping
from typing import Any

from omegaconf import DictConfig, open_dict

from yamame.cli.nodes import select, target_of, with_changes
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


def with_defaults(cfg: Any) -> Any:
    """Return a configuration with all settings that earlier versions read in another way.

    ``env.split_by`` and ``timestep_encoder.images`` get the default of their class. A saved
    configuration without them would be read as one of an earlier version, whose defaults were
    different.
    """
    for section, name in (("env", "split_by"), ("timestep_encoder", "images")):
        node = select(cfg, section)
        parameter = None if node is None else parameters_of(target_of(node)).get(name)
        if parameter is None or name in node:
            continue
        if isinstance(cfg, DictConfig):
            # Composed configurations take no new keys otherwise.
            with open_dict(node):
                node[name] = parameter.default
        else:
            cfg = with_changes(cfg, {section: {name: parameter.default}})
    return cfg
