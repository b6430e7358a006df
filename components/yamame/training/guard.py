"""Guard against non-finite updates: skip the update, keep the evidence, warn, and stop at last."""

import math
import shlex
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from yamame.checks import Bounds, PositiveInt, check_bounds
from yamame.distributed import rank
from yamame.files.checkpoint import Checkpointer
from yamame.system.installed import recipe_command

_RECENT = 100
"""Number of latest updates in which skipped ones are counted."""
_FEWEST = 10
"""Skipped updates below which their share never ends a run."""
_MOST_BUNDLES = 5
"""Largest number of bundles of evidence."""


class NonFiniteGuard:
    """Checks a loss and its gradients before the update is made.

    Evidence is a bundle, ``<directory>/nonfinite/step-<updates made>-<skipped in a row>``: a
    checkpoint with the batch, the random state, the weights and statistics before the update, and
    the configuration. At most five are kept, the first and the latest; with several ranks, whose
    bundles end in ``-rank<number>``, five of each. ``recipes/replay_batch.py`` computes the loss of
    one again.

    Args:
        directory: The run's directory. None: no evidence is kept.
        patience: Number of skipped updates in a row that ends the run.
        max_refused: Share of skipped updates among the last 100 that ends the run, in (0, 1]. While
            there are fewer updates, the share among all; at least ten must have been skipped.
        config: The run's configuration, kept with the evidence.
        tell: Called with a line of text when the first update is skipped, and whenever the number
            of skipped updates among the last 100 has doubled, or fallen to a quarter, since the
            last line.

    Raises:
        ValueError: A number is out of its range.

    >>> guard = NonFiniteGuard(patience=2)
    >>> guard.accepts({"loss": torch.tensor(0.5)}), guard.accepts({"loss": torch.tensor(torch.nan)})
    (True, False)
    >>> guard.refuse({"loss": torch.tensor(torch.nan)}, step=1)
    >>> guard.num_refused
    1
    """

    @check_bounds
    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        patience: PositiveInt = 3,
        max_refused: Annotated[float, Bounds(above=0, most=1)] = 0.5,
        config: Mapping[str, Any] | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ):
        self.directory = None if directory is None else Path(directory) / "nonfinite"
        self.patience = patience
        self.max_refused = max_refused
        self.config = config
        self.tell = tell
        self.kept: dict[str, Any] = {}
        """Further components of every bundle."""
        self.num_refused = 0
        """Number of updates skipped so far."""
        self._in_row = 0
        self._last_reported = 0
        self._recent: deque[bool] = deque(maxlen=_RECENT)

    def accepts(self, metrics: Mapping[str, Tensor]) -> bool:
        """Return whether all numbers are finite, so that the update may be made.

        The host waits for the device here.
        """
        numbers = torch.stack([value.detach().float() for value in metrics.values()])
        # The one place of an update where the host reads from the device.
        # A sum is finite if all numbers are: in float64 no sum of float32 numbers overflows.
        is_finite = math.isfinite(numbers.sum(dtype=torch.float64).item())
        if is_finite:
            self._in_row = 0
            self._recent.append(False)
            self._report(", ")
        return is_finite

    def refuse(
        self, metrics: Mapping[str, Tensor], *, step: int, evidence: Mapping[str, Any] | None = None
    ) -> None:
        """Count a skipped update, and keep the evidence.

        Args:
            metrics: The numbers that are not finite.
            step: Number of updates made before.
            evidence: Components of the bundle; None: no bundle is written.

        Raises:
            FloatingPointError: ``patience`` updates in a row were skipped, or the share of skipped
                ones has reached ``max_refused``; names the latest evidence.
        """
        self.num_refused += 1
        self._in_row += 1
        self._recent.append(True)
        numbers: dict[str, float] = {}
        descriptions = []
        for name, metric in metrics.items():
            numbers[name] = metric.item()
            descriptions.append(f"{name} {numbers[name]:g}")
        details = " and ".join(descriptions)
        if self.directory is not None and evidence:
            path = self._save({**evidence, "numbers": numbers}, step)
            command = f"{recipe_command('replay_batch')} {shlex.quote(str(path))}"
            details += f", kept in {path}; {command} shows what it was"

        num_skipped = sum(self._recent)
        num_recent = len(self._recent)
        how_often = None
        if self._in_row >= self.patience:
            how_often = f"{self._in_row} times in a row"
        elif num_skipped >= max(_FEWEST, self.max_refused * num_recent):
            how_often = f"in {num_skipped} of the last {num_recent} updates"
        if how_often is not None:
            raise FloatingPointError(
                f"NonFiniteGuard: {' and '.join(metrics)} must be finite, they were not "
                f"{how_often}: {details}"
            )
        self._report(f": {details}, ")

    def _report(self, details: str) -> None:
        """Print a line if the share of skipped updates has changed much since the last one."""
        num_skipped = sum(self._recent)
        has_doubled = num_skipped >= max(1, 2 * self._last_reported)
        has_fallen = self._last_reported > 0 and 4 * num_skipped <= self._last_reported
        if has_doubled or has_fallen:
            self._last_reported = num_skipped
            self.tell(
                f"{num_skipped} of the last {len(self._recent)} updates skipped{details}"
                f"{self.num_refused} in all"
            )

    def _save(self, evidence: Mapping[str, Any], step: int) -> Path:
        assert self.directory is not None
        name = f"step-{step:012d}-{self._in_row}"
        if rank() > 0:
            name += f"-rank{rank()}"
        path = self.directory / name
        # Left by a run that was resumed from an earlier checkpoint.
        shutil.rmtree(path, ignore_errors=True)
        Checkpointer(path, config=self.config).save({**self.kept, **evidence}, step=step)

        # Each rank deletes its own: others may be writing or deleting theirs now.
        bundles = []
        for bundle in self.directory.glob("step-*"):
            if _rank_of(bundle) == rank():
                bundles.append(bundle)
        bundles.sort(key=lambda bundle: bundle.stat().st_mtime_ns)
        # The first one stays: later ones may be consequences of it.
        for bundle in bundles[1 : 1 - _MOST_BUNDLES]:
            shutil.rmtree(bundle, ignore_errors=True)
        return path

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "num_refused": self.num_refused,
            "in_row": self._in_row,
            "told": self._last_reported,
            "recent": list(self._recent),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.num_refused = state["num_refused"]
        self._in_row = state["in_row"]
        self._last_reported = state["told"]
        self._recent = deque(state["recent"], maxlen=_RECENT)


def _rank_of(bundle: Path) -> int:
    """Return the number of the rank that wrote a bundle.

    >>> _rank_of(Path("step-000000000007-1")), _rank_of(Path("step-000000000007-1-rank12"))
    (0, 12)
    """
    return int(bundle.name.partition("-rank")[2] or 0)


def require_finite(components: Mapping[str, Any]) -> None:
    """Raise if an entry of a module or an optimizer is not finite, before it is saved.

    Raises:
        FloatingPointError: Names the entry.
    """
    for name, component in components.items():
        for entry, value in _entries(component):
            if isinstance(value, Tensor) and not bool(value.isfinite().all()):
                raise FloatingPointError(
                    f"a checkpoint must hold finite numbers, {name} does not: {entry}; the one "
                    "before is kept"
                )


def _entries(component: Any) -> list[tuple[str, Any]]:
    """Return names and values of the entries of a module or an optimizer."""
    if isinstance(component, nn.Module):
        return [*component.named_parameters(), *component.named_buffers()]
    entries: list[tuple[str, Any]] = []
    if isinstance(component, torch.optim.Optimizer):
        for number, state in component.state_dict()["state"].items():
            for key, value in state.items():
                entries.append((f"{key} of parameter {number}", value))
    return entries
