"""Trajectories of files of other formats, collected in memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from yamame.checks import UsageError, require
from yamame.data.amago_files import Segment
from yamame.data.format import TrajectoryFormat
from yamame.data.source import MemoryStore
from yamame.data.tables import read_tree, rollout, tables, unused
from yamame.spaces.arrays import SpaceError
from yamame.system.messages import one_line, print_stderr

_LARGE_REWARD = 1e6
_WITHOUT_STEP = (
    "an episode must have a step, and the last one of a truncated episode counts only with "
    "'next_observations'"
)


class Loader:
    """Collects trajectories of one format in memory; see `yamame.data.sources.load`."""

    def __init__(
        self, format: TrajectoryFormat, drop_unfinished: bool, indices: bool | None
    ) -> None:
        check_format(format)
        self._format = format
        self._drop_unfinished = drop_unfinished
        self._indices = indices
        self._parts: list[tuple[TensorDict, torch.Tensor]] = []
        self._unused: set[str] = set()
        self._is_ambiguous = False
        self._empty: list[str] = []

    def add_tables(self, tree: Mapping[str, Any], name: str, *, is_stored: bool = False) -> None:
        """Add the episodes of all tables in nested mappings.

        Actions are known to be stored entries, which count from 0, if ``is_stored``.
        """
        found = list(tables(tree, name))
        condition = "hold 'actions', at the root or in groups"
        require(name, "arrays", sorted(tree), bool(found), condition)
        for place, table in found:
            self._unused |= unused(table)
            with naming(place):
                steps = rollout(
                    table,
                    self._format,
                    place,
                    drop_unfinished=self._drop_unfinished,
                    indices=True if is_stored else self._indices,
                )
                if len(steps) == 0:
                    self._empty.append(place)
                    continue
                if not is_stored:
                    self._check_ambiguity(read_tree(table, "actions", place))
                # Actions of the table are stored entries now, which count from 0.
                self._parts += self._format.trajectories(steps, place, indices=True)

    def add_rollout(self, steps: TensorDictBase, name: str) -> None:
        """Add the episodes of a rollout ``[T]``."""
        # None stands for values of the space, as False does, but without a warning.
        indices = bool(self._indices)
        self._parts += self._format.trajectories(steps, name, indices=indices)
        self._check_ambiguity(steps.get("action").cpu())

    def add_segment(self, segment: Segment) -> None:
        """Add a part of an episode."""
        self._unused |= segment.unused
        (part,) = self._format.trajectories(segment.steps, segment.name, indices=True)
        self._parts.append(segment.continued(part, self._format))

    def _check_ambiguity(self, actions: Any) -> None:
        """Record whether another value of ``indices`` would change the meaning of actions."""
        indices = bool(self._indices)
        self._is_ambiguous |= self._format.actions.depends_on_indices(actions, indices=indices)

    def finish(self, name: Any) -> MemoryStore:
        """Return the trajectories, and print warnings about the data."""
        found = f"none in {name}"
        remedy = f"{self._empty[0]}: {_WITHOUT_STEP}" if self._empty else None
        is_any = bool(self._parts)
        require("data", "trajectories", found, is_any, "be at least one", remedy=remedy)
        if self._empty:
            number = len(self._empty)
            print_stderr(f"data: {self._empty[0]}: {_WITHOUT_STEP}; {number} such left out")
        largest = max(_largest_reward(timesteps) for timesteps, _ in self._parts)
        if largest > _LARGE_REWARD:
            print_stderr(
                f"data: {name}: rewards reach {largest:g}, and losses square their sums; "
                "divide them in the data, or lower agent.loss.reward_multiplier"
            )
        if self._indices is not None and self._is_ambiguous:
            used = "from 0"
            other = f"from {self._format.actions.first_numbers}, as in their space"
            if not self._indices:
                used, other = other, used
            setting = f"+data.source.indices={str(not self._indices).lower()}"
            print_stderr(
                f"data: {name}: actions are read as numbers that count {used}; set {setting} if "
                f"they count {other}"
            )
        if self._unused:
            print_stderr(f"data: {name}: not read: {', '.join(sorted(self._unused))}")
        return MemoryStore(self._parts)


def _largest_reward(timesteps: TensorDict) -> float:
    return float(timesteps["next", "reward"].abs().max())


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Add a name to errors within the block that do not have one.

    Errors of checks have it. Damaged arrays make NumPy, h5py and torch raise almost anything.
    """
    try:
        yield
    except (UsageError, SpaceError):
        raise
    except Exception as error:
        raise UsageError(
            f"{name}: must hold whole arrays, it does not: {one_line(error)}"
        ) from error


def check_format(format: Any) -> None:
    """Raise unless the format of an environment was given, rather than an environment."""
    is_format = isinstance(format, TrajectoryFormat)
    remedy = "pass format=TrajectoryFormat(env)"
    require("data", "format", type(format), is_format, "be a TrajectoryFormat", remedy=remedy)
