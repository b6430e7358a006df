"""States of many sessions that start and end at any time.

Each session has a row in one TensorDict. Rows that lie side by side, such as a single row or all
rows, are read and written in place, without a copy. Other rows are gathered into a copy and
scattered back. The row of a session that has ended is given to the next one with its old content,
since the first timestep of an episode ignores the state.
"""

from collections.abc import Hashable, Sequence

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from yamame.checks import require
from yamame.deploy.step import ActingStep


class Sessions:
    """Sessions by name.

    Args:
        step: Decision whose states are kept.
        most: Largest number of sessions; None for no limit.

    Attributes:
        rows: Row of every session that has begun.
        fresh: Sessions without a decision since they began.
    """

    def __init__(self, step: ActingStep, *, most: int | None) -> None:
        self.step = step
        self.most = most
        self.rows: dict[Hashable, int] = {}
        self.fresh: set[Hashable] = set()
        self._free: list[int] = []
        self._states: TensorDict | None = None

    def begin(self, names: Sequence[Hashable]) -> None:
        """Begin sessions, or reset those that have begun.

        Raises:
            ArgumentError: There would be too many sessions. In this case no session begins.
        """
        joining = [name for name in names if name not in self.rows]
        number = len(self.rows) + len(joining)
        fits = self.most is None or number <= self.most
        condition = f"be at most max_sessions={self.most}"
        remedy = "end some with forget(sessions=[...])"
        require("DeployedAgent", "number of sessions", number, fits, condition, remedy=remedy)

        for name in joining:
            self.rows[name] = self._free.pop() if self._free else len(self.rows)
        self.fresh.update(names)

    def forget(self, names: Sequence[Hashable]) -> None:
        """End sessions. All memory is released when the last session ends."""
        for name in names:
            self._free.append(self.rows.pop(name))
            self.fresh.discard(name)
        # The lowest row is given away first, so that rows in use lie side by side.
        self._free.sort(reverse=True)
        if not self.rows:
            self._free = []
            self._states = None

    def order(self, names: Sequence[Hashable]) -> list[int]:
        """Return the positions in ``names``, sorted by the rows of the sessions."""
        return sorted(range(len(names)), key=lambda position: self.rows[names[position]])

    def take(
        self, names: Sequence[Hashable], device: torch.device
    ) -> tuple[TensorDictBase, slice | Tensor]:
        """Return the states ``[N]`` of sessions, with room for one more timestep.

        Args:
            names: N sessions.
            device: Device of the states.

        Returns:
            The states, a view of the kept ones if the rows lie side by side, and the rows for
            `put`.
        """
        encoder = self.step.policy.trajectory_encoder
        num_rows = len(self.rows) + len(self._free)
        states = self._states
        if states is None:
            # Free rows count, because sessions may have ended before the first decision.
            states = self.step.init_state(num_rows, device=device)
        elif len(states) < num_rows:
            # The number at least doubles, so that all copies together are linear in it.
            added = max(num_rows - len(states), len(states))
            states = TensorDict.cat([states, states.new_zeros(added)])
        states["memory"] = encoder.grow(states["memory"])
        self._states = states

        rows = [self.rows[name] for name in names]
        first = rows[0]
        where: slice | Tensor = slice(first, first + len(rows))
        if rows != list(range(first, first + len(rows))):
            where = torch.tensor(rows, device=device)
        return states[where], where

    def put(self, taken: TensorDictBase, states: TensorDictBase, where: slice | Tensor) -> None:
        """Store the states after a decision.

        Args:
            taken: States before the decision, from `take`.
            states: States after the decision, ``[N]``.
            where: Rows, from `take`.
        """
        assert self._states is not None
        for key in states.keys(True, True):
            value = states[key]
            kept = self._states.get(key)
            if not isinstance(where, slice):
                kept.index_copy_(0, where, value)
            elif value is not taken.get(key):
                kept[where].copy_(value)
            # Otherwise the step has written into the view, which is the kept state itself.
