"""The observations and actions of an agent: specs of one stream, without a batch, and as plain data
for its file.

A spec becomes a mapping with ``kind``, ``shape``, ``dtype`` and what else its kind needs; a
`Composite` the mapping of its entries, under ``entries``. Entries that are no tensors are left out:
no agent reads them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)
from torchrl.envs import EnvBase, TransformedEnv

from yamame.checks import UsageError
from yamame.spaces import Spaces
from yamame.spaces.from_specs import describe, recorded_spaces
from yamame.transforms import ContextTransform

_KINDS: dict[str, Any] = {
    "multi_one_hot": MultiOneHot,  # before the kinds that they derive from
    "one_hot": OneHot,
    "binary": Binary,
    "multi_categorical": MultiCategorical,
    "categorical": Categorical,
    "bounded": Bounded,
    "unbounded": Unbounded,
}
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (*_INTEGERS, torch.float32, torch.float64)
}
_LARGEST = 2**28
"""Numbers of an observation at most: a file may ask for memory that there is not."""
STRANGE = AttributeError, KeyError, MemoryError, OverflowError, RuntimeError, TypeError, ValueError
"""What is raised where a file holds other data than it should."""


@dataclass(frozen=True)
class Interface:
    """The observations and actions of an agent, and the length of an episode.

    Attributes:
        observation_spec: Specs of one stream, with the context entries (`yamame.keys.CONTEXT`).
        action_spec: Spec of one stream.
        horizon: Steps after which ``time`` is 1; None where there is no ``time``, or the
            environment makes it itself.
        recorded: The description that the environment of training had of its Gymnasium spaces; None
            if it had none.
        spaces: The description of all entries and of the action.

    >>> from yamame_envs import MazeRunner
    >>> interface = Interface.of(MazeRunner(num_envs=2, size=5, time_limit=30))
    >>> interface.horizon, interface.action_spec.shape
    (30, torch.Size([]))
    >>> Interface.decode(interface.encode()) == interface
    True
    """

    observation_spec: Composite
    action_spec: TensorSpec
    horizon: int | None
    recorded: Spaces | None = None
    spaces: Spaces = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        spaces = describe(self.observation_spec, self.action_spec, self.recorded)
        object.__setattr__(self, "spaces", spaces)

    @classmethod
    def of(cls, env: EnvBase) -> "Interface":
        """The interface of an environment in the format of `yamame.keys`."""
        first = (0,) * env.batch_dims
        observations, action = env.observation_spec, env.full_action_spec["action"]
        horizon = None
        if "time" in observations.keys():
            transforms = env.transform if isinstance(env, TransformedEnv) else []
            given = [part.horizon for part in transforms if isinstance(part, ContextTransform)]
            bound = getattr(observations["step_index"].space, "high", None)
            horizon = given[0] if given else None if bound is None else int(bound.max())
        encoded = [_encode(spec[first] if first else spec) for spec in (observations, action)]
        return cls(_decode(encoded[0]), _decode(encoded[1]), horizon, recorded_spaces(env))

    def encode(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        specs = {name: _encode(getattr(self, name)) for name in ("observation_spec", "action_spec")}
        spaces = {} if self.recorded is None else {"spaces": self.recorded.encode()}
        return {**specs, "horizon": self.horizon, **spaces}

    @classmethod
    def decode(cls, data: Any) -> "Interface":
        """The interface that `encode` wrote; those of earlier versions have no ``spaces``.

        Raises:
            UsageError: If it is damaged.
        """
        try:
            observations, action = _decode(data["observation_spec"]), _decode(data["action_spec"])
            horizon = data["horizon"]
            if not isinstance(observations, Composite) or isinstance(action, Composite):
                raise ValueError("observation_spec must have entries, and action_spec none")
            if horizon is not None and not (type(horizon) is int and horizon >= 1):
                raise ValueError(f"horizon must be a positive integer or null, got {horizon!r}")
            recorded = data.get("spaces")
            return cls(
                observations, action, horizon, None if recorded is None else Spaces.decode(recorded)
            )
        except STRANGE as error:
            raise UsageError(
                f"interface must hold specs and a horizon, it cannot be read: {error!r}"
            ) from error


def _encode(spec: TensorSpec) -> dict[str, Any]:
    if isinstance(spec, Composite):
        held = {name: spec[name] for name in spec.keys()}
        tensors = {
            name: value
            for name, value in held.items()
            if isinstance(value, Composite) or _is_tensor(value)
        }
        return {"entries": {name: _encode(value) for name, value in tensors.items()}}
    kind = next(
        name for name, cls in _KINDS.items() if isinstance(spec, cls) or name == "unbounded"
    )
    data = {
        "kind": kind,
        "shape": list(spec.shape),
        "dtype": str(spec.dtype).removeprefix("torch."),
    }
    if kind in ("multi_one_hot", "multi_categorical"):
        nvec = spec.nvec.tolist() if isinstance(spec.nvec, Tensor) else list(spec.nvec)
        return data | {"nvec": [int(n) for n in nvec]}
    if kind == "bounded":
        return data | {"low": _numbers(spec.space.low), "high": _numbers(spec.space.high)}
    return data if kind in ("unbounded", "binary") else data | {"n": int(spec.space.n)}


def _is_tensor(spec: TensorSpec) -> bool:
    return str(spec.dtype).removeprefix("torch.") in _DTYPES and all(
        size >= 0 for size in spec.shape
    )


def _numbers(bound: Tensor) -> Any:
    """A bound as a number, where it is everywhere the same, or as nested lists; infinities as
    texts.
    """
    values = (
        bound.flatten()[:1]
        if bound.numel() and bool((bound == bound.flatten()[0]).all())
        else bound
    )
    listed = values.item() if values.numel() == 1 else values.tolist()
    return _replaced(listed, lambda number: number if math.isfinite(number) else str(number))


def _replaced(value: Any, function: Any) -> Any:
    return (
        [_replaced(item, function) for item in value]
        if isinstance(value, list)
        else function(value)
    )


def _decode(data: Mapping[str, Any]) -> TensorSpec:
    if "entries" in data:
        return Composite({str(name): _decode(value) for name, value in data["entries"].items()})
    cls, shape, dtype = _KINDS[data["kind"]], torch.Size(data["shape"]), _DTYPES[data["dtype"]]
    if shape.numel() > _LARGEST or min(shape, default=0) < 0:
        raise ValueError(f"shape must have at most {_LARGEST} numbers, got {tuple(shape)}")
    if "nvec" in data:
        return cls(
            torch.tensor(data["nvec"]) if cls is MultiCategorical else data["nvec"],
            shape=shape,
            dtype=dtype,
        )
    if cls is Bounded:
        number = int if dtype in _INTEGERS else float
        low, high = (_replaced(data[name], number) for name in ("low", "high"))
        low, high = (
            torch.tensor(bound, dtype=dtype).expand(shape).clone()
            if isinstance(bound, list)
            else bound
            for bound in (low, high)
        )
        return Bounded(low, high, shape=shape, dtype=dtype)
    return cls(**({"n": int(data["n"])} if "n" in data else {}), shape=shape, dtype=dtype)
