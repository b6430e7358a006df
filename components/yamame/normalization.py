"""Running statistics: mean and variance of data over time, and the normaliser of inputs with them.

Statistics are buffers, so they are checkpointed and sent to acting policies together with the
weights. They include finite timesteps that a mask marks as real. A feature keeps its statistics in
an update after which they would not be finite.
"""

from typing import Annotated

import torch
from torch import Tensor, nn

from yamame.checks import Bounds, NonNegativeInt, PositiveFloat, PositiveInt, check_bounds
from yamame.distributed import all_gather_tensors, world_size

LARGEST = 1e10
"""Largest magnitude included in statistics. Anything beyond is taken for a fault: its square would
dominate all others in float32, or overflow.
"""

Decay = Annotated[float, Bounds(above=0, most=1)]
"""Weight of a new batch."""


class RunningMoments(nn.Module):
    """Mean and variance of every feature, as bias-corrected moving averages over batches.

    Update n moves them towards the moments of its batch by
    ``decay / (1 - (1 - decay)^(n + initial_updates))``, so that early training is a plain average
    over batches.

    Args:
        num_features: F, size of the last dimension.
        decay: Weight of a batch once many have been seen, in (0, 1].
        initial_variance: Variance before the first update, positive; the mean is zero.
        initial_updates: Number of updates that the initial moments count as; with 0 the first batch
            replaces them.

    Raises:
        ValueError: If an argument is out of range.

    >>> moments = RunningMoments(1, decay=0.01)
    >>> moments.update(torch.tensor([[1.0], [3.0]]))
    >>> moments.mean.float(), moments.variance.float()
    (tensor([2.]), tensor([1.]))
    """

    mean: Tensor
    variance: Tensor
    num_updates: Tensor

    @check_bounds
    def __init__(
        self,
        num_features: PositiveInt,
        *,
        decay: Decay,
        initial_variance: PositiveFloat = 1.0,
        initial_updates: NonNegativeInt = 0,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.decay = decay
        self.initial_updates = initial_updates
        # float64, in which a mean of thousands of deviations still moves by a small step.
        mean = torch.zeros(num_features, dtype=torch.float64)
        variance = torch.full((num_features,), initial_variance, dtype=torch.float64)
        num_updates = torch.zeros((), dtype=torch.int64)
        self.register_buffer("mean", mean)
        self.register_buffer("variance", variance)
        self.register_buffer("num_updates", num_updates)

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Include a batch; without a valid timestep nothing changes.

        Args:
            x: ``[*, F]``.
            mask: Bool, broadcasts to ``[*]``: real timesteps; None if all are real.
        """
        x = x.float()
        valid = x.isfinite().all(-1, keepdim=True)  # [*, 1]
        if mask is not None:
            valid = valid & mask.unsqueeze(-1)
        num_valid = valid.any().long()
        counted = valid & (x.abs() <= LARGEST)  # [*, F]
        x = x.reshape(-1, self.num_features)
        counted = counted.reshape(-1, self.num_features)

        # Tensors stay on the device, and every process takes part, empty batches too.
        total = counted.sum(0)  # [F]
        batch_mean = torch.where(counted, x, 0.0).sum(0) / total.clamp(min=1)
        # About the mean: a difference of squares has no correct digits in float32 if the mean is
        # large.
        deviation = torch.where(counted, x - batch_mean, 0.0)
        squares = deviation.square().sum(0)
        if world_size() > 1:
            moments = all_gather_tensors(total, batch_mean, squares, num_valid)
            total, batch_mean, squares, num_valid = _merged(*moments)
        batch_variance = squares / total.clamp(min=1)

        self.num_updates.add_(num_valid > 0)
        updates = self.num_updates + self.initial_updates
        updates = updates.clamp(min=1).double()
        correction = 1.0 - (1.0 - self.decay) ** updates
        weight = (self.decay / correction).clamp(max=1.0)
        moves = (total > 0) & batch_variance.isfinite()  # squares of large numbers overflow
        shift = torch.where(moves, batch_mean - self.mean, 0.0)
        growth = torch.where(moves, batch_variance - self.variance, 0.0)
        # Variance of a mixture of two distributions whose means differ by `shift`.
        spread = (1.0 - weight) * shift.square()
        variance = self.variance + weight * (growth + spread)
        mean = self.mean + weight * shift

        # The mean is used in float32.
        is_finite = variance.isfinite() & mean.float().isfinite()
        variance = torch.where(is_finite, variance, self.variance)
        mean = torch.where(is_finite, mean, self.mean)
        self.variance.copy_(variance)
        self.mean.copy_(mean)


def _merged(total: Tensor, mean: Tensor, squares: Tensor, num_valid: Tensor) -> tuple[Tensor, ...]:
    """Merge moments of the shares of R ranks (Chan et al., 1979).

    Args:
        total: Counted timesteps, ``[R, F]``.
        mean: Their means.
        squares: Sums of their squared deviations from these means.
        num_valid: Number of timesteps, or whether there is one, ``[R]``.

    Returns:
        The same of all timesteps, ``[F]`` and a scalar.
    """
    merged_total = total.sum(0)
    merged_mean = (total * mean).sum(0) / merged_total.clamp(min=1)
    between = total * (mean - merged_mean).square()
    merged_squares = (squares + between).sum(0)
    return merged_total, merged_mean, merged_squares, num_valid.sum()


class RunningNormalizer(RunningMoments):
    """Normalisation of each feature by running statistics: ``clip((x - mean) / std)``.

    The statistics change in training mode only, once per forward pass. The first batch replaces
    the initial zero mean and unit variance. Outputs at padding are undefined.

    Args:
        num_features: F, size of the last dimension.
        decay: Weight of a new batch once many have been seen, in (0, 1].
        min_std: Smallest standard deviation that is divided by; a feature below it is shifted only.
        clip: Largest magnitude of an output, in standard deviations.

    Raises:
        ValueError: If an argument is out of range, or an input does not end in ``num_features``.

    >>> normalizer = RunningNormalizer(1)
    >>> normalizer(torch.tensor([[1.0], [3.0]])).flatten().tolist()
    [-1.0, 1.0]
    """

    @check_bounds
    def __init__(
        self,
        num_features: PositiveInt,
        *,
        decay: Decay = 1e-4,
        min_std: PositiveFloat = 1e-2,
        clip: PositiveFloat = 10.0,
    ) -> None:
        super().__init__(num_features, decay=decay)
        self.min_std = min_std
        self.clip = clip

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Update the statistics (training mode) and normalise.

        Args:
            x: ``[*, F]``, cast to float32.
            mask: ``[*]`` bool, real timesteps; None if all are real.

        Returns:
            ``[*, F]`` float32.
        """
        if x.shape[-1:] != (self.num_features,):
            raise ValueError(
                f"RunningNormalizer: input must end in num_features={self.num_features}, got shape"
                f" {tuple(x.shape)}"
            )
        if self.training:
            self.update(x, mask)
        std = self.variance.sqrt().float()
        # Division by a tiny deviation would amplify noise of a feature that is nearly constant.
        scale = std.masked_fill(std < self.min_std, 1.0)
        centered = x.float() - self.mean.float()
        normalized = centered / scale
        return normalized.clamp(-self.clip, self.clip)
