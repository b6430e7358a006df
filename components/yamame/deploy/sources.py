"""Checkpoints in a file, a run directory or an MLflow run; only the latter imports MLflow."""

import os
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from yamame.checks import UsageError, format_value, require
from yamame.files.checkpoint import Checkpointer, LoadedCheckpoint
from yamame.files.paths import check_tree, typed_file
from yamame.system.messages import one_line

Which = Literal["best", "last"]


def read_checkpoint(
    source: str, which: Which, *, tracking_uri: str | None = None, optional: Collection[str] = ()
) -> LoadedCheckpoint:
    """Return a checkpoint, with averaged weights as component ``agent`` if the run has them.

    Args:
        source: A run directory, a checkpoint file, or the id of an MLflow run whose artifacts hold
            checkpoints. These are downloaded into a temporary folder.
        which: Checkpoint of a run: the one with the best evaluation, or the last one.
        tracking_uri: MLflow store in which a run id is looked up; None for the default store.
        optional: Further components to return if the checkpoint has them.

    Raises:
        UsageError: The source does not exist, or cannot be read.
    """
    check_which(which)
    path = _existing(source)
    if path.is_dir():
        checkpoints = Checkpointer(path / "checkpoints")
        file = None
        # Another folder, such as the user's home, may hold links and a million files.
        if os.path.lexists(checkpoints.directory):
            # Links of a stranger would have other files read, and written by recipes.
            check_tree(path)
            file = checkpoints.best if which == "best" else checkpoints.last
        if file is None:
            raise UsageError(f"load: no {which} checkpoint in {source}")
        return _read([file], which, optional)
    if path.exists():
        return _read([typed_file(path)], which, optional)
    if "/" in source or "." in source:  # ids have neither
        raise UsageError(
            f"load: {source} must be a run directory or a checkpoint, it does not exist"
        )

    try:
        from yamame.tracking.history import download_artifacts
        from yamame.tracking.tracker import TRACKING_URI
    except ModuleNotFoundError as error:
        raise UsageError(
            f"load: {source} does not exist",
            remedy=(
                f"the id of an MLflow run needs the package {error.name}, "
                "run: pip install 'yamame[train]'"
            ),
        ) from error
    store = tracking_uri or TRACKING_URI
    with tempfile.TemporaryDirectory() as folder:
        files = download_artifacts(store, source, "checkpoints", Path(folder))
        if not files:
            raise UsageError(f"load: no checkpoints in the MLflow run {source}")
        return _read(files, which, optional)


def _existing(source: str) -> Path:
    """Return the path of a source, which may be none.

    Raises:
        UsageError: No path can have this name.
    """
    path = Path(source)
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # too long a name, no permission; a NUL in it
        shown = format_value(source)
        raise UsageError(f"load: {shown} cannot be read: {one_line(error)}") from error
    return path


def check_which(which: Any) -> None:
    """Refuse a value that does not name a checkpoint of a run."""
    require("load", "checkpoint", which, which in get_args(Which), "be best or last")


def _read(files: Sequence[Path], which: Which, optional: Collection[str]) -> LoadedCheckpoint:
    """Return the last of several checkpoints, or the one with the best metric."""
    if which == "last":
        files = files[-1:]
    read = []
    for path in files:
        checkpoints = Checkpointer(path.parent)
        try:
            loaded = checkpoints.load({"agent": None}, which=path, optional=[*optional, "averaged"])
            averaged = loaded.values.pop("averaged", {})
            # Version 0.2 saved the averaged weights without a level for the network.
            loaded.values["agent"] |= averaged.get("network", averaged)
        except UsageError:
            raise
        except Exception as error:  # with damaged files torch.load raises almost anything
            raise UsageError(
                f"load: {path} must be a checkpoint, it cannot be read: {one_line(error)}"
            ) from error
        read.append(loaded)
    return max(read, key=_rank)


def _rank(checkpoint: LoadedCheckpoint) -> tuple[float, int]:
    """Return the metric, before which no evaluation counts, and the step, which decides ties."""
    metric = -torch.inf if checkpoint.metric is None else checkpoint.metric
    return metric, checkpoint.step
