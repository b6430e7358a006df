"""The states of many streams that join and leave: one row each, gathered for a decision and put
back.

Rows that lie side by side are read and written where they are, without a copy: of one session, and
of all. Of others the states are copied, there and back. The row of a session that has left is given
to the next one, as it is: what begins forgets what its row holds.
"""

from collections.abc import Hashable, Sequence

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from yamame.checks import require, require_at_least
from yamame.deploy.step import ActingStep


class Sessions:
    """Sessions by name.

    Args:
        step: Makes the states.
        most: Sessions at most; None for as many as there is memory for.
    """

    def __init__(self, step: ActingStep, *, most: int | None) -> None:
        require_at_least("DeployedAgent", 1, max_sessions=1 if most is None else most)
        self.step, self.most = step, most
        self.rows: dict[Hashable, int] = {}
        self.fresh: set[Hashable] = set()
        self._free: list[int] = []
        self._states: TensorDict | None = None

    def begin(self, names: Sequence[Hashable]) -> None:
        """Begins sessions, known or not.

        Raises:
            ValueError: There would be too many; none of them begins then.
        """
        joining = [name for name in names if name not in self.rows]
        number = len(self.rows) + len(joining)
        fits = self.most is None or number <= self.most
        require(
            "DeployedAgent",
            "sessions",
            number,
            fits,
            f"be at most max_sessions={self.most}; forget some",
        )
        for name in joining:
            self.rows[name] = self._free.pop() if self._free else len(self.rows)
        self.fresh.update(names)

    def forget(self, names: Sequence[Hashable]) -> None:
        """Ends sessions. The memory of all is given back when the last one has left."""
        for name in names:
            self._free.append(self.rows.pop(name))
            self.fresh.discard(name)
        self._free.sort(reverse=True)  # the lowest is given first, so that rows lie side by side
        if not self.rows:
            self._free, self._states = [], None

    def order(self, names: Sequence[Hashable]) -> list[int]:
        """The places of sessions in a list, in the order of their rows."""
        return sorted(range(len(names)), key=lambda place: self.rows[names[place]])

    def take(
        self, names: Sequence[Hashable], device: torch.device
    ) -> tuple[TensorDictBase, slice | Tensor]:
        """The states ``[N]`` of sessions, with room for a timestep, and where they are, for
        `put`.
        """
        encoder, states = self.step.policy.trajectory_encoder, self._states
        if states is None:
            states = self.step.init_state(len(self.rows), device=device)
        elif len(states) < len(self.rows) + len(self._free):
            more = max(len(self.rows) + len(self._free) - len(states), len(states))
            states = TensorDict.cat([states, states.new_zeros(more)])
        states["memory"] = encoder.grow(states["memory"])
        self._states = states
        rows = [self.rows[name] for name in names]
        if rows == list(range(rows[0], rows[0] + len(rows))):
            where: slice | Tensor = slice(rows[0], rows[0] + len(rows))
        else:
            where = torch.tensor(rows, device=device)
        return states[where], where

    def put(self, taken: TensorDictBase, states: TensorDictBase, where: slice | Tensor) -> None:
        """Keeps what `take` gave after a decision; what was written in place is left where it
        is.
        """
        assert self._states is not None
        in_place = isinstance(where, slice)
        for key in states.keys(True, True):
            value = states[key]
            if not (in_place and value is taken.get(key)):
                kept = self._states.get(key)
                kept[where].copy_(value) if isinstance(where, slice) else kept.index_copy_(
                    0, where, value
                )
