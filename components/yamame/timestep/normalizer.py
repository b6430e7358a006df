"""Running input normaliser: raw features ``[*, F]`` in, features of about zero mean and unit variance out.

Mean and variance are bias-corrected exponential moving averages held in buffers (checkpointed, sent to actors
with the weights). They move in training mode only, once per forward, from raw values, and only from finite timesteps
that ``mask`` marks as real. Outputs at padding are meaningless.
"""

import torch
from torch import Tensor, nn


class RunningNormalizer(nn.Module):
    """Normalises each feature by running statistics: ``clip((x - mean) / std)``.

    After n updates the statistics are the averages of the batch moments with weights ``(1 - decay)^(n - i)``,
    so the first batch counts in full (no bias towards an initial value) and early training behaves like a
    plain average. The variance is accumulated around the mean, which is equal to the average of squares minus
    the squared mean but keeps its precision when the mean is large. A feature whose standard deviation is
    below ``min_std`` is shifted and not scaled. Before the first update the statistics are zero mean and unit
    variance.

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

    mean: Tensor
    variance: Tensor
    num_updates: Tensor

    def __init__(
        self, num_features: int, *, decay: float = 1e-4, min_std: float = 1e-2, clip: float = 10.0
    ) -> None:
        super().__init__()
        if num_features < 1:
            raise ValueError(f"RunningNormalizer: num_features must be positive, got {num_features}")
        if not 0.0 < decay <= 1.0:
            raise ValueError(f"RunningNormalizer: decay must be in (0, 1], got {decay}")
        if min_std <= 0.0:
            raise ValueError(f"RunningNormalizer: min_std must be positive, got {min_std}")
        if clip <= 0.0:
            raise ValueError(f"RunningNormalizer: clip must be positive, got {clip}")
        self.num_features = num_features
        self.decay = decay
        self.min_std = min_std
        self.clip = clip
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("variance", torch.ones(num_features))
        self.register_buffer("num_updates", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Updates the statistics (training mode) and normalises.

        Args:
            x: ``[*, F]``, cast to float32.
            mask: ``[*]`` bool, which rows are real; all of them without it.

        Returns:
            ``[*, F]`` float32.
        """
        if x.shape[-1:] != (self.num_features,):
            raise ValueError(
                f"RunningNormalizer: input must end in num_features={self.num_features}, got shape "
                f"{tuple(x.shape)}"
            )
        x = x.to(torch.float32)
        if self.training:
            self._update(x.detach(), mask)
        std = self.variance.sqrt()
        scale = torch.where(std >= self.min_std, std, 1.0)
        return ((x - self.mean) / scale).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def _update(self, x: Tensor, mask: Tensor | None) -> None:
        x = x.reshape(-1, self.num_features)
        if mask is None:
            mask = x.new_ones(x.shape[0], dtype=torch.bool)
        valid = mask.reshape(-1, 1) & x.isfinite().all(-1, keepdim=True)
        total = valid.sum()
        count = total.clamp(min=1)
        batch_mean = torch.where(valid, x, 0.0).sum(0) / count
        deviation = torch.where(valid, x - batch_mean, 0.0)
        batch_variance = deviation.square().sum(0) / count

        any_valid = total > 0  # a batch of nothing but padding must leave everything as it is
        self.num_updates.add_(any_valid)
        seen = self.num_updates.clamp(min=1).to(torch.float64)
        weight = (self.decay / (1.0 - (1.0 - self.decay) ** seen) * any_valid).to(torch.float32)
        shift = batch_mean - self.mean
        spread = (1.0 - weight) * weight * shift.square()
        self.variance.copy_((1.0 - weight) * self.variance + weight * batch_variance + spread)
        self.mean.add_(weight * shift)
