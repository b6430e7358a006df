"""An agent from plain data: the nodes of a configuration that say what it is made of, its specs and
its weights.

The names in the nodes are checked against `yamame.files.trusted` before anything is imported.
Recipes assemble the same parts through Hydra (`yamame.runs.build`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torchrl.data import Composite, TensorSpec

from yamame.agent import InContextAgent
from yamame.checks import UsageError
from yamame.deploy.interface import STRANGE, Interface
from yamame.files.trusted import check_file, locate, prefixes_of, without_foreign_weights
from yamame.system.messages import format_value, one_line

_LEARNING = ("critic.", "critic_encoder.", "returns.")
"""Parts of an agent that only learning needs."""
PARTS = ("agent", "encoder", "timestep_encoder", "goal_encoder")
"""The keys of a configuration that say what an agent is made of."""


def assemble(
    config: Mapping[str, Any],
    observation_spec: Composite,
    action_spec: TensorSpec,
    *,
    instantiate: Callable[[Any], Any],
    loss: Callable[..., Any],
) -> InContextAgent:
    """The agent of a configuration, with new weights.

    Args:
        config: Has the keys `PARTS`.
        observation_spec: As for `InContextAgent`.
        action_spec: As for `InContextAgent`.
        instantiate: Builds what a node describes.
        loss: The class of the loss, which says whether the critics share the actor's encoder.
    """
    heads = config["agent"]
    return InContextAgent(
        observation_spec,
        action_spec,
        timestep_encoder=instantiate(config["timestep_encoder"]),
        goal_encoder=instantiate(config["goal_encoder"]),
        trajectory_encoder=instantiate(config["encoder"]),
        actor=instantiate(heads["actor"]),
        critic=instantiate(heads["critic"]),
        returns=instantiate(heads["returns"]),
        gammas=learned_gammas(config),
        probability_floor=heads["probability_floor"],
        box_distribution=heads["box_distribution"],
        share_encoders=getattr(loss, "shares_encoder", True),
    )


def learned_gammas(config: Mapping[str, Any]) -> list[float]:
    """The discount factors that the agent has policies for: all, or the last alone."""
    gammas = [float(gamma) for gamma in config["agent"]["gammas"]]
    return gammas if config["agent"]["multi_gamma"] else gammas[-1:]


def check_device(device: Any) -> Any:
    """The device itself, if this machine has it.

    Raises:
        UsageError: It has not.
    """
    try:
        torch.zeros(1, device=device).item()  # which "meta" cannot
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device: must be available, got {device!r}: {reason}") from error
    return device


def build_agent(
    config: Mapping[str, Any],
    interface: Interface,
    *,
    context_length: int | None = None,
    trust: Sequence[str] = (),
) -> InContextAgent:
    """The agent of a configuration in plain data, with new weights, in evaluation mode.

    Args:
        config: Has the keys `PARTS`; further ones are not looked at.
        interface: What it observes and does.
        context_length: Timesteps that it remembers; None: as the configuration says.
        trust: Packages whose classes may be named beside ours, as ``["mylab."]``.

    Raises:
        UsageError: A part is missing, names what it must not, or refuses its arguments.
    """
    missing = [name for name in PARTS if not isinstance(config.get(name), Mapping)]
    if missing:
        raise UsageError(f"the configuration must hold {', '.join(PARTS)}, it has no {missing[0]}")
    parts = without_foreign_weights({name: config[name] for name in PARTS})
    prefixes = prefixes_of(trust)
    check_file(parts, prefixes)
    if context_length is not None:
        parts["encoder"] = _remembering(parts["encoder"], context_length, prefixes)
    build = partial(_instantiate, trust=prefixes)
    try:
        loss = locate(parts["agent"]["loss"]["_target_"], "agent.loss", prefixes)
        specs = interface.observation_spec, interface.action_spec
        return assemble(parts, *specs, instantiate=build, loss=loss).eval()
    except UsageError:
        raise
    except STRANGE as error:
        raise UsageError(
            f"the configuration must describe an agent, it does not: {one_line(error)}"
        ) from error


def _remembering(node: Mapping[str, Any], length: Any, trust: Sequence[str]) -> dict[str, Any]:
    """The node of an encoder that remembers so many timesteps; refuses one that lets no number be
    chosen.
    """
    if type(length) is not int or length < 1:
        raise UsageError(
            f"context_length must be a whole number of at least 1, got {format_value(length)}"
        )
    target = locate(node["_target_"], "encoder", trust)
    parameters = inspect.signature(target).parameters
    if "context_length" not in parameters and not any(
        p.kind is p.VAR_KEYWORD for p in parameters.values()
    ):
        name = str(node["_target_"]).rpartition(".")[2]
        raise UsageError(
            f"context_length must be left out, for {name} has a memory of one size, got {length}"
        )
    return {**node, "context_length": length}


def _instantiate(node: Any, *, trust: Sequence[str], key: str = "agent") -> Any:
    """Builds a node with ``_target_`` and the nodes in it; with ``_partial_``, a function that
    takes the rest.
    """
    if isinstance(node, list):
        return [_instantiate(item, trust=trust, key=key) for item in node]
    if not isinstance(node, Mapping):
        return node
    arguments = {
        name: _instantiate(value, trust=trust, key=f"{key}.{name}")
        for name, value in node.items()
        if name not in ("_target_", "_partial_")
    }
    if "_target_" not in node:
        return arguments
    target = locate(node["_target_"], key, trust)
    return partial(target, **arguments) if node.get("_partial_", False) else target(**arguments)


def for_acting(weights: Mapping[str, Any]) -> dict[str, Any]:
    """What acting needs of an agent's ``state_dict``, with matrices in half the precision."""
    return {
        name: value.half() if value.is_floating_point() and value.ndim > 1 else value
        for name, value in weights.items()
        if not name.startswith(_LEARNING)
    }


def load_weights(
    agent: InContextAgent, weights: Mapping[str, Any], *, source: str, fit: str, hint: str = ""
) -> None:
    """Gives an agent its weights.

    Args:
        agent: Any.
        weights: Its ``state_dict``, or what acting needs of it: what judges actions then keeps new
            weights.
        source: Whose they are, for messages.
        fit: What they must fit, for messages.
        hint: What may be wrong if they do not.

    Raises:
        UsageError: They are not finite, or of an agent of another shape.
    """
    for name, value in weights.items():
        if isinstance(value, torch.Tensor) and not bool(value.isfinite().all()):
            raise UsageError(f"the weights of {source} must be finite, {name} is not")
    if not any(name.startswith(_LEARNING) for name in weights):
        own = agent.state_dict()
        weights = {**{name: own[name] for name in own if name.startswith(_LEARNING)}, **weights}
    try:
        agent.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        listed = str(error).split("\n\t")  # torch lists all problems
        problem = listed[1].rstrip(". ") if len(listed) > 1 else one_line(error)
        raise UsageError(f"the weights of {source} must fit {fit}: {problem}{hint}") from error
