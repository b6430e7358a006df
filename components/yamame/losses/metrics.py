"""Metrics of an update: means over its valid transitions, of the discount that acts and of each."""

from collections.abc import Sequence

from torch import Tensor

from yamame.losses.functional import masked_mean


def gamma_names(name: str, gammas: Sequence[float]) -> list[str]:
    """What `gamma_means` calls its means.

    >>> gamma_names("q_value", [0.9, 0.99])
    ['q_value', 'q_value_gamma_0.9', 'q_value_gamma_0.99']
    >>> gamma_names("q_value", [0.99])
    ['q_value']
    """
    each = [f"{name}_gamma_{gamma:g}" for gamma in gammas] if len(gammas) > 1 else []
    return [name, *each]


def gamma_means(
    name: str, values: Tensor, valid: Tensor, gammas: Sequence[float]
) -> dict[str, Tensor]:
    """A metric of the last discount, which acts, and of every discount if there are several.

    Args:
        name: What is measured.
        values: [B, T, *, G].
        valid: bool [B, T], see `yamame.losses.transition_mask`.
        gammas: The G discounts, which name the metrics.

    Returns:
        Scalars by their names: the means over valid transitions and all other dimensions.
    """
    each = masked_mean(values, valid, dim=-1).unbind()
    return dict(zip(gamma_names(name, gammas), [each[-1], *each], strict=False))


def value_metrics(
    q_value: Tensor, targets: Tensor, valid: Tensor, gammas: Sequence[float]
) -> dict[str, Tensor]:
    """How the values [B, T, C, G] of the taken actions compare with their targets [B, T, G]."""
    error = (q_value[..., -1] - targets[..., -1].unsqueeze(2)).abs()
    return {
        "td_error": masked_mean(error, valid),
        "target_value": masked_mean(targets[..., -1], valid),
        **gamma_means("q_value", q_value, valid, gammas),
    }


def clipped_share(targets: Tensor, valid: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Share of the targets [B, T, G] of valid transitions, of all discounts, that lie outside the
    bounds.

    >>> import torch
    >>> targets = torch.tensor([[[0.5, 2.0], [-9.0, 9.0]]])
    >>> clipped_share(targets, torch.tensor([[True, False]]), (-1.0, 1.0))
    tensor(0.5000)
    """
    low, high = bounds
    return masked_mean(((targets < low) | (targets > high)).float(), valid)
