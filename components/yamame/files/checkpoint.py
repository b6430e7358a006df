"""Checkpoints that survive the process and the machine: atomic, checked, rotating, with the best
one kept.

Each checkpoint is one file ``step-<step>.pt``, which appears under that name only when it is
complete and on disk. Killing the process, or cutting the power, at any moment leaves the previous
ones loadable. A checkpoint from a stranger executes no code, as ``torch.load(weights_only=True)``
reads it. Checksums are compared before anything is restored, and a damaged checkpoint is skipped
for the one before.

TorchRL's ``torchrl.checkpoint`` was considered: it does not flush to disk, moves an existing
checkpoint away before the new one is in place, requires the metric at every save when the best is
kept and refuses TensorDicts inside state dictionaries. Its ``GlobalRNGState`` is used for the
random number generators.
"""

import errno
import math
import os
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import IO, Any

import torch

from yamame.checks import StateMismatchError, UsageError, require_at_least
from yamame.files.atomic import TEMPORARY_SUFFIX, atomic_writer, make_folder
from yamame.files.codec import decode, encode
from yamame.files.paths import UnsafePathError, open_regular
from yamame.files.schema import Whole, check_archive, check_content, check_form
from yamame.system.messages import OutsideError, one_line, print_stderr

_FORM = {
    "step": Whole(),
    "metric": float | None,
    "config": {str: object},
    "components": {str: object},
}
"""Entries of a checkpoint file, see `yamame.files.schema`."""
_COUNTS = {"elapsed_s?": Real, "building_cpu_s?": Real, "cpu_s?": Real, "wall_s?": Real}
_COMPONENTS = {
    "agent": {str: object},
    "averaged": {str: object},
    "regulator": {str: object},
    "interface": {str: object},
    "machine": {"threads?": Real, "versions?": {str: str}, "code?": {str: str}},
    "budget": _COUNTS,
    "costs": _COUNTS,
    "guard": {"num_refused?": Real, "in_row?": Real, "told?": Real, "recent?": list},
    "progress": {
        "unit?": str,
        "env_steps?": Real,
        "updates?": Real,
        "unlogged?": [{str: object}],
        "evaluating?": bool,
        "evaluated_at?": Real,
        "evaluated_share?": Real,
        "evaluation_steps?": Real | None,
        "evaluation_share?": Real,
        "saved_at?": Real,
        "saved_share?": Real,
        "episodes?": Real,
        "episode_steps?": Real,
        "learning_began?": Real | None,
        "updates_allowed?": Real,
        "observed_updates?": Real,
        "observed_steps?": Real,
        "unobserved?": str,
        "aborted?": Real,
        "outcomes?": [Real],
        "outcome_is?": str,
        "curve?": [{str: object}],
        "stopped?": str | None,
        "callbacks?": {str: object},
    },
}
"""Components of runs that are plain data. All keys are optional, as early versions lacked some."""
# The last bytes of a file: the CRC-32 of everything before them.
_SUM = b"yamame crc32 %08x"
_CHUNK = 2**20
_REMEDY = "restore a checkpoint from a copy, or start the run again"
_REMEDY_OF_INTACT = (
    "the file is intact: restore the code and the settings that it was saved with, "
    "or start the run again"
)


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Contents of a checkpoint beside the components that were restored in place.

    Attributes:
        step: Step at which it was saved.
        metric: The metric given to ``save``, or None.
        config: The configuration given to `Checkpointer`.
        values: The plain-data components, by name; tensors are on the CPU.
    """

    step: int
    metric: float | None
    config: dict[str, Any]
    values: dict[str, Any] = field(repr=False)


class Checkpointer:
    """Saves and restores named components.

    A component with ``state_dict`` and ``load_state_dict`` (module, optimizer, `GlobalRNGState`,
    `Budget`, ...) is restored in place. Any other is plain data (see `yamame.files.codec.encode`)
    and is returned.

    Args:
        directory: Directory of the files; created by the first ``save``.
        keep_last: Number of newest checkpoints to keep.
        config: Plain nested dictionary stored in every checkpoint.

    Raises:
        ValueError: ``keep_last`` is not positive.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     checkpointer = Checkpointer(directory)
    ...     path = checkpointer.save({"net": torch.nn.Linear(2, 1), "note": {"level": 3}}, step=10)
    ...     checkpointer.load({"net": torch.nn.Linear(2, 1), "note": None}).values
    {'note': {'level': 3}}
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep_last: int = 2,
        config: Mapping[str, Any] | None = None,
    ):
        require_at_least("Checkpointer", 1, keep_last=keep_last)
        self.directory = Path(directory)
        self.keep_last = keep_last
        self.set_config(config or {})
        self._metrics: dict[Path, float | None] = {}

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Replace the configuration that is stored in every checkpoint.

        Args:
            config: Plain nested dictionary.
        """
        self.config = encode(config, "config")

    @property
    def last(self) -> Path | None:
        """Newest checkpoint, damaged or not; None if there is none."""
        return max(self.directory.glob("step-*.pt"), default=None)

    @property
    def best(self) -> Path | None:
        """Checkpoint with the best metric; None if no kept checkpoint has one.

        Raises:
            UsageError: A checkpoint is damaged, so the best one is unknown.
        """
        best: Path | None = None
        highest = -math.inf
        for path in self._files():
            metric = self._metric(path)
            # Of equal metrics the later step is kept.
            if metric is not None and metric >= highest:
                highest = metric
                best = path
        return best

    def path(self, step: int) -> Path:
        """Return the file of the checkpoint of a step."""
        # With leading zeros, so that the order of names is that of steps.
        return self.directory / f"step-{step:012d}.pt"

    def save(
        self, components: Mapping[str, Any], *, step: int, metric: float | None = None
    ) -> Path:
        """Write a checkpoint and delete those that are no longer kept.

        Args:
            components: Objects by name.
            step: Step of the file name. A checkpoint of the same step is replaced.
            metric: Score of the checkpoint; the largest is the best. None and non-finite values are
                never the best.

        Raises:
            TypeError: A component holds a value that cannot be restored.
            OSError: Writing failed. The former checkpoints are as they were.
        """
        if metric is not None:
            metric = float(metric) if math.isfinite(metric) else None
        states = {}
        for name, component in components.items():
            state = component.state_dict() if _is_stateful(component) else component
            states[name] = encode(state, name)
        payload = {"step": step, "metric": metric, "config": self.config, "components": states}
        make_folder(self.directory)
        path = self.path(step)
        with atomic_writer(path) as file:
            summed = _Summed(file)
            try:
                torch.save(payload, summed)  # type: ignore[arg-type]  # nothing else is called
            except RuntimeError as error:
                # torch hides the error of a full disk behind one of its own.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise
            file.write(_SUM % summed.crc)
        self._metrics[path] = metric
        self._prune()
        return path

    def load(
        self,
        components: Mapping[str, Any],
        *,
        which: str | Path = "last",
        optional: Collection[str] = (),
    ) -> LoadedCheckpoint:
        """Restore components.

        Args:
            components: Objects by name. One with ``load_state_dict`` is restored in place; of any
                other only the name is used. Further components of the checkpoint are ignored.
            which: ``"best"``, a file, or ``"last"`` for the newest checkpoint that can be restored.
                Newer ones are then reported on the standard error and renamed to
                ``damaged-step-<step>.pt``.
            optional: Names of plain data to return as well, if the checkpoint has it.

        Raises:
            UsageError: The checkpoint does not exist, is damaged, or lacks a component, or a
                component cannot be restored from it.
            StateMismatchError: The state of a component belongs to another network. No older
                checkpoint is tried.
        """
        if which != "last":
            return self._restore(self._find(which), components, optional)

        files = [self._find("last"), *self._files()[-2::-1]]
        failures: list[UsageError] = []
        for path in files:
            try:
                loaded = self._restore(path, components, optional)
            except StateMismatchError:
                raise  # an older checkpoint is of the same network
            except UsageError as error:
                failures.append(error)
            else:
                break
        else:
            # A copy would not help if an intact checkpoint does not fit the components.
            worst = failures[-1]
            remedy = _REMEDY
            for failure in reversed(failures):
                if isinstance(failure, _UnfitError):
                    worst = failure
                    remedy = _REMEDY_OF_INTACT
            worst.remedy = f"none before it is left: {remedy}"
            raise worst
        for failure, before in zip(failures, files[1:], strict=False):
            print_stderr(f"{failure}; continuing from {before.name}")
        for damaged in files[: files.index(path)]:
            damaged.rename(damaged.with_name(f"damaged-{damaged.name}"))
        return loaded

    def read_config(self) -> dict[str, Any]:
        """Return the configuration in the newest checkpoint that can be read.

        Raises:
            UsageError: No checkpoint can be read.
        """
        newest = self._find("last")
        for path in reversed(self._files()):
            try:
                return dict(_read(path)["config"])
            except UsageError as error:
                if path == newest:
                    first = error
        first.remedy = f"none before it is left: {_REMEDY}"
        raise first

    def _files(self) -> list[Path]:
        return sorted(self.directory.glob("step-*.pt"))

    def _find(self, which: str | Path) -> Path:
        path: Path | None
        if which == "last":
            path = self.last
        elif which == "best":
            path = self.best
        else:
            path = Path(which)
        if path is None or not path.exists():
            raise UsageError(
                f"Checkpointer: there must be a checkpoint, found no {which} in {self.directory}"
            )
        return path

    def _metric(self, path: Path) -> float | None:
        if path not in self._metrics:
            self._metrics[path] = _read(path)["metric"]
        return self._metrics[path]

    def _restore(
        self, path: Path, components: Mapping[str, Any], optional: Collection[str]
    ) -> LoadedCheckpoint:
        payload = _read(path)
        saved = payload["components"]
        missing = sorted(components.keys() - saved.keys())
        if missing:
            raise _UnfitError(
                f"Checkpointer: {path} must hold {', '.join(missing)}, "
                f"it holds {', '.join(sorted(saved))}"
            )

        present = {key: None for key in optional if key in saved}
        values = {}
        for name, component in {**present, **components}.items():
            try:
                state = decode(saved[name])
                check_form(state, _COMPONENTS.get(name, object), name)
                if _is_stateful(component):
                    component.load_state_dict(state)
                else:
                    values[name] = state
            except (OSError, MemoryError, torch.OutOfMemoryError, OutsideError):
                raise
            except StateMismatchError as error:
                error.source = f"Checkpointer: {name} of {path} cannot be restored"
                raise
            except Exception as error:  # a third-party class may raise any error
                reason = f"{name} must be restored from {path}, it cannot be: {one_line(error)}"
                raise _UnfitError(f"Checkpointer: {reason}") from error
        self._metrics[path] = payload["metric"]
        return LoadedCheckpoint(payload["step"], payload["metric"], payload["config"], values)

    def _prune(self) -> None:
        """Delete checkpoints that are neither new nor the best, and rename damaged ones."""
        for path in self._files():
            try:
                self._metric(path)
            except UsageError as error:
                print_stderr(f"{error}; it is set aside")
                path.rename(path.with_name(f"damaged-{path.name}"))
        best = self.best
        for path in self._files()[: -self.keep_last]:
            if path != best:
                path.unlink()
        # Left by killed processes; this one is not writing now.
        for path in self.directory.glob(f"*{TEMPORARY_SUFFIX}"):
            path.unlink()


class _UnfitError(UsageError):
    """Checkpoint that can be read, but not restored."""


class _Summed:
    """File that computes the CRC-32 of everything that is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.crc = 0
        self.flush = file.flush
        self._file = file

    def write(self, data: bytes) -> int:
        """Write to the file."""
        self.crc = zlib.crc32(data, self.crc)
        return self._file.write(data)


def _check_sums(file: IO[bytes]) -> None:
    """Compare the checksums of a file with its content.

    Raises:
        ValueError, zipfile.BadZipFile: The file is damaged.
    """
    size = file.seek(0, os.SEEK_END)
    left = max(0, size - len(_SUM % 0))
    file.seek(left)
    end = file.read()

    crc = 0
    file.seek(0)
    while left > 0:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            break
        crc = zlib.crc32(chunk, crc)
        left -= len(chunk)
    if end == _SUM % crc:
        return

    # A file that torch.save wrote alone has no sum of the whole. It is a zip archive in which every
    # tensor has a CRC-32, which PyTorch does not compare.
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} in it does not match its checksum")
    if end.startswith(_SUM[:-4]):
        raise ValueError("its content does not match its checksum")


def _is_stateful(component: Any) -> bool:
    """Return whether a component is restored in place."""
    saves = getattr(component, "state_dict", None)
    loads = getattr(component, "load_state_dict", None)
    return callable(saves) and callable(loads)


def _read(path: Path) -> dict[str, Any]:
    """Read a checkpoint file.

    Raises:
        UsageError: The file is damaged or no checkpoint.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            check_archive(file)
            _check_sums(file)
            file.seek(0)
            # States of random number generators must be on the CPU; modules and optimizers move
            # theirs to the right device.
            payload = torch.load(file, map_location="cpu", weights_only=True)
        check_content(payload, size)
        check_form(payload, _FORM, "content")
        payload["config"] = decode(payload["config"])
        check_form(payload["config"], {str: object}, "config")
    except (MemoryError, UnsafePathError):
        raise
    except Exception as error:  # zipfile and torch raise many kinds of errors for damaged files
        # Other errors of the disk do not concern the content of the file.
        if isinstance(error, OSError) and error.errno not in (errno.EIO, errno.EISDIR, None):
            raise
        reason = f"{path} must be a checkpoint, it cannot be read: {one_line(error)}"
        raise UsageError(f"Checkpointer: {reason}") from error
    return dict(payload)
