"""Where a checkpoint is found: a file, a run directory, or an MLflow run, for whose id alone MLflow
is imported.
"""

import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from yamame.checks import UsageError
from yamame.files.checkpoint import Checkpointer, LoadedCheckpoint
from yamame.system.messages import format_value, one_line

Which = Literal["best", "last"]


def read_checkpoint(
    source: str, which: Which, *, tracking_uri: str | None = None, optional: Collection[str] = ()
) -> LoadedCheckpoint:
    """The weights of a run as the component ``agent``, averaged ones where it has them; temporary
    files are gone then.

    Args:
        source: A run directory, a checkpoint file, or the id of an MLflow run whose artifacts hold
            checkpoints.
        which: Which of a run's checkpoints: the one with the best evaluation, or the last one.
        tracking_uri: The MLflow store where a run id is looked for; None for the one that is set.
        optional: Further components to return, where there are such.

    Raises:
        UsageError: One line that names what is not there, or cannot be read.
    """
    check_which(which)
    path = Path(source)
    if path.is_file():
        return _read([path], which, optional)
    if path.is_dir():
        checkpoints = Checkpointer(path / "checkpoints")
        file = checkpoints.best if which == "best" else checkpoints.last
        if file is None:
            raise UsageError(f"load: {source} must hold a {which} checkpoint, there is none")
        return _read([file], which, optional)
    if "/" in source or "." in source:
        raise UsageError(
            f"load: {source} must be a run directory or a checkpoint, it does not exist"
        )
    try:
        from yamame.tracking.history import download_artifacts
        from yamame.tracking.tracker import TRACKING_URI
    except ModuleNotFoundError as error:
        missing = f"it needs the package {error.name}, run: pip install 'yamame[train]'"
        raise UsageError(
            f"load: {source} does not exist; if it is the id of an MLflow run, {missing}"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        files = download_artifacts(
            tracking_uri or TRACKING_URI, source, "checkpoints", Path(folder)
        )
        if not files:
            raise UsageError(f"load: the MLflow run {source} must hold checkpoints, it has none")
        return _read(files, which, optional)


def check_which(which: Any) -> None:
    """Refuses what names no checkpoint of a run."""
    if which not in get_args(Which):
        raise UsageError(f"load: checkpoint must be best or last, got {format_value(which)}")


def _read(files: Sequence[Path], which: Which, optional: Collection[str]) -> LoadedCheckpoint:
    """The last of some checkpoints, or the one with the best metric."""
    read = []
    for path in files[-1:] if which == "last" else files:
        try:
            loaded = Checkpointer(path.parent).load(
                {"agent": None}, which=path, optional=[*optional, "averaged"]
            )
            averaged = loaded.values.pop("averaged", {})
            loaded.values["agent"] |= averaged.get(
                "network", averaged
            )  # version 0.2 saved weights alone
            read.append(loaded)
        except UsageError:
            raise
        except Exception as error:  # other people's files make torch.load raise almost anything
            raise UsageError(
                f"load: {path} must be a checkpoint, it cannot be read: {one_line(error)}"
            ) from error
    return max(
        read,
        key=lambda loaded: (-torch.inf if loaded.metric is None else loaded.metric, loaded.step),
    )
