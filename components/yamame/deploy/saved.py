"""Content of an agent's file, before an agent is built from it."""

from dataclasses import dataclass, field
from typing import Any

from yamame.deploy.interface import Interface


@dataclass(frozen=True)
class SavedAgent:
    """Content of an agent's file.

    Attributes:
        source: File or folder of origin, for messages.
        config: Configuration of the parts (`yamame.deploy.build.PARTS`) and of their training.
        interface: Observations and actions of the agent.
        weights: ``state_dict`` of the agent, or the part of it that acting needs, on the CPU.
        about: Further facts: ``step``, ``results``, ``versions``.
    """

    source: str
    config: dict[str, Any]
    interface: Interface
    weights: dict[str, Any] = field(repr=False)
    about: dict[str, Any] = field(default_factory=dict)
