"""Sigma-reparametrised linear layers: the weight's spectral norm is a learnt scalar.

``[*, in_features] -> [*, out_features]``: ``y = (gamma / sigma(W)) W x + b`` with ``sigma(W) = u . W v``, where ``u``
and ``v`` follow the top singular vectors of ``W`` by one power-iteration step per training forward. They are float32
buffers without gradient; the gradient flows through ``W`` inside ``sigma``.

Source: Stabilizing Transformer Training by Preventing Attention Entropy Collapse, arXiv 2303.06296.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yamame.checks import require_at_least

_INIT_STD = 0.02
_frozen = False


class SigmaReparamLinear(nn.Module):
    """A linear layer whose weight has spectral norm ``gamma`` (arXiv 2303.06296).

    Under ``.eval()`` a forward changes nothing.

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

    parameter_roles: ClassVar[Mapping[str, str]] = {"weight": "hidden"}

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        require_at_least("SigmaReparamLinear", 1, in_features=in_features, out_features=out_features)
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
        self._prepared: Tensor | None = None
        self.register_load_state_dict_post_hook(_forget_prepared)

    def forward(self, x: Tensor) -> Tensor:
        """``[*, in_features] -> [*, out_features]``."""
        if self._prepared is not None and not (self.training or torch.is_grad_enabled()):
            return F.linear(x, self._prepared, self.bias)
        return F.linear(x, self.effective_weight(), self.bias)

    def prepare_to_act(self) -> None:
        """Computes the effective weight once, for forwards in eval mode without gradient.

        To be called again whenever the weight has changed.
        """
        with torch.no_grad():
            self._prepared = None if self.training else self.effective_weight()

    def effective_weight(self) -> Tensor:
        """The weight that multiplies the input, ``[out_features, in_features]``; in training, one power iteration."""
        with torch.autocast(self.weight.device.type, enabled=False):
            weight = self.weight.float()
            if self.training and not _frozen:
                with torch.no_grad():
                    u = F.normalize(torch.mv(weight, self.v), dim=0)
                    self.u.copy_(u)
                    self.v.copy_(F.normalize(torch.mv(weight.t(), u), dim=0))
            # The graph must not hold the buffers: a training forward before its backward would change them.
            u, v = (self.u.clone(), self.v.clone()) if torch.is_grad_enabled() else (self.u, self.v)
            scale = self.gamma.float() / torch.dot(u, torch.mv(weight, v))
            return self.weight * scale.to(self.weight.dtype)

    def train(self, mode: bool = True) -> "SigmaReparamLinear":
        """Sets the mode, and forgets what `prepare_to_act` computed."""
        self._prepared = None
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SigmaReparamLinear":
        super()._apply(fn, recurse)
        self.u, self.v, self._prepared = self.u.float(), self.v.float(), None
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": None}


def _forget_prepared(layer: SigmaReparamLinear, incompatible: object) -> None:
    layer._prepared = None


@contextmanager
def frozen_power_iteration() -> Iterator[None]:
    """Inside, training forwards leave ``u`` and ``v`` alone: for forwards that are computed again."""
    global _frozen
    before, _frozen = _frozen, True
    try:
        yield
    finally:
        _frozen = before
