"""Sigma-reparametrised linear layers: the weight's spectral norm is a learnt scalar.

``[*, in_features] -> [*, out_features]``: ``y = (gamma / sigma(W)) W x + b`` with ``sigma(W) = u . W v``,
where ``u`` and ``v`` follow the top singular vectors of ``W`` by one power-iteration step per training
forward. They are float32 buffers without gradient; the gradient flows through ``W`` inside ``sigma``.

Source: Stabilizing Transformer Training by Preventing Attention Entropy Collapse, arXiv 2303.06296.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_INIT_STD = 0.02


class SigmaReparamLinear(nn.Module):
    """A linear layer whose weight has spectral norm ``gamma`` (arXiv 2303.06296).

    Under ``.eval()`` a forward changes nothing. ``sigma`` is computed anew from the weight in every forward,
    so weights may change in any way at any time; see `folded_weights` for acting with weights that do not.

    Args:
        in_features: Size of the last input dimension.
        out_features: Size of the last output dimension.
        bias: Whether to add a learnt bias, which starts at zero.

    Raises:
        ValueError: If a size is not positive.

    >>> layer = SigmaReparamLinear(3, 2)
    >>> torch.linalg.matrix_norm(layer.effective_weight(), ord=2).isclose(layer.gamma)
    tensor(True)
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        for label, size in (("in_features", in_features), ("out_features", out_features)):
            if size < 1:
                raise ValueError(f"SigmaReparamLinear: {label} must be at least 1, got {size}")
        self.weight = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(out_features, in_features), std=_INIT_STD)
        )
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.gamma = nn.Parameter(torch.ones(()))
        left, _, right = torch.linalg.svd(self.weight.detach().float(), full_matrices=False)
        self.u: Tensor
        self.v: Tensor
        self.register_buffer("u", left[:, 0].clone())
        self.register_buffer("v", right[0].clone())
        self._folded: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """``[*, in_features] -> [*, out_features]``."""
        return self.fixed(x.shape[:-1].numel())(x)

    def fixed(self, num_rows: int) -> Callable[[Tensor], Tensor]:
        """The map as it stands now, for inputs of ``num_rows`` rows in all, however many parts they come in.

        In training mode this, and no call of what it returns, is one step of the power iteration.
        """
        if self._folded is not None and not (self.training or torch.is_grad_enabled()):
            return partial(F.linear, weight=self._folded, bias=self.bias)
        scale = self.gamma.float() / self.sigma()
        if num_rows < self.weight.shape[0]:
            return lambda x: F.linear(x * scale.to(x.dtype), self.weight, self.bias)
        return partial(F.linear, weight=self.weight * scale.to(self.weight.dtype), bias=self.bias)

    def sigma(self) -> Tensor:
        """The weight's spectral norm as estimated by ``u`` and ``v``, which it advances in training mode."""
        device = self.weight.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self._sigma()
        return self._sigma()

    def effective_weight(self) -> Tensor:
        """The weight that multiplies the input: ``[out_features, in_features]``."""
        return self.weight * (self.gamma.float() / self.sigma()).to(self.weight.dtype)

    def _sigma(self) -> Tensor:
        weight = self.weight.float()
        if self.training:
            with torch.no_grad():
                u = F.normalize(torch.mv(weight, self.v), dim=0)
                v = F.normalize(torch.mv(weight.t(), u), dim=0)
                self.u.copy_(u)
                self.v.copy_(v)
        elif torch.is_grad_enabled():
            # The graph must not hold the buffers: a training forward before its backward would change them.
            u, v = self.u.clone(), self.v.clone()
        else:
            u, v = self.u, self.v
        return torch.dot(u, torch.mv(weight, v))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SigmaReparamLinear":
        super()._apply(fn, recurse)
        self.u, self.v = self.u.float(), self.v.float()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_folded": None}

    def extra_repr(self) -> str:
        """Sizes, as ``torch.nn.Linear`` prints them."""
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, bias={self.bias is not None}"


@contextmanager
def folded_weights(module: nn.Module) -> Iterator[None]:
    """Computes every effective weight in ``module`` once, for forwards in eval mode and without gradient.

    A promise of the caller: weights do not change inside. What they become outside is seen at the next entry.
    Good for acting with few rows between two weight updates.

    >>> layer = SigmaReparamLinear(3, 2).eval()
    >>> with torch.no_grad(), folded_weights(layer):
    ...     y = layer(torch.ones(1, 3))
    >>> y.allclose(layer(torch.ones(1, 3)))
    True
    """
    layers = [part for part in module.modules() if isinstance(part, SigmaReparamLinear)]
    try:
        with torch.no_grad():
            for layer in layers:
                if not layer.training:
                    layer._folded = layer.effective_weight()
        yield
    finally:
        for layer in layers:
            layer._folded = None
