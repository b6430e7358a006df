"""Ridge probes: how well a linear map tells hidden variables from what an encoder wrote, over the
time of an episode.

The map is fitted in closed form to some episodes and judged on others. What a probe of the context
tells and a probe of the present timestep's encoding does not, memory holds (linear probes: Alain
and Bengio, arXiv 1610.01644).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from yamame.checks import require

_PENALTIES = tuple(10.0**power for power in range(-5, 3))
_FOLDS = 5
_MOST_POINTS = 20


@dataclass(frozen=True)
class ProbeCurve:
    """What a probe tells on episodes that it was not fitted to.

    Attributes:
        steps: ``[P]`` float64, the middle of each part of the episode.
        r2: ``[P]`` float64, the share of the variance that it explains among the timesteps of that
            part; negative where the mean would tell more.
        accuracy: ``[P]``, the share of values told right, where every variable has two of them;
            else None.
        chance: ``[P]``, the same of whoever always says the more frequent value.
    """

    steps: Tensor
    r2: Tensor
    accuracy: Tensor | None = None
    chance: Tensor | None = None


@torch.no_grad()
def probe(inputs: Tensor, targets: Tensor, mask: Tensor) -> ProbeCurve | None:
    """Fits ridge regressions, each to four fifths of the episodes, and judges each on the rest.

    The penalty is that which does best on a part of a fit's episodes: none has a say in how it is
    judged itself.

    Args:
        inputs: ``[E, T, D]``, what is read.
        targets: ``[E, T, H]``, the hidden variables; those that never change are left out, all
            others count alike.
        mask: ``[E, T]`` bool, the timesteps of the episodes.

    Returns:
        The curve; None where no hidden variable changes.

    Raises:
        ValueError: If there are fewer than ten episodes.
    """
    require("probe", "episodes", len(mask), len(mask) >= 2 * _FOLDS, f"be at least {2 * _FOLDS}")
    x, y = inputs.double().cpu(), targets.double().cpu()
    mask = mask.cpu()
    y = y[..., y[mask].std(0) > 0]
    if not y.shape[-1]:
        return None
    y = (y - y[mask].mean(0)) / y[mask].std(0)
    predicted = torch.zeros_like(y)
    fold = torch.arange(len(mask)) % _FOLDS
    for held_out in range(_FOLDS):
        tried = fold == (held_out + 1) % _FOLDS
        fitted = fold != held_out
        inner, outer = mask & (fitted & ~tried).unsqueeze(1), mask & tried.unsqueeze(1)
        maps = [_Ridge(x[inner], y[inner], penalty) for penalty in _PENALTIES]
        errors = [float((ridge(x[outer]) - y[outer]).square().mean()) for ridge in maps]
        best = _PENALTIES[errors.index(min(errors))]
        rows = mask & fitted.unsqueeze(1)
        predicted[fold == held_out] = _Ridge(x[rows], y[rows], best)(x[fold == held_out])
    return _judge(predicted, y, mask)


class _Ridge:
    """A linear map of standardised inputs, with an intercept, that minimises the squared error and
    a penalty.
    """

    def __init__(self, x: Tensor, y: Tensor, penalty: float) -> None:
        self.shift, self.scale, self.mean = x.mean(0), x.std(0).clamp_min(1e-8), y.mean(0)
        x = (x - self.shift) / self.scale
        gram = x.T @ x + penalty * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
        self.weight = torch.linalg.solve(gram, x.T @ (y - self.mean))

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.shift) / self.scale @ self.weight + self.mean


def _judge(predicted: Tensor, y: Tensor, mask: Tensor) -> ProbeCurve:
    """Compares parts of the episodes that have something to tell: ``[E, T, H]`` twice and
    ``[E, T]``.
    """
    places = torch.arange(mask.shape[1])
    points = []
    two = all(len(values.unique()) == 2 for values in y[mask].unbind(-1))
    middle = (y[mask].amax(0) + y[mask].amin(0)) / 2
    for part in places.chunk(_MOST_POINTS):
        there = mask[:, part]
        told, true = predicted[:, part][there], y[:, part][there]
        spread = (true - true.mean(0)).square().sum()
        if len(true) < _FOLDS or spread < 1e-9 * true.numel():  # nothing differs there
            continue
        r2 = 1 - (told - true).square().sum() / spread
        high = true > middle
        rate = high.double().mean(0)
        right, chance = (
            ((told > middle) == high).double().mean(),
            torch.maximum(rate, 1 - rate).mean(),
        )
        points.append(torch.stack([part.double().mean(), r2, right, chance]))
    steps, r2, accuracy, chance = torch.stack(points, 1)
    return ProbeCurve(steps, r2, accuracy, chance) if two else ProbeCurve(steps, r2)
