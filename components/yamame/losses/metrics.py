"""Metrics of an update: means over valid transitions, for the acting discount and for each."""

from collections.abc import Sequence

from torch import Tensor

from yamame.losses.functional import masked_mean


def gamma_names(name: str, gammas: Sequence[float]) -> list[str]:
    """Return the names of the means of `gamma_means`.

    >>> gamma_names("q_value", [0.9, 0.99])
    ['q_value', 'q_value_gamma_0.9', 'q_value_gamma_0.99']
    >>> gamma_names("q_value", [0.99])
    ['q_value']
    """
    if len(gammas) == 1:
        return [name]
    return [name, *(f"{name}_gamma_{gamma:g}" for gamma in gammas)]


def gamma_means(
    name: str, values: Tensor, valid: Tensor, gammas: Sequence[float]
) -> dict[str, Tensor]:
    """Average a metric for the last discount, which acts, and for each discount of several.

    Args:
        name: Name of the metric.
        values: [B, T, *, G].
        valid: Bool [B, T], see `yamame.losses.transition_mask`.
        gammas: The G discounts, which name the metrics.

    Returns:
        Scalars by name: means over valid transitions and all dimensions but the last.
    """
    means = masked_mean(values, valid, dim=-1).unbind()
    output = {name: means[-1]}
    if len(gammas) > 1:
        for gamma_name, mean in zip(gamma_names(name, gammas)[1:], means, strict=True):
            output[gamma_name] = mean
    return output


def value_metrics(
    q_value: Tensor, targets: Tensor, valid: Tensor, gammas: Sequence[float]
) -> dict[str, Tensor]:
    """Compare the values [B, T, C, G] of the taken actions with their targets [B, T, G]."""
    # All critics share the target.
    error = (q_value[..., -1] - targets[..., -1].unsqueeze(2)).abs()
    metrics = {
        "td_error": masked_mean(error, valid),
        "target_value": masked_mean(targets[..., -1], valid),
    }
    return metrics | gamma_means("q_value", q_value, valid, gammas)


def clipped_share(targets: Tensor, valid: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Return the share of valid targets [B, T, G] outside the bounds.

    >>> import torch
    >>> targets = torch.tensor([[[0.5, 2.0], [-9.0, 9.0]]])
    >>> clipped_share(targets, torch.tensor([[True, False]]), (-1.0, 1.0))
    tensor(0.5000)
    """
    low, high = bounds
    is_outside = (targets < low) | (targets > high)
    return masked_mean(is_outside.float(), valid)
