"""Arguments of `DeployedAgent.act` as tensors, and checks that name the first wrong one."""

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torch import Tensor
from torchrl.data import Binary, Composite, MultiOneHot, OneHot

from yamame.checks import ArgumentError, require
from yamame.deploy.interface import Interface
from yamame.keys import CONTEXT, ENTRIES
from yamame.spaces import ObservationEntry, Spaces
from yamame.spaces.arrays import Array, Key, child, is_tree
from yamame.spaces.observation import is_nested_as_space
from yamame.system.messages import format_value

_OWNER = "DeployedAgent"


class Inputs:
    """Reader of observations, of one stream or of several.

    Args:
        interface: Observations of the agent, the context entries included.
        wanted: Entries that the policy reads.
        makes_time: Whether the agent computes ``time`` itself.

    Attributes:
        spec: Entries that are read.
    """

    def __init__(
        self, interface: Interface, wanted: Sequence[NestedKey], *, makes_time: bool
    ) -> None:
        computed = set(CONTEXT)
        if not makes_time:
            computed.remove("time")
        wanted_keys = {unravel_key(key) for key in wanted}
        entries = {unravel_key(entry.key): entry for entry in interface.spaces.observations}

        self.spec = Composite()
        self._entries: dict[NestedKey, ObservationEntry] = {}
        for key in interface.observation_spec.keys(True, True):
            if key in wanted_keys and key not in computed:
                self.spec[key] = interface.observation_spec[key]
                self._entries[key] = entries[unravel_key(key)]

        # Names of other entries are accepted, so that a timestep of an environment can be passed
        # as it is.
        self._known: set[Any] = {"next", *interface.observation_spec.keys()}
        self._known.update(entry.name for entry in ENTRIES)
        paths = [entry.path for entry in entries.values()] + list(interface.spaces.empty)
        for path in paths:
            # Whole numbers of Tuple spaces and of keys may be given as text.
            self._known.update([path[0], str(path[0])] if path else [])
        self._tuple_lengths = _tuple_lengths(interface.recorded)
        # Entries whose numbers out of bounds were reported.
        self._reported: set[NestedKey] = set()

    def read(self, observation: Any, batch: tuple[int, ...]) -> tuple[TensorDict, bool]:
        """Return the entries of an observation as tensors.

        Args:
            observation: A value of the environment's space, such as a dictionary or tuple of
                arrays; a mapping or TensorDict by the names of the entries; or an array, if there
                is only one entry. Arrays are read by `yamame.spaces.ObservationEntry.read`.
            batch: Leading dimensions of each array: ``(N,)``, or ``()`` for one stream.

        Returns:
            The entries ``[N]``, or ``[1]`` for one stream; and whether a tensor was passed.

        Raises:
            ArgumentError: An entry is missing or unknown, or is not an array of numbers.
            SpaceError: An array does not belong to the space of its entry.
        """
        self._check_names(observation)
        self._check_tuples(observation)
        by_path = is_nested_as_space(self._entries.values(), observation)
        rows = math.prod(batch)
        entries = TensorDict({}, [rows])
        has_tensors = False
        for key, entry in self._entries.items():
            value = self._find(observation, entry, by_path)
            has_tensors = has_tensors or isinstance(value, Tensor)
            name = f"observation {format_value(key)}"
            array = read_array(value, name)
            report = None if key in self._reported else partial(self._report, key)
            label = f"{_OWNER}: {name}"
            stored = entry.read(array, batch=batch, label=label, bounded=True, report=report)
            entries[key] = torch.from_numpy(stored.reshape(rows, *entry.stored_shape))
        return entries, has_tensors

    def _report(self, key: NestedKey, message: str) -> None:
        """Warn about the first number of an entry outside of its bounds."""
        self._reported.add(key)
        warnings.warn(f"{message}; further ones are not reported", stacklevel=5)

    def _check_names(self, observation: Any) -> None:
        """Refuse an unknown name, and a single array if there are several entries."""
        if isinstance(observation, Mapping | TensorDictBase):
            unknown = [name for name in observation.keys() if name not in self._known]
            if unknown:
                condition = f"have no entries besides {self._describe()}"
                raise ArgumentError(_OWNER, "observation", min(unknown, key=str), condition)
        elif not isinstance(observation, tuple) and len(self._entries) != 1:
            condition = f"be a mapping with {self._describe()}"
            raise ArgumentError(_OWNER, "observation", _brief(observation), condition)

    def _check_tuples(self, observation: Any) -> None:
        """Refuse tuples of another length, whose surplus values would be ignored."""
        for path, length in self._tuple_lengths.items():
            value = observation
            for place in path:
                value = child(value, place)
            if isinstance(value, tuple) and len(value) != length:
                name = " ".join(["observation", *map(format_value, path)])
                condition = f"be a tuple of {length} values"
                raise ArgumentError(_OWNER, name, len(value), condition)

    def _find(self, observation: Any, entry: ObservationEntry, by_path: bool) -> Any:
        """Return the value of an entry."""
        if not is_tree(observation):
            return observation
        value = entry.find(observation, by_path=by_path)
        if value is not None:
            return value
        if isinstance(observation, tuple) and len(self._entries) == 1:
            # An array may be written as a tuple of numbers.
            return observation
        condition = f"have an entry {format_value(entry.key)} of shape {entry.stored_shape}"
        names = type(observation) if isinstance(observation, tuple) else list(observation.keys())
        raise ArgumentError(_OWNER, "observation", names, condition)

    def _describe(self) -> str:
        """Return names and shapes of the entries, for messages."""
        parts = []
        for key, entry in self._entries.items():
            parts.append(f"{format_value(key)} {entry.stored_shape}")
        return ", ".join(parts)


def _tuple_lengths(spaces: Spaces | None) -> dict[tuple[Key, ...], int]:
    """Return the number of values of each ``Tuple`` space, by its path."""
    lengths: dict[tuple[Key, ...], int] = {}
    if spaces is None:
        return lengths
    for path in [*(entry.path for entry in spaces.observations), *spaces.empty]:
        for depth, place in enumerate(path):
            # A whole number is a place in a Tuple, or a name in a Dict, whose values are no tuples.
            if isinstance(place, int):
                parent = path[:depth]
                lengths[parent] = max(lengths.get(parent, 0), place + 1)
    return lengths


def read_flags(value: Any, name: str, batch: tuple[int, ...]) -> Tensor:
    """Return one flag per stream, ``[N]`` bool; with None no flag is set.

    Args:
        value: Argument of the caller.
        name: Name of the argument, for messages.
        batch: Dimensions of the argument, as for `Inputs.read`.
    """
    if value is None:
        return torch.zeros(math.prod(batch), dtype=torch.bool)
    flags = _read_column(value, name, batch)
    require(_OWNER, name, flags.dtype, flags.dtype == torch.bool, "be true or false")
    return flags


def read_reward(value: Any, batch: tuple[int, ...], is_init: Tensor, is_fresh: Tensor) -> Tensor:
    """Return one reward per stream, ``[N]`` float32.

    Args:
        value: Argument of the caller; None for a reward of 0.
        batch: Dimensions of the argument, as for `Inputs.read`.
        is_init: ``[N]`` bool, episode starts.
        is_fresh: ``[N]`` bool, sessions just reset.
    """
    if value is None:
        condition = "be given unless an episode starts"
        require(_OWNER, "reward", None, bool(is_init.all()), condition)
        return torch.zeros(math.prod(batch))

    reward = _read_column(value, "reward", batch).to(torch.float32)
    not_finite = ~reward.isfinite()
    if not_finite.any():
        raise ArgumentError(_OWNER, "reward", reward[not_finite][0].item(), "be finite")
    # A session that was just reset has not acted. Its reward is almost surely that of the last
    # episode, whose end the caller should report with `done`.
    too_early = is_fresh & (reward != 0)
    if too_early.any():
        condition = "be 0 or None at the first timestep of a session"
        raise ArgumentError(_OWNER, "reward", reward[too_early][0].item(), condition)
    return reward


def read_action(value: Any, interface: Interface) -> tuple[Array, bool]:
    """Return actions ``[N, ...]``, and whether a single action without a batch was passed."""
    spec = interface.action_spec
    array = read_array(value, "action")
    shape = tuple(spec.shape)
    is_single = array.shape == shape
    condition = f"have the shape {shape} or {('N', *shape)}"
    fits = is_single or array.shape[1:] == shape
    require(_OWNER, "action", array.shape, fits, condition)

    # NumPy would turn flags into the numbers 0 and 1.
    takes_flags = isinstance(spec, Binary | OneHot | MultiOneHot)
    if array.dtype.kind == "b" and not takes_flags:
        condition = "be numbers" if interface.spaces.action.kind == "box" else "be whole numbers"
        raise ArgumentError(_OWNER, "action", array.dtype, condition)
    return (array[None] if is_single else array), is_single


def read_names(sessions: Any) -> list[Any]:
    """Return the names of sessions as a list, after checking that they are distinct."""
    # A text is a sequence as well, but of single characters.
    is_list = isinstance(sessions, list | tuple | range) and len(sessions) > 0
    require(_OWNER, "sessions", sessions, is_list, "be a list with at least one name")
    names = list(sessions)
    try:
        num_distinct = len(set(names))
    except TypeError as error:
        condition = "be hashable, such as texts or numbers"
        raise ArgumentError(_OWNER, "sessions", names, condition) from error
    require(_OWNER, "sessions", names, num_distinct == len(names), "be distinct")
    return names


def read_array(value: Any, name: str) -> Array:
    """Return an array of numbers or flags, as a copy."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            value = value.float()  # NumPy has no bfloat16
        return np.array(value.numpy(), order="C")

    condition = "be an array of numbers"
    try:
        array = np.array(value, order="C")
    except (TypeError, ValueError) as error:  # such as nested lists of different lengths
        raise ArgumentError(_OWNER, name, _brief(value), condition) from error
    require(_OWNER, name, _brief(value), array.dtype.kind in "biuf", condition)
    return array


def _read_column(value: Any, name: str, batch: tuple[int, ...]) -> Tensor:
    """Return one number per stream, ``[N]``."""
    array = read_array(value, name)
    require(_OWNER, name, array.shape, array.shape == batch, f"have the shape {batch}")
    return torch.from_numpy(array.reshape(math.prod(batch)))


def _brief(value: Any) -> Any:
    """Return a scalar unchanged, and the class of any other value, for messages."""
    return value if isinstance(value, str | int | float | bool | None) else type(value)
