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
    """Return the status of a run that an exception ended, or none.

    >>> run_status(None), run_status(ValueError()), run_status(KeyboardInterrupt)
    ('FINISHED', 'FAILED', 'KILLED')
    """
    if error is None:
        return "FINISHED"
    kind = error if isinstance(error, type) else type(error)
    return "KILLED" if issubclass(kind, KeyboardInterrupt | Terminated) else "FAILED"


def versions() -> dict[str, str]:
    """Return versions of packages, and the instruction set by which the processor multiplies.

    The last bits of a result depend on them.
    """
    # Imported here, as it loads torch.
    from yamame.execution.precision import instructions

    described = {"python": platform.python_version(), "cpu": instructions()}
    for name in _PACKAGES:
        described[name] = version_of(name)
    return described


def git_revision() -> str | None:
    """Return the commit of the checkout, with ``-dirty`` if files were changed; None in a wheel."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None

    # All tags are excluded, so that the description is the commit.
    options = ["--always", "--dirty", "--abbrev=40", "--exclude=*"]
    command = ["git", "-C", str(root), "describe", *options]
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def build_summary(
    counted: Mapping[str, Any], *, status: Status, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the content of ``summary.json``, with null for numbers that JSON cannot hold.

    Args:
        counted: Counters, results and costs of the run.
        status: Status from `run_status`.
        extra: Further plain data.

    Raises:
        ValueError: ``extra`` repeats a field.
    """
    summary = {**counted, "status": status, "git_revision": git_revision(), "versions": versions()}
    clashes = sorted(summary.keys() & (extra or {}).keys())
    require("build_summary", "extra", clashes, not clashes, "not repeat a field")
    return json_safe({**summary, **(extra or {})})
