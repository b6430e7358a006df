"""A guard against updates that are not finite: keep the evidence, skip the update, stop when it goes on."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from tensordict import TensorDictBase
from torch import Tensor

from yamame.checks import require_at_least


class NonFiniteGuard:
    """Looks at a loss and its gradients before the update.

    Args:
        directory: The run's directory: evidence goes to ``<directory>/nonfinite``. None: none is kept.
        patience: Number of refused updates in a row that ends the run.

    Raises:
        ValueError: ``patience`` is not positive.

    >>> from tensordict import TensorDict
    >>> guard = NonFiniteGuard(patience=2)
    >>> guard.check({"loss": torch.tensor(0.5)}, TensorDict({}, []), step=1)
    True
    >>> guard.check({"loss": torch.tensor(torch.nan)}, TensorDict({}, []), step=2)
    False
    """

    def __init__(self, directory: str | Path | None = None, *, patience: int = 3):
        require_at_least("NonFiniteGuard", 1, patience=patience)
        self.directory = None if directory is None else Path(directory) / "nonfinite"
        self.patience = patience
        self.refused: list[Path | None] = []
        """The evidence of every update that was refused since the last that was not."""

    def check(self, metrics: Mapping[str, Tensor], batch: TensorDictBase, *, step: int) -> bool:
        """Whether the update may be made.

        Args:
            metrics: Numbers that must be finite, such as the loss and the norm of its gradients; they are read at
                once, which waits for the device.
            batch: What they were computed from; stored memory-mapped, read back by ``TensorDict.load_memmap``.
            step: Number of updates made before; names the evidence, with the number of refusals in a row.

        Raises:
            FloatingPointError: ``patience`` updates in a row were refused; names the first evidence.
        """
        values = torch.stack([value.detach().float() for value in metrics.values()])
        if bool(torch.isfinite(values).all()):
            self.refused = []
            return True
        numbers = dict(zip(metrics, map(str, values.tolist()), strict=True))
        self.refused.append(self._save(numbers, batch, step))
        if len(self.refused) >= self.patience:
            first = self.refused[0]
            kept = "" if first is None else f", first with the batch in {first}; those after it are beside it"
            raise FloatingPointError(
                f"NonFiniteGuard: {' and '.join(metrics)} must be finite, they were not {len(self.refused)} times in a "
                f"row{kept}"
            )
        return False

    def _save(self, numbers: Mapping[str, str], batch: TensorDictBase, step: int) -> Path | None:
        if self.directory is None:
            return None
        path = self.directory / f"step-{step:012d}-{len(self.refused) + 1}"
        partial = path.with_name(f".{path.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        batch.detach().cpu().memmap(partial / "batch")
        info = {"step": step, "seed": torch.initial_seed(), **numbers}
        (partial / "info.json").write_text(json.dumps(info))
        shutil.rmtree(path, ignore_errors=True)
        return partial.rename(path)
