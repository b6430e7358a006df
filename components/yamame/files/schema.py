"""Checks of what a file held, before anything of it is used.

A checkpoint, an agent or a manifest may come from somebody else, or from a version that wrote
other things. Reading it runs no code, but its values may be of any type and of any size:

- `check_form` compares plain data with a form;
- `check_content` limits data with tensors by the size of the file that held them;
- `check_archive` refuses archives that are larger than they look.
"""

import os
import struct
import types
import typing
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import torch
from torch import Tensor

Form = Any
"""Form of plain data: a type or a union of types, a `Whole`, ``[form]`` for a list of any length,
``(form, form)`` for a list of this length, ``{str: form}`` for a mapping of texts, and ``{"name":
form}`` for a mapping with these keys and perhaps others; ``"name?"`` may be missing.
"""

MOST_ENTRIES = 2**21
"""Values in a file."""
_MOST_MEMBERS = 2**15
"""Files in an archive; torch stores one for each tensor."""
_DEEPEST = 300
"""Levels of nesting; functions that follow them call themselves up to three times for each."""
_LONGEST_NAME = 1000
_LONGEST_SHOWN = 60
_SHARED = 16
"""Tensors of a file may share memory: tied weights have two names. Their sizes may thus exceed that
of the file, but not by this factor."""
_SLACK = 2**20
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

_END = b"PK\5\6"
_END_64 = b"PK\6\6"
_LOCATOR_64 = b"PK\6\7"
_LOCATOR_SIZE = 20
_END_64_SIZE = 56


class SchemaError(ValueError):
    """Content of a file that has another form than it must have."""


@dataclass(frozen=True)
class Whole:
    """Whole numbers in a range; a flag is none.

    Args:
        least: Smallest number.
        most: Largest number; by default that of an int64.
    """

    least: int = 0
    most: int = 2**63 - 1


def check_form(value: Any, form: Form, name: str) -> None:
    """Raise unless plain data have a form.

    Args:
        value: Plain data.
        form: See `Form`.
        name: Name of the data in the message.

    Raises:
        SchemaError: Names the first part that differs.

    >>> check_form({"step": 3, "parts": [[0, 1]]}, {"step": Whole(), "parts": [(int, int)]}, "it")
    >>> check_form({"step": -3}, {"step": Whole()}, "it")
    Traceback (most recent call last):
    yamame.files.schema.SchemaError: it.step must be a whole number of at least 0, got -3
    """
    if isinstance(form, Whole):
        is_whole = type(value) is int
        if not is_whole or not form.least <= value <= form.most:
            limit = f"of at least {form.least}"
            if is_whole and value > form.most:
                limit = f"of at most {form.most}"
            raise SchemaError(f"{name} must be a whole number {limit}, got {_short(value)}")
    elif isinstance(form, list):
        _require(value, list | tuple, name)
        for place, item in enumerate(value):
            check_form(item, form[0], f"{name}[{place}]")
    elif isinstance(form, tuple):
        _require(value, list | tuple, name)
        if len(value) != len(form):
            raise SchemaError(f"{name} must have {len(form)} parts, got {_short(value)}")
        for place, (item, inner) in enumerate(zip(value, form, strict=True)):
            check_form(item, inner, f"{name}[{place}]")
    elif isinstance(form, dict):
        _check_mapping(value, form, name)
    else:
        _require(value, form, name)


def _check_mapping(value: Any, form: dict[Any, Form], name: str) -> None:
    _require(value, Mapping, name)
    if str in form:
        for key, item in value.items():
            if not isinstance(key, str) or len(key) > _LONGEST_NAME:
                raise SchemaError(f"{name} must have names of text, got {_short(key)}")
            check_form(item, form[str], f"{name}.{_short(key)}")
        return
    for key, inner in form.items():
        required = key.removesuffix("?")
        if required in value:
            check_form(value[required], inner, f"{name}.{required}")
        elif required == key:
            raise SchemaError(f"{name} must have {key}")


def _require(value: Any, kind: Any, name: str) -> None:
    """Raise unless a value has a type; a flag is no number."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    is_flag = isinstance(value, bool) and bool not in kinds and object not in kinds
    if is_flag or not isinstance(value, kind):
        names = " or ".join(each.__name__ for each in kinds)
        raise SchemaError(f"{name} must be of type {names}, got {_short(value)}")


def _short(value: Any) -> str:
    text = type(value).__name__ if isinstance(value, Mapping | list | Tensor) else repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def check_content(content: Any, size: int) -> None:
    """Raise unless nested data with tensors are as a file of this size can hold them.

    Args:
        content: Mappings, lists, tuples, sets, tensors and any other values, which stay unchecked.
        size: Size of the file in bytes.

    Raises:
        SchemaError: A tensor is not a plain one (`check_tensor`), the tensors are larger than the
            file, or there are too many values or levels.
    """
    num_bytes = 0
    num_entries = 0
    waiting = [(content, 0)]
    while waiting:
        value, depth = waiting.pop()
        num_entries += 1
        # A list that holds itself, or another one twice and so on, has no end.
        if num_entries > MOST_ENTRIES or depth > _DEEPEST:
            limit = f"{MOST_ENTRIES} values and {_DEEPEST} levels"
            raise SchemaError(f"it must have at most {limit}, it has more")
        if isinstance(value, Tensor):
            check_tensor(value, "a tensor")
            num_bytes += value.numel() * value.element_size()
            if num_bytes > _SHARED * size + _SLACK:
                raise SchemaError(f"its tensors must fit into {size} bytes, they do not")
        elif isinstance(value, Mapping):
            for key, item in value.items():
                waiting.append((key, depth + 1))
                waiting.append((item, depth + 1))
        elif isinstance(value, list | tuple | set | frozenset):
            waiting.extend((item, depth + 1) for item in value)


def check_tensor(value: Tensor, name: str) -> None:
    """Raise unless a tensor is dense, on the CPU, and stores each of its numbers.

    Args:
        value: The tensor.
        name: Name in the message.

    Raises:
        SchemaError: It is sparse, quantized, nested, without data, or expanded from fewer numbers.
    """
    is_dense = value.layout is torch.strided and not value.is_quantized and not value.is_nested
    if not is_dense or value.device.type != "cpu":
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise SchemaError(
            f"{name} must be a dense tensor on the CPU, it is {kind}, {value.dtype} on "
            f"{value.device.type}"
        )
    num_bytes = value.numel() * value.element_size()
    stored = value.untyped_storage().nbytes()
    # Copied, it would take more memory than the file has bytes. Small ones occur in old files.
    if num_bytes > stored + _SLACK:
        raise SchemaError(f"{name} must store its {value.numel()} numbers, it has {stored} bytes")


def check_weights(weights: Any, own: Mapping[str, Any]) -> None:
    """Raise unless weights are plain finite tensors of the kinds that an agent has.

    Names that the agent does not have are left to its ``load_state_dict``.

    Args:
        weights: Tensors by name, from a file.
        own: ``state_dict`` of the agent.

    Raises:
        SchemaError: Names the first weight that is not, in words that follow "the weights".
    """
    check_form(weights, {str: object}, "must be a state:")
    for name, value in weights.items():
        counterpart = own.get(name)
        is_extra = name in own and not isinstance(counterpart, Tensor)
        if is_extra:
            continue
        label = name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}..."
        if not isinstance(value, Tensor):
            raise SchemaError(f"must be tensors, {label} is a {type(value).__name__}")
        check_tensor(value, f"must be plain tensors: {label}")
        if isinstance(counterpart, Tensor):
            # Early versions stored some counters as floats, so kinds of numbers may differ.
            is_number = value.dtype in (*_FLOATS, *_WHOLE) and counterpart.dtype is not torch.bool
            if not is_number and value.dtype != counterpart.dtype:
                raise SchemaError(f"must be {counterpart.dtype} for {label}, got {value.dtype}")
        if value.dtype in _FLOATS and not bool(value.isfinite().all()):
            raise SchemaError(f"must be finite, {label} is not")


def check_archive(file: IO[bytes]) -> None:
    """Raise unless a file is a zip archive as ``torch.save`` writes it: nothing is compressed.

    Args:
        file: File opened for reading; its position changes.

    Raises:
        SchemaError, zipfile.BadZipFile: It is none, or reading it would take more memory than the
            file has bytes.
    """
    size = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        start = archive.start_dir
    if len(members) > _MOST_MEMBERS:
        raise SchemaError(f"it must have at most {_MOST_MEMBERS} members, it has {len(members)}")
    total = 0
    for member in members:
        is_stored = member.compress_type == zipfile.ZIP_STORED
        if not is_stored or member.file_size != member.compress_size:
            raise SchemaError("its members must be stored, one is compressed")
        total += member.file_size
    if total > size:
        raise SchemaError(f"its members must fit into {size} bytes, they have {total}")
    # Python looks for the list of members before the end record, PyTorch where this record says.
    if _list_offset(file, size) != start:
        raise SchemaError("its list of members must be at the offset in the archive, it is not")


def _list_offset(file: IO[bytes], size: int) -> int:
    """Return the offset of the list of members that the end record of an archive names, or -1."""
    tail_start = max(0, size - 2**16 - 256)
    file.seek(tail_start)
    tail = file.read()
    end = tail.rfind(_END)
    locator = tail[max(0, end - _LOCATOR_SIZE) : end]
    try:
        (offset,) = struct.unpack_from("<L", tail, end + 16)
        if locator.startswith(_LOCATOR_64):
            (place,) = struct.unpack_from("<Q", locator, 8)
            file.seek(min(place, size))
            record = file.read(_END_64_SIZE)
            (offset,) = struct.unpack_from("<Q", record, 48)
            if not record.startswith(_END_64):
                offset = -1
    except struct.error:
        offset = -1  # a record is cut off
    return int(offset)
