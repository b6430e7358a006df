"""Linear layers of an acting policy whose weights are cast once, instead of in every step.

Under autocast a linear layer casts its weights in every call. A policy that acts has the same
weights for many steps, and a cast is a kernel of its own in each of them.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yamame.trajectory.sigma import SigmaReparamLinear


class _CastOnce(nn.Module):
    """Part of a layer that keeps cast copies of its weight and bias.

    They are buffers that are written in place, because recorded steps read them at their address.
    """

    weight: Any
    bias: Any
    cast_weight: Tensor
    cast_bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: ``[*, in_features] -> [*, out_features]``."""
        device = x.device.type
        # Heads switch autocast off around their layers.
        if torch.is_grad_enabled() or not torch.is_autocast_enabled(device):
            return super().forward(x)
        if torch.get_autocast_dtype(device) != self.cast_weight.dtype:
            return super().forward(x)
        return F.linear(x, self.cast_weight, self.cast_bias)

    def cast(self) -> None:
        """Cast the present weight and bias."""
        weight = self.weight
        if isinstance(self, SigmaReparamLinear):
            weight = self.effective_weight() if self.prepared is None else self.prepared
        self.cast_weight.copy_(weight)
        if self.bias is not None and self.cast_bias is not None:
            self.cast_bias.copy_(self.bias)


class _CastLinear(_CastOnce, nn.Linear):
    pass


class _CastSigmaLinear(_CastOnce, SigmaReparamLinear):
    pass


_CLASSES: dict[type[nn.Module], type[_CastOnce]] = {
    nn.Linear: _CastLinear,
    SigmaReparamLinear: _CastSigmaLinear,
}


class CastWeights:
    """Casts the weights of all linear layers of a policy that acts under autocast.

    The policy keeps its parameters. Its linear layers, but not those of a derived class, get copies
    in another dtype and use them within autocast to that dtype.

    Args:
        policy: Policy in evaluation mode, which belongs to the collector alone.
        dtype: Dtype of autocast.
    """

    def __init__(self, policy: nn.Module, dtype: torch.dtype) -> None:
        self._layers: list[_CastOnce] = []
        for module in policy.modules():
            kind = _CLASSES.get(type(module))
            if kind is None:
                continue
            layer: Any = module
            layer.__class__ = kind
            bias = None if layer.bias is None else torch.empty_like(layer.bias, dtype=dtype)
            weight = torch.empty_like(layer.weight, dtype=dtype)
            layer.register_buffer("cast_weight", weight.detach(), persistent=False)
            layer.register_buffer("cast_bias", bias, persistent=False)
            self._layers.append(layer)

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast again; call this when weights have changed, and after ``prepare_to_act``."""
        for layer in self._layers:
            layer.cast()
