"""A guard against updates that are not finite: keep the evidence, skip the update, stop when it goes on."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.runs.atomic import atomic_writer, sync_directory


class NonFiniteGuard:
    """Looks at a loss and its gradients before the update.

    Args:
        directory: The run's directory; evidence goes to ``<directory>/nonfinite/step-<step>``.
        patience: Number of refused updates in a row that ends the run.

    Raises:
        ValueError: ``patience`` is not positive.

    >>> from tensordict import TensorDict
    >>> guard = NonFiniteGuard(Path("unused"))
    >>> guard.check({"loss": torch.tensor(0.5)}, TensorDict({}, []), step=1, seed=0)
    True
    """

    def __init__(self, directory: str | Path, *, patience: int = 3):
        if patience < 1:
            raise ValueError(f"NonFiniteGuard: patience must be at least 1, got {patience}")
        self.directory = Path(directory) / "nonfinite"
        self.patience = patience
        self.in_a_row: list[Path] = []

    def check(self, metrics: Mapping[str, Tensor], batch: TensorDictBase, *, step: int, seed: int) -> bool:
        """Whether the update may be made.

        Args:
            metrics: Numbers that must be finite, such as the loss and the norm of its gradients; they are read at
                once, which waits for the device.
            batch: What they were computed from; stored memory-mapped, read back by ``TensorDict.load_memmap``.
            step: Number of the update, names the evidence.
            seed: The run's seed, stored with it.

        Raises:
            FloatingPointError: ``patience`` updates in a row were refused; names the evidence of all.
        """
        values = torch.stack([value.detach().float() for value in metrics.values()])
        if bool(torch.isfinite(values).all()):
            self.in_a_row = []
            return True
        told = dict(zip(metrics, map(str, values.tolist()), strict=True))
        self.in_a_row.append(self._save(told, batch, step=step, seed=seed))
        if len(self.in_a_row) >= self.patience:
            raise FloatingPointError(
                f"NonFiniteGuard: {' and '.join(metrics)} must be finite, they were not {len(self.in_a_row)} times in "
                f"a row, first with the batch in {self.in_a_row[0]}; those after it are beside it"
            )
        return False

    def _save(self, metrics: dict[str, str], batch: TensorDictBase, *, step: int, seed: int) -> Path:
        path = self.directory / f"step-{step:012d}"
        partial = path.with_name(f".{path.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        batch.detach().cpu().memmap(partial / "batch")
        with atomic_writer(partial / "info.json") as file:
            file.write(json.dumps({"step": step, "seed": seed, **metrics}).encode())
        shutil.rmtree(path, ignore_errors=True)
        os.replace(partial, path)
        sync_directory(self.directory)
        return path
