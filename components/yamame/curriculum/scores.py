"""Scores of tasks from the temporal-difference errors of episodes, as pure functions.

Shapes: E episodes, T transitions. Invalid transitions follow the valid ones and have error 0.
"""

import torch
from torch import Tensor

from yamame.curriculum.base import TDErrors


def advantages(td: TDErrors, gae_lambda: float) -> Tensor:
    """Compute the discounted sums ``[E, T]`` of later errors, generalised advantages.

    Source: Schulman et al., arXiv 1506.02438. The sum of transition t is that of
    ``(discount * gae_lambda)^(k - t)`` times the error of k, over k from t to the end.

    Args:
        td: Errors.
        gae_lambda: Trace parameter in [0, 1]; 0 returns the errors.

    >>> errors = torch.tensor([[1.0, 2.0, 4.0, 0.0]])
    >>> td = TDErrors(errors, torch.tensor([[True, True, True, False]]), discount=0.5)
    >>> advantages(td, 1.0).tolist()
    [[3.0, 4.0, 4.0, 0.0]]
    """
    decay = td.discount * gae_lambda
    sums = torch.empty_like(td.errors)
    later = torch.zeros_like(td.errors[:, 0])
    for t in reversed(range(td.errors.shape[1])):
        later = td.errors[:, t] + decay * later
        sums[:, t] = later
    return sums


def value_loss(td: TDErrors, gae_lambda: float) -> Tensor:
    """Return the mean magnitude ``[E]`` of the advantages: the L1 value loss of arXiv 2010.03934.

    >>> td = TDErrors(torch.tensor([[1.0, -3.0]]), torch.ones(1, 2, dtype=torch.bool), 0.9)
    >>> value_loss(td, 0.0).tolist()
    [2.0]
    """
    return _mean(advantages(td, gae_lambda).abs(), td.valid)


def positive_value_loss(td: TDErrors, gae_lambda: float) -> Tensor:
    """Return the mean positive part ``[E]`` of the advantages (arXiv 2110.02439).

    It is large where an episode went better than expected, which bounds the regret from below.

    >>> td = TDErrors(torch.tensor([[1.0, -3.0]]), torch.ones(1, 2, dtype=torch.bool), 0.9)
    >>> positive_value_loss(td, 0.0).tolist()
    [0.5]
    """
    return _mean(advantages(td, gae_lambda).clamp(min=0.0), td.valid)


def _mean(values: Tensor, valid: Tensor) -> Tensor:
    # Sums of later errors are 0 after the end, so the padding adds nothing.
    return values.sum(-1) / valid.sum(-1).clamp(min=1)
