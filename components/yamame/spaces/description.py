"""Description of the spaces of an environment, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yamame.spaces.action import ActionEntry
from yamame.spaces.observation import ObservationEntry


@dataclass(frozen=True, eq=False)
class Spaces:
    """Description of the observations and actions of an environment.

    Attributes:
        observations: Entries of an observation.
        action: Description of the actions.
    """

    observations: tuple[ObservationEntry, ...]
    action: ActionEntry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spaces) and self.encode() == other.encode()

    # Bounds are arrays, which have no hash.
    __hash__ = None  # type: ignore[assignment]

    def encode(self) -> dict[str, Any]:
        """Return plain data that JSON can hold, for `decode`."""
        entries = [entry.encode() for entry in self.observations]
        return {"observations": entries, "action": self.action.encode()}

    @staticmethod
    def decode(data: Mapping[str, Any]) -> "Spaces":
        """Return the description that `encode` wrote.

        Raises:
            ValueError: The data are damaged.
        """
        entries = tuple(ObservationEntry.decode(entry) for entry in data["observations"])
        return Spaces(entries, ActionEntry.decode(data["action"]))
