"""Arguments of an agent from the sections of a configuration, for training and for deployment."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from yamame.agent.discounts import resolve_gammas

KEYS = {
    "timestep_encoder": "timestep_encoder",
    "goal_encoder": "goal_encoder",
    "trajectory_encoder": "encoder",
    "actor": "agent.actor",
    "critic": "agent.critic",
    "returns": "agent.returns",
}
"""Dotted key of every factory that `yamame.agent.InContextAgent` takes, by argument."""


def agent_arguments(
    config: Mapping[str, Any],
    build: Callable[[Any, str], Callable[..., Any]],
    *,
    loss: Callable[..., Any],
    horizon: int,
) -> dict[str, Any]:
    """Return the arguments of `yamame.agent.InContextAgent` but for the two specs.

    Args:
        config: Mapping with the sections of `KEYS`. The section ``agent`` also has ``gammas``,
            ``multi_gamma``, ``probability_floor``, ``box_distribution`` and perhaps
            ``probability_clip``.
        build: ``(section, key) -> factory``.
        loss: Class of the loss. With its attribute ``shares_encoder`` (default True) the critics
            read the actor's context.
        horizon: Steps of the longest episode, which the discount factors ``auto`` follow.
    """
    arguments: dict[str, Any] = {}
    for name, key in KEYS.items():
        section: Any = config
        for part in key.split("."):
            section = section[part]
        arguments[name] = build(section, key)

    heads = config["agent"]
    arguments["gammas"] = learned_gammas(config, horizon)
    arguments["probability_floor"] = heads["probability_floor"]
    arguments["box_distribution"] = heads["box_distribution"]
    with suppress(KeyError):  # configurations of earlier versions lack it
        arguments["probability_clip"] = heads["probability_clip"]
    arguments["share_encoders"] = getattr(loss, "shares_encoder", True)
    return arguments


def learned_gammas(config: Mapping[str, Any], horizon: int | None = None) -> list[float]:
    """Return the discount factors that have a policy: all, or the last one alone.

    Args:
        config: Mapping with the section ``agent``.
        horizon: Steps of the longest episode, which the discount factors ``auto`` follow; None for
            a saved configuration, which has numbers.

    Raises:
        SettingError: The discount factors are ``auto`` and the horizon is not known.

    >>> learned_gammas({"agent": {"gammas": [0.9, 0.99], "multi_gamma": False}})
    [0.99]
    """
    gammas = resolve_gammas(config["agent"]["gammas"], horizon)
    return gammas if config["agent"]["multi_gamma"] else gammas[-1:]
