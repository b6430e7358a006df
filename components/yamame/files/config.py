"""Configurations as flat dictionaries with dotted keys."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested mappings to one with dotted keys. A sequence of mappings has its index as key.

    Args:
        config: Plain containers, or those of OmegaConf.

    >>> flatten({"seed": 1, "agent": {"gammas": [0.9, 0.99], "parts": [{"a": 1}]}})
    {'seed': 1, 'agent.gammas': [0.9, 0.99], 'agent.parts.0.a': 1}
    """
    return dict(_leaves(config, ""))


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves below a key, with their keys."""
    prefix = f"{key}." if key else ""
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str)

    if isinstance(value, Mapping):
        if not value and key:
            yield key, {}  # else a key with an empty mapping would be lost
        for name, item in value.items():
            yield from _leaves(item, f"{prefix}{name}")
    elif is_sequence and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{prefix}{index}")
    elif is_sequence:
        yield key, list(value)
    else:
        yield key, value
