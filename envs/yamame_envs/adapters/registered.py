"""Construction of environments that are registered with Gymnasium, also in worker processes."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.envs import registration


def find(id: str) -> Any:
    """Return the registration of an id.

    Args:
        id: A registered id, or ``"module:id"`` to import a module first.

    Raises:
        ModuleNotFoundError: The module is not installed.
        gymnasium.error.Error: The id is not registered.
    """
    module, _, name = id.rpartition(":")
    if module:
        import_module(module)
    return gymnasium.spec(name)


def make_registered(
    id: str, settings: Mapping[str, Any], *, limited: bool
) -> "gymnasium.Env[Any, Any]":
    """Make an environment, with ``render_mode="rgb_array"`` if its class supports it.

    Args:
        id: A registered id, or ``"module:id"``.
        settings: Keyword arguments of ``gymnasium.make``.
        limited: Truncate episodes at the registered limit.
    """
    # The environment checker would raise where `InProcessEnvs` reports env and step.
    options: dict[str, Any] = {"disable_env_checker": True}
    options["max_episode_steps"] = None if limited else -1

    creator = find(id).entry_point
    if isinstance(creator, str):
        creator = registration.load_env_creator(creator)
    # Classes without rendering do not accept the argument.
    metadata = getattr(creator, "metadata", None)
    if isinstance(metadata, Mapping) and "rgb_array" in metadata.get("render_modes", ()):
        options["render_mode"] = "rgb_array"
    return gymnasium.make(id, **{**options, **settings})
