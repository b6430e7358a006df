"""Metrics of an update: means over valid transitions, for the acting discount and for each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from yamame.losses.functional import MaskedMean


def gamma_names(name: str, gammas: Sequence[float]) -> list[str]:
    """Return the names of the means of `MetricMeans.add_gammas`.

    >>> gamma_names("q_value", [0.9, 0.99])
    ['q_value', 'q_value_gamma_0.9', 'q_value_gamma_0.99']
    >>> gamma_names("q_value", [0.99])
    ['q_value']
    """
    if len(gammas) == 1:
        return [name]
    return [name, *(f"{name}_gamma_{gamma:g}" for gamma in gammas)]


class MetricMeans:
    """Averages of metrics over valid transitions, all of them computed by one sum.

    Args:
        mean: Averages over the valid transitions [B, T].
        gammas: The G discounts, which name metrics.

    >>> means = MetricMeans(MaskedMean(torch.tensor([[True, False]])), [0.9, 0.99])
    >>> means.add("entropy", torch.tensor([[1.0, 9.0]]))
    >>> means.add_gammas("q_value", torch.tensor([[[2.0, 3.0], [9.0, 9.0]]]))
    >>> {name: value.item() for name, value in means.compute().items()}
    {'entropy': 1.0, 'q_value': 3.0, 'q_value_gamma_0.9': 2.0, 'q_value_gamma_0.99': 3.0}
    """

    def __init__(self, mean: MaskedMean, gammas: Sequence[float]) -> None:
        self._mean = mean
        self._gammas = gammas
        self._columns: list[Tensor] = []  # each [B, T, K]
        self._names: list[tuple[list[str], int]] = []

    def add(self, name: str, values: Tensor) -> None:
        """Add a metric that is averaged over all trailing dimensions: [B, T, *]."""
        self._add([name], values, size=1)

    def add_gammas(self, name: str, values: Tensor) -> None:
        """Add a metric for the last discount, which acts, and for each of several: [B, T, *, G]."""
        self._add(gamma_names(name, self._gammas), values, size=len(self._gammas))

    def _add(self, names: list[str], values: Tensor, *, size: int) -> None:
        columns = values.reshape(*self._mean.mask.shape, -1)
        if not columns.is_floating_point():
            columns = columns.float()
        self._columns.append(columns)
        self._names.append((names, size))

    def compute(self) -> dict[str, Tensor]:
        """Return the averages, by name."""
        if not self._columns:
            return {}
        means = self._mean(torch.cat(self._columns, -1), dim=-1)  # [K of all metrics]
        output: dict[str, Tensor] = {}
        parts = means.split([columns.shape[-1] for columns in self._columns])
        for (names, size), part in zip(self._names, parts, strict=True):
            if len(part) > size:
                part = part.view(-1, size).mean(0)
            values = part.unbind()
            output[names[0]] = values[-1]
            output.update(zip(names[1:], values, strict=False))
        return output


def is_clipped(targets: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Return which targets are outside the bounds.

    >>> is_clipped(torch.tensor([0.5, 2.0, -9.0]), (-1.0, 1.0))
    tensor([False,  True,  True])
    """
    low, high = bounds
    return (targets < low) | (targets > high)
