"""What `DeployedAgent.act` is given becomes tensors, or one ``ValueError`` that says what is wrong with it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torch import Tensor
from torchrl.data import Composite, TensorSpec

from yamame.failures import as_text
from yamame.keys import CONTEXT, ENTRIES

_OWNER = "DeployedAgent"


class Inputs:
    """Reads observations of one stream or of several.

    Args:
        spec: What the environment shows, the context included, of one stream.
        wanted: The entries that the policy reads.
        makes_time: Whether the agent makes ``time`` itself.

    Attributes:
        spec: The entries that are read.
    """

    def __init__(self, spec: Composite, wanted: Sequence[NestedKey], *, makes_time: bool) -> None:
        made = set(CONTEXT) if makes_time else set(CONTEXT) - {"time"}
        keys = [
            key for key in spec.keys(True, True) if key in set(map(unravel_key, wanted)) and key not in made
        ]
        self.spec = Composite()
        for key in keys:
            self.spec[key] = spec[key]
        self._leaves: dict[NestedKey, TensorSpec] = {key: spec[key] for key in keys}
        self._known = {entry.name for entry in ENTRIES} | {"next", *spec.keys()}

    def read(self, observation: Any, num: int | None) -> tuple[TensorDict, bool]:
        """The entries ``[N]`` of an observation, and whether they were given as tensors.

        Args:
            observation: A mapping or TensorDict of arrays; or an array, where one entry is all there is.
            num: N; None for one stream without a batch.
        """
        if not isinstance(observation, Mapping | TensorDictBase):
            if len(self._leaves) != 1:
                raise ValueError(
                    f"{_OWNER}: observation must be a mapping with {self._names()}, got {_kind(observation)}"
                )
            (key,) = self._leaves
            observation = _nested(key, observation)
        unknown = sorted(str(name) for name in observation.keys() if name not in self._known)
        if unknown:
            raise ValueError(f"{_OWNER}: observation must have {self._names()}, got {unknown[0]!r} as well")
        values = {key: _entry(observation, key, self._names()) for key in self._leaves}
        batch = () if num is None else (num,)
        tensors = {key: _tensor(value, f"observation {as_text(key)}") for key, value in values.items()}
        entries = {key: _fitted(tensors[key], spec, batch, key) for key, spec in self._leaves.items()}
        nested = TensorDict({}, [1 if num is None else num])
        for key, value in entries.items():
            nested[key] = value
        return nested, any(isinstance(value, Tensor) for value in values.values())

    def _names(self) -> str:
        return ", ".join(f"{as_text(key)} {tuple(spec.shape)}" for key, spec in self._leaves.items())


def read_flags(value: Any, name: str, num: int | None) -> Tensor:
    """One flag per stream ``[N]`` bool; None: none is set."""
    if value is None:
        return torch.zeros(num or 1, dtype=torch.bool)
    flags = _column(value, name, num)
    if flags.dtype != torch.bool:
        raise ValueError(f"{_OWNER}: {name} must be true or false, got {flags.dtype}".replace("torch.", ""))
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
        raise ValueError(f"{_OWNER}: reward must be finite, got {_first(reward[~reward.isfinite()])}")
    if (reward[fresh] != 0).any():
        raise ValueError(
            f"{_OWNER}: reward must be 0 or left out where a session begins, for nothing was done yet, got "
            f"{_first(reward[fresh & (reward != 0)])}"
        )
    return reward


def read_names(sessions: Any) -> list[Any]:
    """Names of sessions."""
    if not isinstance(sessions, list | tuple | range) or not len(sessions):
        raise ValueError(f"{_OWNER}: sessions must be a list with at least one name, got {as_text(sessions)}")
    names = list(sessions)
    try:
        twice = len(set(names)) < len(names)
    except TypeError as error:
        raise ValueError(
            f"{_OWNER}: sessions must be names that hash, as text and numbers do: {error}"
        ) from error
    if twice:
        raise ValueError(f"{_OWNER}: sessions must be different ones, got {as_text(names)}")
    return names


def _column(value: Any, name: str, num: int | None) -> Tensor:
    tensor, shape = _tensor(value, name), () if num is None else (num,)
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{_OWNER}: {name} must have the shape {shape}, got {tuple(tensor.shape)}")
    return tensor.reshape(num or 1)


def _entry(observation: Any, key: NestedKey, names: str) -> Any:
    value = observation
    for part in (key,) if isinstance(key, str) else key:
        value = value.get(part, None) if isinstance(value, Mapping | TensorDictBase) else None
        if value is None:
            raise ValueError(f"{_OWNER}: observation must have {names}, it has no {as_text(key)}")
    return value


def _nested(key: NestedKey, value: Any) -> Any:
    for part in reversed((key,) if isinstance(key, str) else key):
        value = {part: value}
    return value


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.array(value, order="C")
        if array.dtype.kind not in "biuf":
            raise TypeError(f"got {array.dtype}")
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_OWNER}: {name} must be an array of numbers, got {_kind(value)}") from error


def _fitted(tensor: Tensor, spec: TensorSpec, batch: tuple[int, ...], key: NestedKey) -> Tensor:
    """A tensor of the shape and dtype of a spec, ``[N, ...]``."""
    name, shape = f"observation {as_text(key)}", (*batch, *spec.shape)
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{_OWNER}: {name} must have the shape {shape}, got {tuple(tensor.shape)}")
    dtype, cast = str(spec.dtype).removeprefix("torch."), tensor
    if tensor.dtype != spec.dtype:
        possible = torch.can_cast(tensor.dtype, spec.dtype)
        cast = tensor.to(spec.dtype) if possible else tensor
        if not possible or not (cast.is_floating_point() or bool((cast == tensor).all())):
            raise ValueError(f"{_OWNER}: {name} must be {dtype}, got {tensor.dtype}".replace("torch.", ""))
    if cast.is_floating_point() and not bool(cast.isfinite().all()):
        raise ValueError(f"{_OWNER}: {name} must be finite, got {_first(cast[~cast.isfinite()])}")
    return cast if batch else cast.unsqueeze(0)


def _first(values: Tensor) -> float:
    return float(values.flatten()[0])


def _kind(value: Any) -> str:
    return type(value).__name__ if not isinstance(value, str | int | float | bool | None) else as_text(value)
