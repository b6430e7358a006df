"""Checkpoints that survive the process: atomic, rotating, with the best one kept.

Each checkpoint is one file ``step-<step>.pt`` which appears under that name only when it is complete and on
disk, so killing the process at any moment leaves the previous ones loadable.
``torch.load(weights_only=True)`` reads it: a checkpoint from a stranger executes no code.

TorchRL's ``torchrl.checkpoint`` was considered: it does not flush to disk, moves an existing checkpoint away
before the new one is in place, demands the metric at every save when the best is kept and refuses TensorDicts
inside state dictionaries. Its ``GlobalRNGState`` is what we use for the random number generators.
"""

import json
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from yamame.checks import UsageError, require_at_least
from yamame.files.atomic import TEMPORARY_SUFFIX, atomic_writer, write_json
from yamame.files.codec import decode, encode

_INDEX = "best.json"


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

    A component with ``state_dict`` and ``load_state_dict`` (module, optimizer, `GlobalRNGState`, `Budget`,
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

    @property
    def last(self) -> Path | None:
        """The newest checkpoint."""
        return max(self.directory.glob("step-*.pt"), default=None)

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best metric; None when no kept checkpoint had one."""
        index = self._best()
        return self.directory / index["file"] if index else None

    def save(self, components: Mapping[str, Any], *, step: int, metric: float | None = None) -> Path:
        """Writes one checkpoint and removes those that are no longer kept.

        Args:
            components: Name to object.
            step: Names the file; a checkpoint of the same step is replaced.
            metric: The largest is the best; None and non-finite values never are.

        Raises:
            TypeError: A component holds something that cannot be restored.
        """
        metric = float(metric) if metric is not None and math.isfinite(metric) else None
        states = {
            name: encode(part.state_dict() if _is_stateful(part) else part, name)
            for name, part in components.items()
        }
        payload = {"step": step, "metric": metric, "config": self.config, "components": states}
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"step-{step:012d}.pt"
        with atomic_writer(path) as file:
            torch.save(payload, file)
        best = self._best()
        if metric is not None and (best is None or best["file"] == path.name or metric >= best["metric"]):
            write_json(self.directory / _INDEX, {"file": path.name, "metric": metric})
        self._prune()
        return path

    def load(self, components: Mapping[str, Any], *, which: str | Path = "last") -> LoadedCheckpoint:
        """Restores components.

        Args:
            components: Name to object: restored in place when it has ``load_state_dict``, else only its name
                counts. Components of the checkpoint that are not asked for are left alone.
            which: ``"last"``, ``"best"`` or a file.

        Raises:
            UsageError: There is no such checkpoint, the file is no checkpoint or a component is missing in
                it.
        """
        path = self._find(which)
        payload = _read(path)
        saved = payload["components"]
        missing = sorted(components.keys() - saved.keys())
        if missing:
            raise UsageError(
                f"Checkpointer: {path} must hold {', '.join(missing)}, it holds {', '.join(sorted(saved))}"
            )
        values = {}
        for name, component in components.items():
            state = decode(saved[name])
            if _is_stateful(component):
                component.load_state_dict(state)
            else:
                values[name] = state
        config = decode(payload["config"])
        return LoadedCheckpoint(payload["step"], payload["metric"], config, values)

    def read_config(self, which: str | Path = "last") -> dict[str, Any]:
        """The configuration stored in a checkpoint, to compare before anything is built."""
        return decode(_read(self._find(which))["config"])

    def _find(self, which: str | Path) -> Path:
        path = {"last": self.last, "best": self.best}.get(str(which), Path(which))
        if path is None or not path.is_file():
            raise UsageError(
                f"Checkpointer: there must be a checkpoint, found no {which} in {self.directory}"
            )
        return path

    def _best(self) -> dict[str, Any] | None:
        try:
            index = json.loads((self.directory / _INDEX).read_text())
        except FileNotFoundError:
            return None
        return index if (self.directory / index["file"]).is_file() else None

    def _prune(self) -> None:
        files = sorted(self.directory.glob("step-*.pt"))
        for path in files[: -self.keep_last]:
            if path != self.best:
                path.unlink()
        for path in self.directory.glob(f"*{TEMPORARY_SUFFIX}"):
            path.unlink()


def _is_stateful(component: Any) -> bool:
    return all(callable(getattr(component, name, None)) for name in ("state_dict", "load_state_dict"))


def _read(path: Path) -> dict[str, Any]:
    """Reads to the CPU, where random number generators must be; modules and optimizers move by themselves."""
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise UsageError(f"Checkpointer: {path} must be a checkpoint, it cannot be read") from error
    if not isinstance(payload, dict) or "components" not in payload:
        raise UsageError(f"Checkpointer: {path} must be a checkpoint, it holds something else")
    return payload
