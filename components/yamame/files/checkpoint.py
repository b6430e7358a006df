"""Checkpoints that survive the process and the machine: atomic, checked, rotating, with the best
one kept.

Each checkpoint is one file ``step-<step>.pt`` which appears under that name only when it is
complete and on disk, so killing the process, or cutting the power, at any moment leaves the
previous ones loadable. ``torch.load(weights_only=True)`` reads it: a checkpoint from a stranger
executes no code. The file is a zip archive in which every tensor, and the structure around them,
has a CRC-32, which PyTorch does not look at. After it stands the CRC-32 of the whole file. These
sums are compared before anything is restored; one that `torch.save` wrote alone has no sum of the
whole. A checkpoint that is damaged is passed over for the one before.

TorchRL's ``torchrl.checkpoint`` was considered: it does not flush to disk, moves an existing
checkpoint away before the new one is in place, demands the metric at every save when the best is
kept and refuses TensorDicts inside state dictionaries. Its ``GlobalRNGState`` is what we use for
the random number generators.
"""

import errno
import math
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from yamame.checks import StateMismatchError, UsageError, require_at_least
from yamame.files.atomic import TEMPORARY_SUFFIX, atomic_writer, make_folder
from yamame.files.codec import decode, encode
from yamame.system.messages import OutsideError, one_line, print_stderr

_KINDS = {"step": int, "metric": float | None, "config": dict, "components": dict}
"""What the file of a checkpoint holds."""
_SUM = b"yamame crc32 %08x"
_CHUNK = 2**20
_REMEDY = "bring a checkpoint back from a copy, or begin the run anew"
_REMEDY_OF_INTACT = (
    "the file is intact: restore the code and the settings that it was saved with, "
    "or begin the run anew"
)


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What a checkpoint says beside the restored components.

    Attributes:
        step: The step it was saved at.
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
    `Budget`,
    ...) is restored in place; anything else is plain data (see `yamame.files.codec.encode`) and is returned.

    Args:
        directory: Directory of the files; made by the first ``save``.
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
        self.config = encode(config or {}, "config")
        self._metrics: dict[Path, float | None] = {}

    @property
    def last(self) -> Path | None:
        """The newest checkpoint, whole or not."""
        return max(self.directory.glob("step-*.pt"), default=None)

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best metric; None when no kept checkpoint had one.

        Raises:
            UsageError: One of them is damaged, so that it is not known which is the best.
        """
        metrics = [(self._metric(path), path) for path in self._files()]
        return max([pair for pair in metrics if pair[0] is not None], default=(None, None))[1]

    def path(self, step: int) -> Path:
        """The file of the checkpoint of a step."""
        return self.directory / f"step-{step:012d}.pt"

    def save(
        self, components: Mapping[str, Any], *, step: int, metric: float | None = None
    ) -> Path:
        """Writes one checkpoint and removes those that are no longer kept.

        Args:
            components: Name to object.
            step: Names the file; a checkpoint of the same step is replaced.
            metric: The largest is the best; None and non-finite values never are.

        Raises:
            TypeError: A component holds something that cannot be restored.
            OSError: It could not be written; the former checkpoints are as they were.
        """
        metric = float(metric) if metric is not None and math.isfinite(metric) else None
        states = {
            name: encode(part.state_dict() if _is_stateful(part) else part, name)
            for name, part in components.items()
        }
        payload = {"step": step, "metric": metric, "config": self.config, "components": states}
        make_folder(self.directory)
        path = self.path(step)
        with atomic_writer(path) as file:
            summed = _Summed(file)
            try:
                torch.save(payload, summed)  # type: ignore[arg-type]  # nothing else is called
            except RuntimeError as error:  # "enforce fail": torch hides that the disk is full
                raise (
                    error.__context__ if isinstance(error.__context__, OSError) else error
                ) from None
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
        """Restores components.

        Args:
            components: Name to object: restored in place when it has ``load_state_dict``, else only
                its name counts. Components of the checkpoint that are not asked for are left alone.
            which: ``"best"``, a file, or ``"last"``, to go on from the newest that can be restored:
                each newer one is told in a line on the standard error and renamed to
                ``damaged-step-<step>.pt``.
            optional: Plain data to return as well, if the checkpoint has it.

        Raises:
            UsageError: There is no such checkpoint, the file is none or is damaged, a component is
                missing in it or cannot be restored from it.
            StateMismatchError: A component states that its state belongs to another network. No
                older one is tried.
        """
        if which != "last":
            return self._restore(self._find(which), components, optional)
        files = [self._find("last"), *self._files()[-2::-1]]
        failures: list[UsageError] = []
        for path in files:
            try:
                loaded = self._restore(path, components, optional)
            except StateMismatchError:  # an older checkpoint is of the same network
                raise
            except UsageError as error:
                failures.append(error)
            else:
                break
        else:
            # What does not fit an intact checkpoint is no matter of copies.
            intact = [failure for failure in failures if isinstance(failure, _UnfitError)]
            worst, remedy = (intact[0], _REMEDY_OF_INTACT) if intact else (failures[-1], _REMEDY)
            worst.remedy = f"none before it is left: {remedy}"
            raise worst
        for failure, before in zip(failures, files[1:], strict=False):
            print_stderr(f"{failure}; going on from {before.name}")
        for damaged in files[: files.index(path)]:
            damaged.rename(damaged.with_name(f"damaged-{damaged.name}"))
        return loaded

    def read_config(self) -> dict[str, Any]:
        """The configuration in the newest checkpoint that can be read, to compare before anything
        is built.

        Raises:
            UsageError: None can be read.
        """
        newest = self._find("last")
        for path in reversed(self._files()):
            try:
                return decode(_read(path)["config"])
            except UsageError as error:
                if path == newest:
                    first = error
        first.remedy = f"none before it is left: {_REMEDY}"
        raise first

    def _files(self) -> list[Path]:
        return sorted(self.directory.glob("step-*.pt"))

    def _find(self, which: str | Path) -> Path:
        path = self.last if which == "last" else self.best if which == "best" else Path(which)
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
                f"Checkpointer: {path} must hold {', '.join(missing)}, it holds {', '.join(sorted(saved))}"
            )
        values = {}
        for name, component in {
            **{key: None for key in optional if key in saved},
            **components,
        }.items():
            try:
                state = decode(saved[name])
                if _is_stateful(component):
                    component.load_state_dict(state)
                else:
                    values[name] = state
            except (OSError, MemoryError, torch.OutOfMemoryError, OutsideError):
                raise
            except StateMismatchError as error:
                raise StateMismatchError(
                    f"Checkpointer: {name} of {path} cannot be restored: {error}"
                ) from error
            except Exception as error:  # a class of anybody's may raise anything
                reason = f"{name} must be restored from {path}, it cannot be: {one_line(error)}"
                raise _UnfitError(f"Checkpointer: {reason}") from error
        self._metrics[path] = payload["metric"]
        return LoadedCheckpoint(
            payload["step"], payload["metric"], decode(payload["config"]), values
        )

    def _prune(self) -> None:
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
        for path in self.directory.glob(f"*{TEMPORARY_SUFFIX}"):
            path.unlink()


class _UnfitError(UsageError):
    """A checkpoint that can be read, but not be restored."""


class _Summed:
    """A file that adds up the CRC-32 of what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.crc, self._file, self.flush = 0, file, file.flush

    def write(self, data: bytes) -> int:
        self.crc = zlib.crc32(data, self.crc)
        return self._file.write(data)


def _check_sums(file: IO[bytes]) -> None:
    """Raises ``ValueError`` or `zipfile.BadZipFile` unless a file is as it was written."""
    crc, left = 0, max(0, file.seek(0, 2) - len(_SUM % 0))
    file.seek(left)
    end = file.read()
    file.seek(0)
    while left and (chunk := file.read(min(left, _CHUNK))):
        crc, left = zlib.crc32(chunk, crc), left - len(chunk)
    if end == _SUM % crc:
        return
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None or end.startswith(_SUM[:-4]):
        raise ValueError(f"{damaged or 'what stands'} in it does not match its checksum")


def _is_stateful(component: Any) -> bool:
    return all(
        callable(getattr(component, name, None)) for name in ("state_dict", "load_state_dict")
    )


def _read(path: Path) -> dict[str, Any]:
    """Reads to the CPU, where random number generators must be; modules and optimizers move by
    themselves.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise UsageError(f"Checkpointer: {path} must be a checkpoint, it is no file")
    try:
        with path.open("rb") as file:
            _check_sums(file)
            file.seek(0)
            payload = torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # damaged files make zipfile and torch raise almost anything
        if isinstance(error, OSError) and error.errno not in (errno.EIO, errno.EISDIR, None):
            raise
        reason = f"{path} must be a checkpoint, it cannot be read: {one_line(error)}"
        raise UsageError(f"Checkpointer: {reason}") from error
    if not isinstance(payload, dict) or not all(
        isinstance(payload.get(name, ...), kind) for name, kind in _KINDS.items()
    ):
        raise UsageError(f"Checkpointer: {path} must be a checkpoint, it holds something else")
    return payload
