"""Agents from plain data: the sections of a configuration, specs and weights.

The names in the sections are checked against `yamame.files.trusted` before anything is imported.
Neither Hydra nor OmegaConf is needed.
"""

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from yamame.agent import InContextAgent
from yamame.agent.assembly import KEYS, agent_arguments
from yamame.agent.discounts import discount_horizon
from yamame.checks import SettingError, UsageError, at_key, require_setting
from yamame.deploy.interface import STRANGE, Interface
from yamame.files.building import build_node
from yamame.files.identity import complete_timestep_encoder
from yamame.files.schema import SchemaError, check_weights
from yamame.files.trusted import locate, prefixes_of, without_foreign_weights
from yamame.files.untrusted import check_file
from yamame.system.messages import one_line

_LEARNING = ("critic.", "critic_encoder.", "returns.")
"""Prefixes of weights that acting does not need."""
PARTS = ("agent", "encoder", "timestep_encoder", "goal_encoder")
"""Sections of a configuration that describe an agent."""


def check_device(device: Any) -> Any:
    """Return a device unchanged if this machine has it.

    Raises:
        SettingError: The device is not available.
    """
    try:
        # Reading a value back finds devices without data, such as "meta".
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = one_line(error)
        raise SettingError("device", device, "be available", remedy=reason) from error
    return device


def build_agent(
    config: Mapping[str, Any],
    interface: Interface,
    *,
    context_length: int | None = None,
    trust: Sequence[str] = (),
) -> InContextAgent:
    """Build the agent of a configuration in plain data, with new weights, in evaluation mode.

    Args:
        config: Mapping with the sections `PARTS`; further ones are ignored.
        interface: Observations and actions of the agent.
        context_length: Timesteps of its memory; None for the number in the configuration.
        trust: Packages whose classes may be named besides Yamame's, as ``["mylab."]``.

    Raises:
        UsageError: A section is missing, names a class that it must not, or has wrong arguments.
    """
    for name in PARTS:
        if not isinstance(config.get(name), Mapping):
            raise UsageError(f"the configuration must hold {', '.join(PARTS)}, it has no {name}")
    config = complete_timestep_encoder(config)
    sections = without_foreign_weights({name: config[name] for name in PARTS})
    prefixes = prefixes_of(trust)
    # All names are checked first: importing a module executes it.
    check_file(sections, prefixes)
    if context_length is not None:
        sections["encoder"] = _with_context_length(sections["encoder"], context_length, prefixes)

    build = partial(build_node, trust=prefixes)
    specs = interface.observation_spec, interface.action_spec
    try:
        loss = locate(sections["agent"]["loss"]["_target_"], "agent.loss", prefixes)
        horizon = discount_horizon(interface.observation_spec)
        arguments = agent_arguments(sections, build, loss=loss, horizon=horizon)
        with at_key("agent", KEYS):
            return InContextAgent(*specs, **arguments).eval()
    except UsageError:
        raise
    except STRANGE as error:
        raise UsageError(
            f"the configuration must describe an agent, it does not: {one_line(error)}"
        ) from error


def _with_context_length(
    section: Mapping[str, Any], length: Any, trust: Sequence[str]
) -> dict[str, Any]:
    """Return the section of an encoder with another context length.

    Raises:
        UsageError: The length is not a positive integer, or the encoder does not take one.
    """
    is_length = type(length) is int and length >= 1
    require_setting("context_length", length, is_length, "be a whole number of at least 1")

    target = locate(section["_target_"], "encoder", trust)
    parameters = inspect.signature(target).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    name = section["_target_"].rpartition(".")[2]
    require_setting(
        "context_length",
        length,
        takes_any or "context_length" in parameters,
        f"be left out, for {name} has a memory of one size",
    )
    return {**section, "context_length": length}


def for_acting(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights that acting needs, with matrices in half precision.

    Args:
        weights: ``state_dict`` of an agent.
    """
    kept = {}
    for name, value in weights.items():
        if name.startswith(_LEARNING):
            continue
        # Vectors, such as gains and statistics, are small and keep their precision.
        is_matrix = value.is_floating_point() and value.ndim > 1
        kept[name] = value.half() if is_matrix else value
    return kept


def load_weights(
    agent: InContextAgent, weights: Mapping[str, Any], *, source: str, fit: str, hint: str = ""
) -> None:
    """Load the weights of an agent.

    Args:
        agent: The agent.
        weights: Its ``state_dict``, or the result of `for_acting`: the critics then keep their new
            weights.
        source: Origin of the weights, for messages.
        fit: Description of what they must fit, for messages.
        hint: Possible cause if they do not fit, for messages.

    Raises:
        UsageError: The weights are not finite or no plain tensors, or belong to an agent of another
            shape.
    """
    own = agent.state_dict()
    try:
        check_weights(weights, own)
    except SchemaError as error:
        raise UsageError(f"the weights of {source} {one_line(error)}") from error
    if not any(name.startswith(_LEARNING) for name in weights):
        critics = {name: value for name, value in own.items() if name.startswith(_LEARNING)}
        weights = {**critics, **weights}
    try:
        agent.load_state_dict(weights)
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a third-party class may raise any error
        problem = _first_mismatch(agent.state_dict(), weights) or one_line(error)
        raise UsageError(f"the weights of {source} must fit {fit}: {problem}{hint}") from error


def _first_mismatch(own: Mapping[str, Any], weights: Mapping[str, Any]) -> str | None:
    """Describe the first difference in names or shapes; None if there is none."""
    for name, value in own.items():
        if name not in weights:
            return f"{name} is missing"
        given = weights[name]
        if not isinstance(value, torch.Tensor):
            continue
        if not isinstance(given, torch.Tensor):
            return f"{name} is not a tensor"
        if given.shape != value.shape:
            return f"size mismatch of {name}, {list(given.shape)} instead of {list(value.shape)}"
    for name in weights:
        if name not in own:
            return f"{name} is unknown"
    return None
