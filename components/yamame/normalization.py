"""Running statistics: mean and variance of what passes, and the normaliser of inputs made of them.

Statistics are buffers, so they are checkpointed and reach whoever acts together with the weights.
They take in finite timesteps that a mask marks as real, and nothing else; a number beyond `LARGEST`
is left out, and a feature whose moments would not be finite stands still.
"""

import torch
from torch import Tensor, distributed, nn

from yamame.checks import require, require_at_least

LARGEST = 1e10
"""Beyond it a number is taken for a fault: in float32 its square drowns all others, and overflows
before long.
"""


class RunningMoments(nn.Module):
    """Mean and variance of every feature, as bias-corrected moving averages over batches.

    Update n moves them towards the moments of its batch by
    ``decay / (1 - (1 - decay)^(n + initial_updates))``, so that early training is a plain average
    over batches. The variance is taken about the mean: as a difference of squares it would have no
    digits left in float32 where the mean is large. The averages are float64, in which a mean of
    thousands of deviations still moves by a small step.

    Args:
        num_features: F, size of the last dimension.
        decay: Weight of a batch once many have been seen, in (0, 1].
        initial_variance: Variance before the first update, positive; the mean is zero.
        initial_updates: How many updates the initial moments count for; 0 and the first batch
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

    def __init__(
        self,
        num_features: int,
        *,
        decay: float,
        initial_variance: float = 1.0,
        initial_updates: int = 0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        require_at_least(name, 1, num_features=num_features)
        require(name, "decay", decay, 0.0 < decay <= 1.0, "be in (0, 1]")
        require(name, "initial_variance", initial_variance, initial_variance > 0.0, "be positive")
        require_at_least(name, 0, initial_updates=initial_updates)
        self.num_features = num_features
        self.decay = decay
        self.initial_updates = initial_updates
        self.register_buffer("mean", torch.zeros(num_features, dtype=torch.float64))
        variance = torch.full((num_features,), initial_variance, dtype=torch.float64)
        self.register_buffer("variance", variance)
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Takes in a batch; without a valid timestep it changes nothing.

        Args:
            x: ``[*, F]``.
            mask: Bool, broadcasts to ``[*]``: which timesteps are real; all of them without it.
        """
        x = x.float()
        valid = x.isfinite().all(-1, keepdim=True)
        if mask is not None:
            valid = valid & mask.unsqueeze(-1)
        some = valid.any().long()
        x, valid = (t.reshape(-1, self.num_features) for t in (x, valid & (x.abs() <= LARGEST)))
        total, some, sums = _over_ranks(valid.sum(0), some, torch.where(valid, x, 0.0).sum(0))
        count = total.clamp(min=1)
        batch_mean = sums / count
        (squares,) = _over_ranks(torch.where(valid, x - batch_mean, 0.0).square().sum(0))
        batch_variance = squares / count

        self.num_updates.add_(some > 0)
        updates = (self.num_updates + self.initial_updates).clamp(min=1).double()
        weight = (self.decay / (1.0 - (1.0 - self.decay) ** updates)).clamp(max=1.0)
        moves = (total > 0) & batch_variance.isfinite()  # squares of large numbers overflow
        shift = torch.where(moves, batch_mean - self.mean, 0.0)
        growth = torch.where(moves, batch_variance - self.variance, 0.0)
        # Of the mixture of two distributions whose means are apart by the shift.
        variance = self.variance + weight * (growth + (1.0 - weight) * shift.square())
        mean = self.mean + weight * shift
        finite = variance.isfinite() & mean.float().isfinite()
        self.variance.copy_(torch.where(finite, variance, self.variance))
        self.mean.copy_(torch.where(finite, mean, self.mean))


def _over_ranks(*sums: Tensor) -> tuple[Tensor, ...]:
    """Sums over all processes, where several learn together (`yamame.distributed`)."""
    if distributed.is_available() and distributed.is_initialized():
        for value in sums:
            distributed.all_reduce(value)
    return sums


class RunningNormalizer(RunningMoments):
    """Normalises each feature by running statistics: ``clip((x - mean) / std)``.

    The statistics move in training mode only, once per forward pass. The first batch counts in
    full; before it they are zero mean and unit variance. A feature whose standard deviation is
    below ``min_std`` is shifted and not scaled. Outputs at padding are meaningless.

    Args:
        num_features: F, size of the last dimension.
        decay: Weight of a new batch once many have been seen, in (0, 1].
        min_std: Smallest standard deviation that is divided by.
        clip: Largest magnitude of an output, in standard deviations.

    Raises:
        ValueError: If an argument is out of range, or an input does not end in ``num_features``.

    >>> normalizer = RunningNormalizer(1)
    >>> normalizer(torch.tensor([[1.0], [3.0]])).flatten().tolist()
    [-1.0, 1.0]
    """

    def __init__(
        self, num_features: int, *, decay: float = 1e-4, min_std: float = 1e-2, clip: float = 10.0
    ) -> None:
        super().__init__(num_features, decay=decay)
        require("RunningNormalizer", "min_std", min_std, min_std > 0.0, "be positive")
        require("RunningNormalizer", "clip", clip, clip > 0.0, "be positive")
        self.min_std = min_std
        self.clip = clip

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Updates the statistics (training mode) and normalises.

        Args:
            x: ``[*, F]``, cast to float32.
            mask: ``[*]`` bool, which timesteps are real; all of them without it.

        Returns:
            ``[*, F]`` float32.
        """
        if x.shape[-1:] != (self.num_features,):
            raise ValueError(
                f"RunningNormalizer: input must end in num_features={self.num_features}, got shape "
                f"{tuple(x.shape)}"
            )
        if self.training:
            self.update(x, mask)
        std = self.variance.sqrt().float()
        scale = torch.where(std >= self.min_std, std, 1.0)
        return ((x.float() - self.mean.float()) / scale).clamp(-self.clip, self.clip)
