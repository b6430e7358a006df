"""Configurations as flat dictionaries, and whether two of them describe the same run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yamame.runs.errors import UsageError

MAY_CHANGE = ("budget", "resume", "run.overwrite", "logger", "hydra")
"""Keys (with all below them) that may differ between a run and its continuation."""


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


def compare_config(
    saved: Mapping[str, Any], current: Mapping[str, Any], *, ignore: Sequence[str] = MAY_CHANGE
) -> None:
    """Refuses to continue a run under another configuration.

    Args:
        saved: The configuration of the checkpoint.
        current: The configuration of this process.
        ignore: Keys that may differ, each with everything below it.

    Raises:
        UsageError: Names every differing key with both values.

    >>> compare_config({"seed": 1, "budget": {"minutes": 5}}, {"seed": 1, "budget": {"minutes": 9}})
    """
    before, after = flatten(saved), flatten(current)
    absent = "(absent)"
    differing = [
        f"{key}: {before.get(key, absent)!r} -> {after.get(key, absent)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key, absent) != after.get(key, absent)
        and not any(key == name or key.startswith(f"{name}.") for name in ignore)
    ]
    if differing:
        raise UsageError(
            f"compare_config: a resumed run must keep its configuration, got {'; '.join(differing)}"
        )
