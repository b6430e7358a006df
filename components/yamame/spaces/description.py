"""The description of an environment's spaces, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yamame.spaces.action import ActionEntry
from yamame.spaces.observation import ObservationEntry


@dataclass(frozen=True, eq=False)
class Spaces:
    """Observations and actions of an environment, in values of its own spaces.

    Attributes:
        observations: The entries of an observation.
        action: The actions.
    """

    observations: tuple[ObservationEntry, ...]
    action: ActionEntry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spaces) and self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]

    def encode(self) -> dict[str, Any]:
        """Plain data that JSON can hold, for `decode`."""
        entries = [entry.encode() for entry in self.observations]
        return {"observations": entries, "action": self.action.encode()}

    @staticmethod
    def decode(data: Mapping[str, Any]) -> "Spaces":
        """The description that `encode` wrote.

        Raises:
            ValueError: If it is damaged.
        """
        entries = tuple(ObservationEntry.decode(entry) for entry in data["observations"])
        return Spaces(entries, ActionEntry.decode(data["action"]))
