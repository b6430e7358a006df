"""Minutes ``auto`` of a budget as a number, in the configuration that a run saves."""

from yamame.cli.nodes import plain, with_changes
from yamame.cli.sections import AnyConfig

AUTO = "auto"
"""Value of ``budget.minutes`` in place of a number."""
MINUTES = 2.0
"""Limit of a run without another one."""


def with_minutes(cfg: AnyConfig) -> AnyConfig:
    """Return a configuration with a number or None for ``budget.minutes: auto``.

    Args:
        cfg: Whole configuration of a recipe that trains.

    Returns:
        ``cfg`` itself if its minutes are given, else a copy.
    """
    limits = dict(plain(cfg)["budget"])
    if limits.pop("minutes", None) != AUTO:
        return cfg
    has_other = any(limit is not None for limit in limits.values())
    return with_changes(cfg, {"budget": {"minutes": None if has_other else MINUTES}})
