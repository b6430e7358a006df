"""The machine-readable result of a run."""

import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from yamame.checks import require
from yamame.files.atomic import json_safe
from yamame.system.installed import version_of
from yamame.system.signals import Terminated

Status = Literal["FINISHED", "FAILED", "KILLED"]
_PACKAGES = ("torch", "torchrl", "tensordict", "numpy", "yamame")


def run_status(error: BaseException | type[BaseException] | None) -> Status:
    """How a run ended: by itself, by an error, or by a signal.

    >>> run_status(None), run_status(ValueError()), run_status(KeyboardInterrupt)
    ('FINISHED', 'FAILED', 'KILLED')
    """
    if error is None:
        return "FINISHED"
    kind = error if isinstance(error, type) else type(error)
    return "KILLED" if issubclass(kind, KeyboardInterrupt | Terminated) else "FAILED"


def versions() -> dict[str, str]:
    """What a result depends on in its last bits: versions, and what the processor multiplies by."""
    from yamame.execution.precision import instructions  # here, for it loads torch

    machine = {"python": platform.python_version(), "cpu": instructions()}
    return machine | {name: version_of(name) for name in _PACKAGES}


def git_revision() -> str | None:
    """The commit of the checkout this package is imported from, ``-dirty`` when changed; None in a
    wheel.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        described = subprocess.run(
            [
                "git",
                "-C",
                str(root),
                "describe",
                "--always",
                "--dirty",
                "--abbrev=40",
                "--exclude=*",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def build_summary(
    counted: Mapping[str, Any], *, status: Status, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The content of ``summary.json``: plain data, with null for numbers that JSON cannot hold.

    Args:
        counted: What the run counted and reached.
        status: How it ended, from `run_status`.
        extra: Further plain data.

    Raises:
        ValueError: ``extra`` repeats a field.
    """
    summary = {**counted, "status": status, "git_revision": git_revision(), "versions": versions()}
    clashes = sorted(summary.keys() & (extra or {}).keys())
    require("build_summary", "extra", clashes, not clashes, "not repeat a field")
    return json_safe({**summary, **(extra or {})})
