"""A guard against non-finite losses: keep the evidence, skip the update, stop when it goes on."""

import json
import os
import shutil
from pathlib import Path

import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.runs.atomic import atomic_writer, sync_directory


class NonFiniteGuard:
    """Looks at a loss before the update.

    Args:
        directory: The run's directory; evidence goes to ``<directory>/nonfinite/step-<step>``.
        patience: Number of non-finite losses in a row that ends the run.

    Raises:
        ValueError: ``patience`` is not positive.

    >>> from tensordict import TensorDict
    >>> guard = NonFiniteGuard(Path("unused"))
    >>> guard.check(torch.tensor(0.5), TensorDict({}, []), step=1, seed=0)
    True
    """

    def __init__(self, directory: str | Path, *, patience: int = 3):
        if patience < 1:
            raise ValueError(f"NonFiniteGuard: patience must be at least 1, got {patience}")
        self.directory = Path(directory) / "nonfinite"
        self.patience = patience
        self.in_a_row = 0

    def check(self, loss: Tensor, batch: TensorDictBase, *, step: int, seed: int) -> bool:
        """Whether the update may be made.

        Args:
            loss: The total loss or any tensor that must be finite (reading it waits for the device).
            batch: What it was computed from; stored memory-mapped, read back by ``TensorDict.load_memmap``.
            step: Number of the update, names the evidence.
            seed: The run's seed, stored with it.

        Raises:
            FloatingPointError: ``patience`` non-finite losses in a row; names the evidence of the last one.
        """
        if bool(torch.isfinite(loss).all()):
            self.in_a_row = 0
            return True
        self.in_a_row += 1
        path = self._save(loss, batch, step=step, seed=seed)
        if self.in_a_row >= self.patience:
            raise FloatingPointError(
                f"NonFiniteGuard: loss must be finite, it was not {self.in_a_row} times in a row; "
                f"the batch of step {step} is in {path}"
            )
        return False

    def _save(self, loss: Tensor, batch: TensorDictBase, *, step: int, seed: int) -> Path:
        path = self.directory / f"step-{step:012d}"
        partial = path.with_name(f".{path.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        batch.detach().cpu().memmap(partial / "batch")
        with atomic_writer(partial / "info.json") as file:
            info = {
                "step": step,
                "seed": seed,
                "loss": [str(value) for value in loss.detach().flatten().tolist()],
            }
            file.write(json.dumps(info).encode())
        shutil.rmtree(path, ignore_errors=True)
        os.replace(partial, path)
        sync_directory(self.directory)
        return path
