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
from yamame.spaces.arrays import Array, Key, SpaceError, is_tree
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

        self._layout = _Layout(interface, is_single=len(self._entries) == 1)
        # Entries whose numbers out of bounds were reported.
        self._reported: set[NestedKey] = set()

    def read(self, observation: Any, batch: tuple[int, ...]) -> tuple[TensorDict, bool]:
        """Return the entries of an observation as tensors.

        The observation is nested in one of two ways: as in the environment's space, or by the names
        of the stored entries, whose common root ``observation`` may be left out. The first one is
        assumed if it finds a value for every entry.

        Args:
            observation: A value of the environment's space, such as a dictionary or tuple of
                arrays; a mapping or TensorDict by the names of the entries; or an array, if there
                is only one entry. Arrays are read by `yamame.spaces.ObservationEntry.read`. Lists
                may stand for arrays and for the tuples of ``Tuple`` spaces.
            batch: Leading dimensions of each array: ``(N,)``, or ``()`` for one stream. A list of N
                observations is accepted as well.

        Returns:
            The entries ``[N]``, or ``[1]`` for one stream; and whether a tensor was passed.

        Raises:
            ArgumentError: An entry is missing or unknown, or is not an array of numbers.
            SpaceError: An array does not belong to the space of its entry.
        """
        if batch and self._layout.is_list_of_observations(observation):
            condition = f"have one observation for each of the {batch[0]} sessions"
            require(
                _OWNER, "observation", len(observation), len(observation) == batch[0], condition
            )
            read = []
            for index, single in enumerate(observation):
                read.append(self._read(single, (), f"observation[{index}]"))
            entries, has_tensors = zip(*read, strict=True)
            return torch.cat(entries), any(has_tensors)
        return self._read(observation, batch, "observation")

    def _read(
        self, observation: Any, batch: tuple[int, ...], label: str
    ) -> tuple[TensorDict, bool]:
        """Read as `read`; ``label`` names the observation in messages."""
        self._check_alone(observation, label)
        observation = self._layout.with_tuples(observation, label)
        self._check_names(observation, label)
        by_path = is_nested_as_space(self._entries.values(), observation)
        rows = math.prod(batch)
        entries = TensorDict({}, [rows])
        has_tensors = False
        for key, entry in self._entries.items():
            value = self._find(observation, entry, by_path, label)
            has_tensors = has_tensors or isinstance(value, Tensor)
            name = f"{label} {format_value(key)}"
            array = read_array(value, name, f" of {_form(entry)}")
            full = f"{_OWNER}: {name}"
            report = None if key in self._reported else partial(self._report, key)
            try:
                stored = entry.read(array, batch=batch, label=full, bounded=True, report=report)
            except SpaceError as error:
                error.remedy = _remedy(entry, array.shape, batch) or error.remedy
                raise
            entries[key] = torch.from_numpy(stored.reshape(rows, *entry.stored_shape))
        return entries, has_tensors

    def _report(self, key: NestedKey, message: str) -> None:
        """Warn about the first number of an entry outside of its bounds."""
        self._reported.add(key)
        warnings.warn(f"{message}; further ones are not reported", stacklevel=6)

    def _check_alone(self, observation: Any, label: str) -> None:
        """Refuse the tuples that ``reset`` and ``step`` of an environment return."""
        if self._layout.root_length is not None or not isinstance(observation, tuple):
            return
        has_info = len(observation) in (2, 5) and isinstance(observation[-1], Mapping)
        remedy = "unpack it: observation, info = env.reset()"
        condition = "be an observation alone, without info"
        require(_OWNER, label, tuple, not has_info, condition, remedy=remedy)

    def _check_names(self, observation: Any, label: str) -> None:
        """Refuse an unknown name, and a single array if there are several entries."""
        if isinstance(observation, Mapping | TensorDictBase):
            unknown = self._layout.unknown_name(observation)
            if unknown is not None:
                condition = f"have no entries besides {self._describe()}"
                raise ArgumentError(_OWNER, label, unknown, condition)
        elif not isinstance(observation, tuple) and len(self._entries) != 1:
            condition = f"be a mapping with {self._describe()}"
            if self._layout.root_length is not None:
                condition = f"be a tuple with {self._describe()}"
            raise ArgumentError(_OWNER, label, _brief(observation), condition)

    def _find(self, observation: Any, entry: ObservationEntry, by_path: bool, label: str) -> Any:
        """Return the value of an entry."""
        if not is_tree(observation):
            return observation
        value = entry.find(observation, by_path=by_path)
        if value is not None:
            return value
        if isinstance(observation, tuple) and len(self._entries) == 1:
            # An array may be written as a tuple of numbers.
            return observation
        condition = f"have an entry {format_value(entry.key)} of {_form(entry)}"
        names = type(observation) if isinstance(observation, tuple) else list(observation.keys())
        raise ArgumentError(_OWNER, label, names, condition)

    def _describe(self) -> str:
        """Return names, shapes and dtypes of the entries, for messages."""
        parts = []
        for key, entry in self._entries.items():
            parts.append(f"{format_value(key)} {entry.shape} {entry.raw_dtype}")
        return ", ".join(parts)


_Place = tuple[str, ...]


class _Layout:
    """Places of values in observations, nested as in the space or by the names of entries.

    Args:
        interface: Observations of the agent.
        is_single: Whether the agent reads a single entry.

    Attributes:
        root_length: Number of values of an observation that is a tuple itself; None for others.
    """

    def __init__(self, interface: Interface, *, is_single: bool) -> None:
        # Values of no interest, so that a timestep of an environment can be passed as it is.
        self._ignored = {"next", *(entry.name for entry in ENTRIES)}
        self._leaves: set[_Place] = set()
        for key in interface.observation_spec.keys(True, True):
            self._leaves.add(key if isinstance(key, tuple) else (key,))
        for entry in interface.spaces.observations:
            path = tuple(map(str, entry.path))
            self._leaves.update((path, entry.name))
            if len(entry.name) > 1:
                self._leaves.add(entry.name[1:])
        for place in interface.spaces.empty:
            self._leaves.add(tuple(map(str, place)))
        self._tuples = _tuples(interface.recorded)

        # Mappings that contain entries.
        self._parents: set[_Place] = set()
        for place in self._leaves:
            self._parents.update(place[:depth] for depth in range(len(place)))
        self._is_single = is_single
        self.root_length = self._tuples.get(())

    def is_list_of_observations(self, observation: Any) -> bool:
        """Return whether a value for several sessions is a list of their observations.

        Other lists are arrays whose first dimension is that of the sessions. Vector environments of
        Gymnasium have tuples of observations, too.
        """
        has_trees = isinstance(observation, list | tuple) and any(map(is_tree, observation))
        if self.root_length is not None:
            return isinstance(observation, list)
        return has_trees

    def with_tuples(self, value: Any, label: str, place: _Place = ()) -> Any:
        """Return an observation with tuples where its space has them, and no others.

        JSON, for one, has lists alone.

        Raises:
            ArgumentError: A tuple has another number of values, of which some would be ignored.
        """
        length = self._tuples.get(place)
        if isinstance(value, list) and length is not None:
            # A single array may be a list of numbers.
            if len(value) == length or not self._is_single:
                value = tuple(value)
        if isinstance(value, tuple):
            if length is None and place in self._leaves:
                return value if not place else list(value)
            if length is not None and len(value) != length:
                name = " ".join([label, *map(format_value, place)])
                condition = f"be a tuple of {length} values"
                raise ArgumentError(_OWNER, name, len(value), condition)
            inner = []
            for index, item in enumerate(value):
                inner.append(self.with_tuples(item, label, (*place, str(index))))
            return tuple(inner)
        # A TensorDict holds no tuples.
        if isinstance(value, Mapping) and place in self._parents:
            return {
                name: self.with_tuples(item, label, (*place, str(name)))
                for name, item in value.items()
            }
        return value

    def unknown_name(self, tree: Any, place: _Place = ()) -> Any:
        """Return the first name that no entry has, at any depth; None if all are known."""
        for name in sorted(tree.keys(), key=str):
            if not place and name in self._ignored:
                continue
            here = (*place, str(name))
            value = tree[name]
            has_keys = hasattr(value, "keys")
            if here in self._parents and has_keys:
                unknown = self.unknown_name(value, here)
                if unknown is not None:
                    return unknown
            elif here not in self._leaves and here not in self._parents:
                # An empty space has no entries.
                if not (is_tree(value) and len(value) == 0):
                    return name if not place else (*place, name)
        return None


def _tuples(spaces: Spaces | None) -> dict[_Place, int]:
    """Return the number of values of each ``Tuple`` space, by its path and by its name."""
    if spaces is None:
        return {}
    keys: dict[tuple[Key, ...], set[Key]] = {}
    for path in [*(entry.path for entry in spaces.observations), *spaces.empty]:
        for depth, key in enumerate(path):
            keys.setdefault(path[:depth], set()).add(key)

    # Without entries at the root, all of them are below one name.
    first = spaces.observations[0]
    root = first.name[: len(first.name) - len(first.path)]
    lengths: dict[_Place, int] = {}
    for parent, inner in keys.items():
        # Keys of a Dict may be whole numbers as well.
        if inner == set(range(len(inner))):
            place = tuple(map(str, parent))
            lengths[place] = lengths[root + place] = len(inner)
    return lengths


def _form(entry: ObservationEntry) -> str:
    form = f"shape {entry.shape} and dtype {entry.raw_dtype}"
    return f"{form}, or one-hot {entry.stored_shape}" if entry.kind == "one_hot" else form


def _remedy(entry: ObservationEntry, shape: tuple[int, ...], batch: tuple[int, ...]) -> str | None:
    """Return advice for an array that its entry refuses; None if its shape is right."""
    own_shapes = (entry.shape, entry.stored_shape)
    if batch and shape in own_shapes:
        return "with sessions, the first dimension of each array is their number"
    if shape[: len(batch)] == batch and shape[len(batch) :] in own_shapes:
        return None
    return f"its dtype is {entry.raw_dtype}"


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
        condition = "be given to a session that has acted, unless an episode starts"
        remedy = (
            "call reset() before the first observation of another episode, or pass the last reward "
            "with done=True"
        )
        require(_OWNER, "reward", None, bool(is_init.all()), condition, remedy=remedy)
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
        remedy = "with done=True the last reward of an episode needs no reset()"
        first = reward[too_early][0].item()
        raise ArgumentError(_OWNER, "reward", first, condition, remedy=remedy)
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


def read_array(value: Any, name: str, form: str = "") -> Array:
    """Return an array of numbers or flags, as a copy.

    Args:
        value: An array, tensor, number or list.
        name: Name of the value, for messages.
        form: Shape and dtype that it must have, for messages.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            value = value.float()  # NumPy has no bfloat16
        return np.array(value.numpy(), order="C")

    condition = f"be an array of numbers{form}"
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
