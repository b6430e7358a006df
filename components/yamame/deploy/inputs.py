"""Arguments of `DeployedAgent.act` as tensors; a ``ValueError`` names the first that is wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torch import Tensor
from torchrl.data import Binary, Composite, MultiOneHot, OneHot

from yamame.deploy.interface import Interface
from yamame.keys import CONTEXT, ENTRIES
from yamame.spaces import ObservationEntry
from yamame.spaces.arrays import Array, child, is_tree
from yamame.spaces.observation import is_nested_as_space
from yamame.system.messages import format_value

_OWNER = "DeployedAgent"


class Inputs:
    """Reads observations of one stream or of several.

    Args:
        interface: The observations of the agent, the context included.
        wanted: The entries that the policy reads.
        makes_time: Whether the agent makes ``time`` itself.

    Attributes:
        spec: The entries that are read.
    """

    def __init__(
        self, interface: Interface, wanted: Sequence[NestedKey], *, makes_time: bool
    ) -> None:
        spec = interface.observation_spec
        made = set(CONTEXT) if makes_time else set(CONTEXT) - {"time"}
        keys = [
            key
            for key in spec.keys(True, True)
            if key in set(map(unravel_key, wanted)) and key not in made
        ]
        self.spec = Composite()
        for key in keys:
            self.spec[key] = spec[key]
        described = {unravel_key(entry.key): entry for entry in interface.spaces.observations}
        self._entries = {key: described[unravel_key(key)] for key in keys}
        self._known = {entry.name for entry in ENTRIES} | {"next", *spec.keys()}
        self._known |= {str(entry.path[0]) for entry in interface.spaces.observations if entry.path}
        recorded = () if interface.recorded is None else interface.recorded.observations
        # Number of values in each Tuple of the space, by the path of the Tuple.
        self._lengths: dict[tuple[str | int, ...], int] = {}
        for path in (entry.path for entry in recorded):
            for depth, place in enumerate(path):
                if isinstance(place, int):
                    self._lengths[path[:depth]] = max(self._lengths.get(path[:depth], 0), place + 1)

    def read(self, observation: Any, num: int | None) -> tuple[TensorDict, bool]:
        """The entries ``[N]`` of an observation, and whether they were given as tensors.

        Args:
            observation: A value of the environment's space, such as a dictionary or tuple of
                arrays; a mapping or TensorDict by the names of the entries; or an array, if there
                is one entry alone. Each array is read by `yamame.spaces.ObservationEntry.read`.
            num: N; None for one stream without a batch.
        """
        if isinstance(observation, Mapping | TensorDictBase):
            unknown = sorted(str(name) for name in observation.keys() if name not in self._known)
            if unknown:
                raise ValueError(
                    f"{_OWNER}: observation must have {self._names()}, got {unknown[0]!r} as well"
                )
        elif not isinstance(observation, tuple) and len(self._entries) != 1:
            raise ValueError(
                f"{_OWNER}: observation must be a mapping with {self._names()}, got {_kind(observation)}"
            )
        for path, length in self._lengths.items():
            value = observation
            for place in path:
                value = child(value, place)
            if isinstance(value, tuple) and len(value) != length:
                where = "".join(f" {format_value(place)}" for place in path)
                raise ValueError(
                    f"{_OWNER}: observation{where} must be a tuple of {length} values, got {len(value)}"
                )
        batch = () if num is None else (num,)
        by_path = is_nested_as_space(self._entries.values(), observation)
        values = {
            key: self._value(observation, entry, by_path) for key, entry in self._entries.items()
        }
        nested = TensorDict({}, [1 if num is None else num])
        for key, entry in self._entries.items():
            label = f"{_OWNER}: observation {format_value(key)}"
            array = read_array(values[key], f"observation {format_value(key)}")
            read = entry.read(array, batch=batch, label=label, bounded=True)
            nested[key] = torch.from_numpy(read if batch else read[None])
        return nested, any(isinstance(value, Tensor) for value in values.values())

    def _value(self, observation: Any, entry: ObservationEntry, by_path: bool) -> Any:
        if not is_tree(observation):
            return observation
        value = entry.find(observation, by_path=by_path)
        if value is None and isinstance(observation, tuple) and len(self._entries) == 1:
            return observation  # an array may be written as a tuple of numbers
        if value is None:
            raise ValueError(
                f"{_OWNER}: observation must have {self._names()}, it has no {format_value(entry.key)}"
            )
        return value

    def _names(self) -> str:
        return ", ".join(
            f"{format_value(key)} {entry.stored_shape}" for key, entry in self._entries.items()
        )


def read_flags(value: Any, name: str, num: int | None) -> Tensor:
    """One flag per stream ``[N]`` bool; None: none is set."""
    if value is None:
        return torch.zeros(num or 1, dtype=torch.bool)
    flags = _column(value, name, num)
    if flags.dtype != torch.bool:
        raise ValueError(
            f"{_OWNER}: {name} must be true or false, got {flags.dtype}".replace("torch.", "")
        )
    return flags


def read_reward(value: Any, num: int | None, begins: Tensor, fresh: Tensor) -> Tensor:
    """One reward per stream ``[N]`` float32.

    Args:
        value: What was given, or None.
        num: As for `Inputs.read`.
        begins: ``[N]`` bool, streams that see the first timestep of an episode.
        fresh: ``[N]`` bool, those of them that have done nothing yet.
    """
    if value is None:
        if not begins.all():
            raise ValueError(f"{_OWNER}: reward must be given to sessions that go on, got None")
        return torch.zeros(num or 1)
    reward = _column(value, "reward", num).to(torch.float32)
    if not reward.isfinite().all():
        raise ValueError(
            f"{_OWNER}: reward must be finite, got {_first(reward[~reward.isfinite()])}"
        )
    if (reward[fresh] != 0).any():
        raise ValueError(
            f"{_OWNER}: reward must be 0 or left out where a session begins, for nothing was done yet, got "
            f"{_first(reward[fresh & (reward != 0)])}"
        )
    return reward


def read_action(value: Any, interface: Interface) -> tuple[Array, bool]:
    """Actions ``[N, ...]`` in the shape of the spec, and whether one alone was given, without a
    batch.
    """
    array, shape = read_array(value, "action"), tuple(interface.action_spec.shape)
    one = array.shape == shape
    if not one and array.shape[1:] != shape:
        raise ValueError(
            f"{_OWNER}: action must have the shape {shape} or {('N', *shape)}, got {array.shape}"
        )
    flags = isinstance(interface.action_spec, Binary | OneHot | MultiOneHot)
    if array.dtype.kind == "b" and not flags:
        kind = "numbers" if interface.spaces.action.kind == "box" else "whole numbers"
        raise ValueError(f"{_OWNER}: action must be {kind}, got bool")
    return (array[None] if one else array), one


def read_names(sessions: Any) -> list[Any]:
    """Names of sessions."""
    if not isinstance(sessions, list | tuple | range) or not len(sessions):
        raise ValueError(
            f"{_OWNER}: sessions must be a list with at least one name, got {format_value(sessions)}"
        )
    names = list(sessions)
    try:
        twice = len(set(names)) < len(names)
    except TypeError as error:
        raise ValueError(
            f"{_OWNER}: sessions must be names that hash, as text and numbers do: {error}"
        ) from error
    if twice:
        raise ValueError(f"{_OWNER}: sessions must be different ones, got {format_value(names)}")
    return names


def _column(value: Any, name: str, num: int | None) -> Tensor:
    tensor, shape = torch.from_numpy(read_array(value, name)), () if num is None else (num,)
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{_OWNER}: {name} must have the shape {shape}, got {tuple(tensor.shape)}")
    return tensor.reshape(num or 1)


def read_array(value: Any, name: str) -> Array:
    """An array of numbers or flags, as a copy."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (
            value.float() if value.dtype == torch.bfloat16 else value
        )  # NumPy has no such numbers
        return np.array(value.numpy(), order="C")
    try:
        array = np.array(value, order="C")
        if array.dtype.kind not in "biuf":
            raise TypeError(f"got {array.dtype}")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{_OWNER}: {name} must be an array of numbers, got {_kind(value)}"
        ) from error
    return array


def _first(values: Tensor) -> float:
    return float(values.flatten()[0])


def _kind(value: Any) -> str:
    return (
        type(value).__name__
        if not isinstance(value, str | int | float | bool | None)
        else format_value(value)
    )
