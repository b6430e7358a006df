"""The machine-readable result of a run."""

import math
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from yamame.runs.signals import Terminated

Status = Literal["FINISHED", "FAILED", "KILLED"]
_PACKAGES = ("torch", "torchrl", "tensordict", "numpy", "yamame")


def run_status(error: BaseException | type[BaseException] | None) -> Status:
    """How a run ended: by itself, by an error, or by Ctrl-C or SIGTERM.

    >>> run_status(None), run_status(ValueError()), run_status(KeyboardInterrupt)
    ('FINISHED', 'FAILED', 'KILLED')
    """
    if error is None:
        return "FINISHED"
    kind = error if isinstance(error, type) else type(error)
    return "KILLED" if issubclass(kind, KeyboardInterrupt | Terminated) else "FAILED"


def versions() -> dict[str, str]:
    """The versions a result depends on."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES}


def git_revision() -> str | None:
    """The commit of the checkout this package is imported from, ``-dirty`` when changed; None in a wheel."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def build_summary(
    *,
    success: float | None,
    return_mean: float | None,
    env_steps: int,
    updates: int,
    cpu_s: float,
    wall_s: float,
    seed: int,
    status: Status,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of ``summary.json``.

    Args:
        success: Fraction of successful evaluation episodes, None before the first evaluation.
        return_mean: Mean undiscounted return of the same episodes.
        env_steps: Environment steps of the whole run.
        updates: Updates of the whole run.
        cpu_s: CPU seconds of the whole run, children included.
        wall_s: Wall-clock seconds of the whole run.
        seed: The seed.
        status: How the run ended, from `run_status`.
        extra: Further plain data.

    Numbers that JSON cannot hold (NaN, infinities) become null.
    """
    summary = {
        "success": success,
        "return_mean": return_mean,
        "env_steps": env_steps,
        "updates": updates,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "seed": seed,
        "status": status,
        "git_revision": git_revision(),
        "versions": versions(),
    }
    clashes = sorted(summary.keys() & (extra or {}).keys())
    if clashes:
        raise ValueError(f"build_summary: extra must not repeat a field, got {', '.join(clashes)}")
    return {name: json_safe(value) for name, value in (summary | dict(extra or {})).items()}


def json_safe(value: Any) -> Any:
    """Plain data with null for every number that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {name: json_safe(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
