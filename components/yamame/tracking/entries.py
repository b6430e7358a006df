"""Lines of ``metrics.jsonl`` and ``mlflow.jsonl``, checked when they are read.

A line that MLflow would refuse counts as damaged: sent again and again, it would block all lines
after it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from yamame.tracking.names import clean_key, is_inner_path

_STATUSES = ("RUNNING", "FINISHED", "FAILED", "KILLED")
_INT64 = 2**63
_LONGEST_PATH = 4000
_LONGEST_FILE_NAME = 255
_DEEPEST_NESTING = 50


@dataclass(frozen=True)
class MetricRecord:
    """Metrics of one step.

    Attributes:
        step: Position on the axis of the run, mostly environment steps.
        time: Time of the measurement, seconds since 1970.
        metrics: Values by name.
    """

    step: int
    time: float
    metrics: dict[str, float]


def parse_metrics(line: bytes) -> MetricRecord | None:
    """Return the metrics of a line of ``metrics.jsonl``; None if the line is damaged."""
    entry = _parse_object(line)
    return None if entry is None else _as_record(entry)


def parse_entry(line: bytes) -> MetricRecord | dict[str, Any] | None:
    """Return the content of a line of ``mlflow.jsonl``; None if the line is damaged."""
    entry = _parse_object(line)
    if entry is None:
        return None
    # Earlier versions wrote metrics to this file.
    if "metrics" in entry:
        return _as_record(entry)
    return entry if _is_valid(entry) else None


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # a ValueError also for bytes that are not UTF-8
        return None
    return entry if isinstance(entry, dict) else None


def _as_record(entry: Mapping[str, Any]) -> MetricRecord | None:
    """Return the metrics of an object; None if it holds none or is malformed."""
    metrics = entry.get("metrics")
    step = entry.get("step")
    seconds = _as_float(entry.get("time"))
    if "ms" in entry:
        # Earlier versions wrote milliseconds since 1970.
        milliseconds = _as_float(entry["ms"])
        seconds = None if milliseconds is None else milliseconds / 1000

    if not isinstance(metrics, dict) or not metrics or not _is_int64(step):
        return None
    # The comparison is also false for NaN.
    if seconds is None or not -_INT64 <= seconds * 1000 < _INT64:
        return None

    values = {}
    for name, value in metrics.items():
        number = _as_float(value)
        if number is None:
            return None
        # Earlier versions also logged names that MLflow refuses.
        values[clean_key(name)] = number
    # A clock may be wrong, and MLflow refuses times before 1970.
    return MetricRecord(step, max(0.0, seconds), values)


def _is_valid(entry: Mapping[str, Any]) -> bool:
    """Return whether MLflow can store an entry that is no metrics."""
    match entry:
        case {"params": values} | {"tags": values}:
            return isinstance(values, dict) and _is_flat(values)
        case {"status": status, "ms": milliseconds}:
            return status in _STATUSES and _is_int64(milliseconds)
        case {"artifact": path, "folder": folder}:
            # Paths that lead out of the run are reported when the file is copied.
            is_inner = folder in (None, "") or (_is_path(folder) and is_inner_path(folder))
            return is_inner and _is_path(path)
        case {"model": path, "step": step, "mark": mark}:
            is_unique_text = isinstance(mark, str) and clean_key(mark) == mark
            return is_unique_text and _is_path(path) and _is_int64(step)
        case {"table": file, "content": content}:
            if not isinstance(content, dict) or not _is_flat(content):
                return False
            return _is_path(file) and is_inner_path(file)
    return False


def _as_float(value: object) -> float | None:
    """Return a number of JSON as float; None for other values, and for numbers beyond floats."""
    # Python counts True and False as integers.
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return None


def _is_int64(value: object) -> TypeGuard[int]:
    # Not by isinstance, for which True is an int.
    return type(value) is int and -_INT64 <= value < _INT64


def _is_path(value: object) -> TypeGuard[str]:
    """Return whether a value is a text that the system accepts as a path."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        path = os.fsencode(value)
    except UnicodeEncodeError:
        return False
    is_too_long = any(len(name) > _LONGEST_FILE_NAME for name in path.split(b"/"))
    return len(path) <= _LONGEST_PATH and not is_too_long


def _is_flat(value: object, levels: int = _DEEPEST_NESTING) -> bool:
    """Return whether lists and objects are nested few times, so that JSON can be written again."""
    # Reading accepts a deeper nesting than writing.
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return levels > 0 and all(_is_flat(item, levels - 1) for item in value)
