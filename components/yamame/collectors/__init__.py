"""Collectors: a policy acts in environments, and whole trajectories are stored in replay."""

import warnings
from typing import Any, Protocol, runtime_checkable

from yamame.collectors.assembly import TrajectoryAssembler as TrajectoryAssembler
from yamame.collectors.base import Collector as Collector
from yamame.collectors.base import Episodes as Episodes
from yamame.collectors.base import PreparesToAct as PreparesToAct
from yamame.collectors.base import Remembers as Remembers
from yamame.collectors.cluster import RayCollector as RayCollector
from yamame.collectors.episodes import EpisodeCollector as EpisodeCollector
from yamame.collectors.sync import SyncCollector as SyncCollector
from yamame.execution.recorded_steps import Capturable as Capturable


def __getattr__(name: str) -> Any:
    """Return a name of version 0.2 that has been removed, with a warning."""
    if name != "Records":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "yamame.collectors.Records is deprecated: a policy needs a method record(), no protocol",
        DeprecationWarning,
        stacklevel=2,
    )

    @runtime_checkable
    class Records(Protocol):
        def record(self, recorder: Any) -> None: ...

    return Records
