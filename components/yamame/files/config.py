"""Configurations as flat dictionaries with dotted keys."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings as one with dotted keys; sequences of mappings get their index as a key.

    Plain containers and OmegaConf's are accepted alike.

    >>> flatten({"seed": 1, "agent": {"gammas": [0.9, 0.99], "parts": [{"a": 1}]}})
    {'seed': 1, 'agent.gammas': [0.9, 0.99], 'agent.parts.0.a': 1}
    """
    return dict(_leaves(config, ""))


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    prefix = f"{key}." if key else ""
    sequence = isinstance(value, Sequence) and not isinstance(value, str)
    if isinstance(value, Mapping) and (value or not key):
        for name, item in value.items():
            yield from _leaves(item, f"{prefix}{name}")
    elif sequence and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{prefix}{index}")
    else:
        yield key, list(value) if sequence else dict(value) if isinstance(value, Mapping) else value
