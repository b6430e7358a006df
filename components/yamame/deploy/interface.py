"""Observations and actions of an agent: specs of one stream, also as plain data for its file.

A spec becomes a mapping with ``kind``, ``shape``, ``dtype`` and the further arguments of its kind.
A `Composite` becomes the mapping of its entries, under ``entries``. Entries that are not tensors
are left out, because no agent reads them.
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
from yamame.files.schema import Whole, check_form
from yamame.spaces import Spaces
from yamame.spaces.from_specs import describe, recorded_spaces
from yamame.transforms import ContextTransform
from yamame.transforms.context import episode_limit

_KINDS: dict[str, Any] = {
    # The first class that fits decides, so subclasses come before the classes they derive from.
    "multi_one_hot": MultiOneHot,
    "one_hot": OneHot,
    "binary": Binary,
    "multi_categorical": MultiCategorical,
    "categorical": Categorical,
    "bounded": Bounded,
    "unbounded": Unbounded,
}
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float32": torch.float32,
    "float64": torch.float64,
}
_LARGEST = 2**28
"""Largest number of elements of a spec. A file from elsewhere could ask for more memory than there
is."""
_LARGEST_SUM = 2**25
"""Largest number of elements of all specs together: bounds take up to 16 bytes for each."""
_MOST_ENTRIES = 1000
_LONGEST_HORIZON = 2**53
"""Largest number of steps that a float holds exactly."""
_LONGEST_NAME = 500
_SPACES = {"observations": [{str: object}], "action": {"parts": [{str: object}]}}
STRANGE = AttributeError, KeyError, MemoryError, OverflowError, RuntimeError, TypeError, ValueError
"""Errors that reading a file with unexpected content can raise."""


@dataclass(frozen=True)
class Interface:
    """Observations and actions of an agent, and the length of an episode.

    Attributes:
        observation_spec: Specs of one stream, with the context entries (`yamame.keys.CONTEXT`).
        action_spec: Spec of one stream.
        horizon: Steps after which ``time`` is 1; None if there is no ``time``, or the environment
            computes it itself.
        recorded: Description of the Gymnasium spaces by the environment of training; None if it has
            no such spaces.
        spaces: Description of all entries and of the action.

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
        object.__setattr__(self, "spaces", spaces)  # a frozen dataclass allows nothing else

    @classmethod
    def of(cls, env: EnvBase) -> "Interface":
        """Return the interface of an environment in the format of `yamame.keys`."""
        observation_spec = env.observation_spec
        action_spec = env.full_action_spec["action"]
        horizon = _horizon(env)
        if env.batch_dims > 0:
            first = (0,) * env.batch_dims
            observation_spec = observation_spec[first]
            action_spec = action_spec[first]
        # Encoded and decoded, the interface of an environment equals the one in its file.
        observations = _decode(_encode(observation_spec))
        action = _decode(_encode(action_spec))
        assert isinstance(observations, Composite)
        return cls(observations, action, horizon, recorded_spaces(env))

    def encode(self) -> dict[str, Any]:
        """Return plain data that JSON can hold."""
        data: dict[str, Any] = {
            "observation_spec": _encode(self.observation_spec),
            "action_spec": _encode(self.action_spec),
            "horizon": self.horizon,
        }
        if self.recorded is not None:
            data["spaces"] = self.recorded.encode()
        return data

    @classmethod
    def decode(cls, data: Any) -> "Interface":
        """Return the interface that `encode` wrote; files of early versions have no ``spaces``.

        Raises:
            UsageError: The data are damaged.
        """
        try:
            _check_sizes(data)
            observations = _decode(data["observation_spec"])
            action = _decode(data["action_spec"])
            horizon = data["horizon"]
            if not isinstance(observations, Composite) or isinstance(action, Composite):
                raise ValueError("only observation_spec must have entries")
            # The type is compared, because a flag is an int as well.
            is_length = type(horizon) is int and 1 <= horizon <= _LONGEST_HORIZON
            if horizon is not None and not is_length:
                raise ValueError(f"horizon must be a positive integer or null, got {horizon!r}")
            recorded = data.get("spaces")
            if recorded is not None:
                recorded = Spaces.decode(recorded)
            return cls(observations, action, horizon, recorded)
        except STRANGE as error:
            raise UsageError(
                f"interface must hold specs and a horizon, it cannot be read: {error!r}"
            ) from error


def dtype_name(spec: TensorSpec) -> str:
    """Return the dtype of a spec by its name in NumPy, such as ``float32``."""
    return str(spec.dtype).removeprefix("torch.")


def dotted(key: str | tuple[str, ...]) -> str:
    """Return a key of a TensorDict as one name.

    >>> dotted("goal"), dotted(("observation", "camera"))
    ('goal', 'observation.camera')
    """
    return key if isinstance(key, str) else ".".join(key)


def _horizon(env: EnvBase) -> int | None:
    """Return the number of steps after which ``time`` is 1."""
    observations = env.observation_spec
    if "time" not in observations.keys():
        return None
    if isinstance(env, TransformedEnv):
        for transform in env.transform:
            if isinstance(transform, ContextTransform):
                return transform.horizon
    # Environments that write the context themselves declare the horizon as a bound.
    return episode_limit(observations)


def _encode(spec: TensorSpec) -> dict[str, Any]:
    if isinstance(spec, Composite):
        entries = {}
        for name in spec.keys():
            value = spec[name]
            if isinstance(value, Composite) or _is_tensor(value):
                entries[name] = _encode(value)
        return {"entries": entries}

    kind = _kind(spec)
    data: dict[str, Any] = {"kind": kind, "shape": list(spec.shape), "dtype": dtype_name(spec)}
    if kind in ("multi_one_hot", "multi_categorical"):
        nvec = spec.nvec.tolist() if isinstance(spec.nvec, Tensor) else spec.nvec
        data["nvec"] = list(map(int, nvec))
    elif kind == "bounded":
        data["low"] = _encode_bound(spec.space.low)
        data["high"] = _encode_bound(spec.space.high)
    elif kind in ("one_hot", "categorical"):
        data["n"] = int(spec.space.n)
    return data


def _kind(spec: TensorSpec) -> str:
    for name, cls in _KINDS.items():
        if isinstance(spec, cls):
            return name
    # TorchRL has further kinds. Their values are read without bounds.
    return "unbounded"


def _is_tensor(spec: TensorSpec) -> bool:
    """Return whether the values of a spec are tensors of a known dtype and shape."""
    is_ragged = any(size < 0 for size in spec.shape)
    return dtype_name(spec) in _DTYPES and not is_ragged


def _encode_bound(bound: Tensor) -> Any:
    """Return a bound as nested lists, or as one number if it is the same everywhere."""
    flat = bound.flatten()
    if bound.numel() > 0 and bool((flat == flat[0]).all()):
        return _encode_numbers(flat[0].item())
    return _encode_numbers(bound.tolist())


def _encode_numbers(value: Any) -> Any:
    """Return numbers with infinities as texts, because JSON has none."""
    if isinstance(value, list):
        return [_encode_numbers(item) for item in value]
    return value if math.isfinite(value) else str(value)


def _check_sizes(data: Mapping[str, Any]) -> None:
    """Raise if the specs and spaces of a file have too many entries or numbers.

    Raises:
        ValueError: They have more than any environment.
    """
    waiting: list[tuple[str, Any]] = [("", data["observation_spec"]), ("", data["action_spec"])]
    recorded = data.get("spaces")
    if recorded is not None:
        check_form(recorded, _SPACES, "spaces")
        waiting += [("", part) for part in recorded["observations"]]
        waiting += [("", part) for part in recorded["action"]["parts"]]
    num_numbers = 0
    num_entries = 0
    while waiting:
        name, spec = waiting.pop()
        num_entries += 1
        if num_entries > _MOST_ENTRIES or len(name) > _LONGEST_NAME:
            raise ValueError(f"it must have at most {_MOST_ENTRIES} entries with short names")
        if "entries" in spec:
            waiting += spec["entries"].items()
            continue
        shape = spec["shape"]
        check_form(shape, [Whole()], "shape")
        size = math.prod(shape)
        if size > _LARGEST:
            raise ValueError(f"shape must have at most {_LARGEST} numbers, got {tuple(shape)}")
        num_numbers += size
        if num_numbers > _LARGEST_SUM:
            raise ValueError(f"all specs together must have at most {_LARGEST_SUM} numbers")


def _decode(data: Mapping[str, Any]) -> TensorSpec:
    if "entries" in data:
        entries = {}
        for name, value in data["entries"].items():
            entries[str(name)] = _decode(value)
        return Composite(entries)

    cls = _KINDS[data["kind"]]
    shape = torch.Size(data["shape"])
    dtype = _DTYPES[data["dtype"]]
    if "nvec" in data:
        # The two classes with several choices take them in different forms.
        nvec = torch.tensor(data["nvec"]) if cls is MultiCategorical else data["nvec"]
        return cls(nvec, shape=shape, dtype=dtype)
    if cls is Bounded:
        low = _decode_bound(data["low"], shape, dtype)
        high = _decode_bound(data["high"], shape, dtype)
        return Bounded(low, high, shape=shape, dtype=dtype)
    if "n" in data:
        return cls(n=int(data["n"]), shape=shape, dtype=dtype)
    return cls(shape=shape, dtype=dtype)


def _decode_bound(value: Any, shape: torch.Size, dtype: torch.dtype) -> Any:
    numbers = _decode_numbers(value, dtype)
    if isinstance(numbers, list):
        return torch.tensor(numbers, dtype=dtype).expand(shape).clone()
    return numbers


def _decode_numbers(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list):
        return [_decode_numbers(item, dtype) for item in value]
    return int(value) if dtype in _INTEGERS else float(value)
