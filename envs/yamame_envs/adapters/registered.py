"""Making environments that are registered with Gymnasium; what a worker process needs of it."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.envs import registration


def find(id: str) -> Any:
    """The registration of an id, after importing the module that it may begin with.

    Raises:
        ModuleNotFoundError: If that module is not installed.
        gymnasium.error.Error: If nothing is registered.
    """
    module, _, name = id.rpartition(":")
    if module:
        import_module(module)
    return gymnasium.spec(name)


def make_registered(
    id: str, settings: Mapping[str, Any], *, limited: bool
) -> "gymnasium.Env[Any, Any]":
    """Makes an environment, which can be drawn if its class says so.

    Args:
        id: A registered id, or ``"module:id"``.
        settings: Keyword arguments of ``gymnasium.make``.
        limited: Whether Gymnasium truncates episodes at the registered limit.
    """
    options: dict[str, Any] = {
        "max_episode_steps": None if limited else -1,
        "disable_env_checker": True,
    }
    entry = find(id).entry_point
    creator = registration.load_env_creator(entry) if isinstance(entry, str) else entry
    metadata = getattr(creator, "metadata", None)
    if isinstance(metadata, Mapping) and "rgb_array" in metadata.get("render_modes", ()):
        options["render_mode"] = "rgb_array"
    return gymnasium.make(id, **{**options, **settings})
