"""Ridge probes: how well a linear map predicts hidden variables from encodings.

The map is fitted in closed form to some episodes and scored on others. If a probe of the context
predicts better than a probe of the current timestep's encoding, the difference comes from memory
(linear probes: Alain and Bengio, arXiv 1610.01644).
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
    """Scores of a probe on episodes that it was not fitted to, over the time of an episode.

    Attributes:
        steps: ``[P]`` float64, the middle of each part of the episode.
        r2: ``[P]`` float64, the explained share of the variance among the timesteps of that part;
            negative if the mean would predict better.
        accuracy: ``[P]``, the share of correct values, if every variable has two of them; else
            None.
        chance: ``[P]``, accuracy of always predicting the more frequent value; None as
            ``accuracy``.
    """

    steps: Tensor
    r2: Tensor
    accuracy: Tensor | None = None
    chance: Tensor | None = None


@torch.no_grad()
def probe(inputs: Tensor, targets: Tensor, mask: Tensor) -> ProbeCurve | None:
    """Fit ridge regressions, each to four fifths of the episodes, and score each on the rest.

    Args:
        inputs: ``[E, T, D]``, encodings.
        targets: ``[E, T, H]``, the hidden variables; constant ones are left out, all others have
            the same weight.
        mask: ``[E, T]`` bool, the timesteps of the episodes.

    Returns:
        The curve; None if all hidden variables are constant.

    Raises:
        ArgumentError: There are fewer than ten episodes.
    """
    num_episodes = len(mask)
    condition = f"be at least {2 * _FOLDS}"
    require("probe", "episodes", num_episodes, num_episodes >= 2 * _FOLDS, condition)
    x = inputs.double().cpu()
    y = targets.double().cpu()
    mask = mask.cpu()
    y = y[..., y[mask].std(0) > 0]
    if y.shape[-1] == 0:
        return None
    y = (y - y[mask].mean(0)) / y[mask].std(0)

    predicted = torch.zeros_like(y)
    fold = torch.arange(num_episodes) % _FOLDS
    for held_out in range(_FOLDS):
        is_fitted = fold != held_out
        # The penalty is chosen on one of the fitted folds, so the held-out fold has no say in it.
        is_validation = fold == (held_out + 1) % _FOLDS
        penalty = _best_penalty(x, y, mask, is_fitted & ~is_validation, is_validation)
        rows = mask & is_fitted.unsqueeze(1)
        predicted[~is_fitted] = _Ridge(x[rows], y[rows], penalty)(x[~is_fitted])
    return _score(predicted, y, mask)


def _best_penalty(
    x: Tensor, y: Tensor, mask: Tensor, is_fitted: Tensor, is_validation: Tensor
) -> float:
    inner = mask & is_fitted.unsqueeze(1)
    outer = mask & is_validation.unsqueeze(1)
    errors = []
    for penalty in _PENALTIES:
        ridge = _Ridge(x[inner], y[inner], penalty)
        errors.append(float((ridge(x[outer]) - y[outer]).square().mean()))
    return _PENALTIES[errors.index(min(errors))]


class _Ridge:
    """Linear map of standardised inputs, with an intercept, fitted with an L2 penalty."""

    def __init__(self, x: Tensor, y: Tensor, penalty: float) -> None:
        self.shift = x.mean(0)
        self.scale = x.std(0).clamp_min(1e-8)  # a constant feature has no scale
        self.mean = y.mean(0)
        x = (x - self.shift) / self.scale
        # The penalty grows with the number of rows, so one grid suits all numbers of episodes.
        gram = x.T @ x + penalty * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
        self.weight = torch.linalg.solve(gram, x.T @ (y - self.mean))

    def __call__(self, x: Tensor) -> Tensor:
        return (x - self.shift) / self.scale @ self.weight + self.mean


def _score(predicted: Tensor, y: Tensor, mask: Tensor) -> ProbeCurve:
    """Compare predictions with targets ``[E, T, H]`` in each part of the episodes."""
    targets = y[mask]
    is_binary = all(len(values.unique()) == 2 for values in targets.unbind(-1))
    middle = (targets.amax(0) + targets.amin(0)) / 2
    points = []
    for part in torch.arange(mask.shape[1]).chunk(_MOST_POINTS):
        inside = mask[:, part]
        guess = predicted[:, part][inside]
        true = y[:, part][inside]
        spread = (true - true.mean(0)).square().sum()
        if len(true) < _FOLDS or spread < 1e-9 * true.numel():
            # All targets are equal here, so there is no variance to explain.
            continue
        r2 = 1 - (guess - true).square().sum() / spread
        is_high = true > middle
        is_right = (guess > middle) == is_high
        accuracy = is_right.double().mean()
        rate = is_high.double().mean(0)
        chance = torch.maximum(rate, 1 - rate).mean()
        points.append(torch.stack([part.double().mean(), r2, accuracy, chance]))

    steps, r2, accuracy, chance = torch.stack(points, 1)
    return ProbeCurve(steps, r2, accuracy, chance) if is_binary else ProbeCurve(steps, r2)
