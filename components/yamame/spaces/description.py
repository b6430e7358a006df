"""Description of the spaces of an environment, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from yamame.spaces.action import ActionEntry
from yamame.spaces.arrays import Key
from yamame.spaces.observation import ObservationEntry
from yamame.spaces.plain import decode_key, encode_key


@dataclass(frozen=True, eq=False)
class Spaces:
    """Description of the observations and actions of an environment.

    Attributes:
        observations: Entries of an observation.
        action: Description of the actions.
        empty: Places of the parts of an observation without numbers, as a ``Box`` of shape (0,),
            which have no entry.
    """

    observations: tuple[ObservationEntry, ...]
    action: ActionEntry
    empty: tuple[tuple[Key, ...], ...] = field(default=(), kw_only=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spaces) and self.encode() == other.encode()

    # Bounds are arrays, which have no hash.
    __hash__ = None  # type: ignore[assignment]

    def encode(self) -> dict[str, Any]:
        """Return plain data that JSON can hold, for `decode`."""
        entries = [entry.encode() for entry in self.observations]
        data = {"observations": entries, "action": self.action.encode()}
        if self.empty:
            data["empty"] = [[encode_key(key) for key in path] for path in self.empty]
        return data

    @staticmethod
    def decode(data: Mapping[str, Any]) -> "Spaces":
        """Return the description that `encode` wrote.

        Raises:
            ValueError: The data are damaged.
        """
        entries = tuple(ObservationEntry.decode(entry) for entry in data["observations"])
        empty = []
        for path in data.get("empty", ()):
            empty.append(tuple(decode_key(key) for key in path))
        return Spaces(entries, ActionEntry.decode(data["action"]), empty=tuple(empty))
