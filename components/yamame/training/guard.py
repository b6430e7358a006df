"""A guard against updates that are not finite: keep the evidence, skip the update, say so, stop
when it goes on.
"""

import shlex
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from yamame.checks import require, require_at_least
from yamame.distributed import rank
from yamame.files.checkpoint import Checkpointer
from yamame.system.installed import recipe_command

_RECENT = 100
_FEWEST = 10
_KEPT = 5


class NonFiniteGuard:
    """Looks at a loss and its gradients before the update.

    Evidence is a bundle, ``<directory>/nonfinite/step-<updates made>-<refusals in a row>``: a
    checkpoint with the batch, the random state, the weights and statistics before the update, and
    the configuration. At most five are kept, the first and the latest. ``recipes/replay_batch.py``
    computes the loss of one again.

    Args:
        directory: The run's directory. None: no evidence is kept.
        patience: Number of refused updates in a row that ends the run.
        max_refused: Share of refused ones among the last 100 updates that ends the run, in (0, 1].
            While there are fewer, among all; ten at least.
        config: The run's configuration, kept with the evidence.
        tell: Is given a line when the first update is refused, and whenever so many are refused
            among the last 100 as have doubled, or fallen to a quarter, since the last line.

    Raises:
        ValueError: A number is out of its range.

    >>> guard = NonFiniteGuard(patience=2)
    >>> guard.accepts({"loss": torch.tensor(0.5)}), guard.accepts({"loss": torch.tensor(torch.nan)})
    (True, False)
    >>> guard.refuse({"loss": torch.tensor(torch.nan)}, step=1)
    >>> guard.num_refused
    1
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        patience: int = 3,
        max_refused: float = 0.5,
        config: Mapping[str, Any] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ):
        require_at_least("NonFiniteGuard", 1, patience=patience)
        require(
            "NonFiniteGuard", "max_refused", max_refused, 0.0 < max_refused <= 1.0, "be in (0, 1]"
        )
        self.directory = None if directory is None else Path(directory) / "nonfinite"
        self.patience, self.max_refused = patience, max_refused
        self.config, self.tell = config, tell
        self.kept: dict[str, Any] = {}
        """Further components of every bundle."""
        self.num_refused = 0
        self._in_row = self._told = 0
        self._recent: deque[bool] = deque(maxlen=_RECENT)

    def accepts(self, metrics: Mapping[str, Tensor]) -> bool:
        """Whether the update may be made: all numbers are finite. They are read at once: it waits
        for the device.
        """
        finite = bool(
            torch.stack([value.detach().float() for value in metrics.values()]).isfinite().all()
        )
        if finite:
            self._in_row = 0
            self._recent.append(False)
            self._tell(", ")
        return finite

    def refuse(
        self, metrics: Mapping[str, Tensor], *, step: int, evidence: Mapping[str, Any] | None = None
    ) -> None:
        """Counts an update that is not made, and keeps the evidence.

        Args:
            metrics: The numbers that are not finite.
            step: Number of updates made before.
            evidence: Components of the bundle; without any there is none.

        Raises:
            FloatingPointError: ``patience`` updates in a row were refused, or the share of refused
                ones has reached ``max_refused``; names the latest evidence.
        """
        self.num_refused += 1
        self._in_row += 1
        self._recent.append(True)
        numbers = {name: value.item() for name, value in metrics.items()}
        path = (
            self._save({**evidence, "numbers": numbers}, step)
            if self.directory and evidence
            else None
        )
        values = " and ".join(f"{name} {value:g}" for name, value in numbers.items())
        kept = (
            ""
            if path is None
            else f", kept in {path}; {recipe_command('replay_batch')} {shlex.quote(str(path))} shows what it was"
        )
        count, among = sum(self._recent), len(self._recent)
        row = self._in_row >= self.patience
        if row or count >= max(_FEWEST, self.max_refused * among):
            how_often = (
                f"{self._in_row} times in a row"
                if row
                else f"in {count} of the last {among} updates"
            )
            raise FloatingPointError(
                f"NonFiniteGuard: {' and '.join(metrics)} must be finite, they were not {how_often}: {values}{kept}"
            )
        self._tell(f": {values}{kept}, ")

    def _tell(self, why: str) -> None:
        """A line, if the share of refused updates has changed much since the last one."""
        count = sum(self._recent)
        if count >= max(1, 2 * self._told) or 4 * count <= self._told != 0:
            self._told = count
            self.tell(
                f"{count} of the last {len(self._recent)} updates refused{why}{self.num_refused} in all"
            )

    def _save(self, evidence: Mapping[str, Any], step: int) -> Path:
        assert self.directory is not None
        path = (
            self.directory / f"step-{step:012d}-{self._in_row}{f'-rank{rank()}' if rank() else ''}"
        )
        shutil.rmtree(path, ignore_errors=True)
        Checkpointer(path, config=self.config).save({**self.kept, **evidence}, step=step)
        bundles = sorted(
            self.directory.glob("step-*"), key=lambda bundle: bundle.stat().st_mtime_ns
        )
        for bundle in bundles[1 : 1 - _KEPT]:
            shutil.rmtree(bundle, ignore_errors=True)
        return path

    def state_dict(self) -> dict[str, Any]:
        """What was counted."""
        return {
            "num_refused": self.num_refused,
            "in_row": self._in_row,
            "told": self._told,
            "recent": list(self._recent),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`."""
        self.num_refused, self._in_row = state["num_refused"], state["in_row"]
        self._told, self._recent = state["told"], deque(state["recent"], maxlen=_RECENT)


def require_finite(components: Mapping[str, Any]) -> None:
    """Refuses to save modules and optimizers with an entry that is not finite.

    Raises:
        FloatingPointError: Names the entry.
    """
    for name, part in components.items():
        if isinstance(part, nn.Module):
            entries = [*part.named_parameters(), *part.named_buffers()]
        elif isinstance(part, torch.optim.Optimizer):
            states = part.state_dict()["state"].items()
            entries = [
                (f"{key} of parameter {n}", value)
                for n, state in states
                for key, value in state.items()
            ]
        else:
            continue
        for entry, value in entries:
            if isinstance(value, Tensor) and not bool(value.isfinite().all()):
                raise FloatingPointError(
                    f"a checkpoint must hold finite numbers, {name} does not: {entry}; the one before is kept"
                )
