"""Checkpoint contents as tensors and plain Python, so that reading one back executes no code.

``torch.load(weights_only=True)`` knows tensors and a few plain types. `encode` turns TensorDicts
and NumPy values into those, keeps tensors of their exact type and values, and refuses everything
else by name; `decode` undoes it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

_KIND = "__yamame__"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)


def encode(value: Any, name: str) -> Any:
    """Plain form of ``value``.

    Args:
        value: Tensors, TensorDicts, NumPy arrays and scalars, numbers, strings, bytes, None, and
            dictionaries, lists, tuples and sets of them.
        name: What the value is called in error messages.

    Raises:
        TypeError: Something else is inside; names the place and the type.

    >>> decode(encode({"a": (1, np.float32(2.5))}, "state"))
    {'a': (1, np.float32(2.5))}
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        tensor = value.detach().as_subclass(Tensor)
        # A view of a larger storage is copied, for the storage would be saved whole.
        partial = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
        return tensor.clone() if partial else tensor
    if isinstance(value, TensorDictBase):
        entries = {key: encode(item, f"{name}[{key!r}]") for key, item in value.items()}
        return {_KIND: "tensordict", "entries": entries, "batch_size": value.batch_size}
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        kind = "ndarray" if isinstance(value, np.ndarray) else "scalar"
        return {
            _KIND: kind,
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "data": value.tobytes(),
        }
    if isinstance(value, Mapping):
        return _encode_mapping(value, name)
    if type(value) in (list, tuple):
        return type(value)(encode(item, f"{name}[{index}]") for index, item in enumerate(value))
    if type(value) is set:
        return {encode(item, f"{name}{{...}}") for item in value}
    raise TypeError(
        f"Checkpointer: {name} must be tensors or plain data, got {type(value).__qualname__}"
    )


def _encode_mapping(value: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    items = (
        (encode(key, f"{name} key"), encode(item, f"{name}[{key!r}]"))
        for key, item in value.items()
    )
    if not isinstance(value, OrderedDict):
        return dict(items)
    ordered = OrderedDict(items)
    if hasattr(value, "_metadata"):
        ordered._metadata = value._metadata  # type: ignore[attr-defined]  # versions of a module's state
    return ordered


def decode(value: Any) -> Any:
    """The value that was given to `encode`; tensors stay on the device they were loaded to."""
    if isinstance(value, dict):
        kind = value.get(_KIND)
        if kind == "tensordict":
            return TensorDict(decode(value["entries"]), batch_size=value["batch_size"])
        if kind in ("ndarray", "scalar"):
            array = np.frombuffer(value["data"], dtype=value["dtype"]).reshape(value["shape"])
            return array.copy() if kind == "ndarray" else array[()]
        for key in value:
            value[key] = decode(value[key])
        return value
    if type(value) in (list, tuple):
        return type(value)(decode(item) for item in value)
    return value
