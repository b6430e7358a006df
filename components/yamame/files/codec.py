"""Contents of checkpoints as tensors and plain Python objects, which can be read without executing
code.

``torch.load(weights_only=True)`` reads tensors and a few plain types. `encode` converts TensorDicts
and NumPy values to these types, and `decode` converts them back to the same types and bits.
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
    """Convert a value to tensors and plain types.

    Args:
        value: Tensors, TensorDicts, NumPy arrays and scalars, numbers, strings, bytes, None, and
            dictionaries, lists, tuples and sets of them.
        name: Name of the value in error messages.

    Raises:
        TypeError: The value contains another type.

    >>> decode(encode({"a": (1, np.float32(2.5))}, "state"))
    {'a': (1, np.float32(2.5))}
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        tensor = value.detach().as_subclass(Tensor)
        # torch.save writes the whole storage, so a view of a larger one is copied.
        if tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size():
            return tensor.clone()
        return tensor
    if isinstance(value, TensorDictBase):
        # Not TensorDict.to_dict, which forgets the batch size and keeps values of any type.
        entries = {key: encode(item, f"{name}[{key!r}]") for key, item in value.items()}
        return {_KIND: "tensordict", "entries": entries, "batch_size": value.batch_size}
    # An array of objects could hold anything.
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return {
            _KIND: "ndarray" if isinstance(value, np.ndarray) else "scalar",
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
    encoded: dict[Any, Any] = OrderedDict() if isinstance(value, OrderedDict) else {}
    for key, item in value.items():
        encoded[encode(key, f"{name} key")] = encode(item, f"{name}[{key!r}]")
    # State dicts of modules have the versions of the modules as an attribute.
    if isinstance(value, OrderedDict) and hasattr(value, "_metadata"):
        encoded._metadata = value._metadata  # type: ignore[attr-defined]
    return encoded


def decode(value: Any) -> Any:
    """Convert a value back that `encode` returned. Tensors stay on their device."""
    if isinstance(value, dict):
        kind = value.get(_KIND)
        if kind == "tensordict":
            return TensorDict(decode(value["entries"]), batch_size=value["batch_size"])
        if kind in ("ndarray", "scalar"):
            array = np.frombuffer(value["data"], dtype=value["dtype"]).reshape(value["shape"])
            # An array over bytes cannot be written to.
            return array.copy() if kind == "ndarray" else array[()]
        # In place, as an OrderedDict keeps its type and its attribute so.
        for key in value:
            value[key] = decode(value[key])
        return value
    if type(value) in (list, tuple):
        return type(value)(decode(item) for item in value)
    return value
