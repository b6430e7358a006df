"""The Transformer's step for acting: the same network on weights that were prepared once.

Between two changes of the weights every step multiplies by the same matrices, so what does not depend on the
input is done beforehand: sigma is divided out, and the factor of the attention scores and the learnt factors of
the heads are multiplied into the projections before and after attention. Dropout is left out. In a lower precision
the matrices, their products and what they are multiplied with are rounded; sums over layers stay in float32.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from yamame.product import Product
from yamame.trajectory.attention import SelfAttention
from yamame.trajectory.attention_kernel import AttentionKernel, attention_kernel
from yamame.trajectory.cache import CacheStep, CompiledStep
from yamame.trajectory.positions import rotate
from yamame.trajectory.sigma import SigmaReparamLinear

Normalize = Callable[[Tensor], Tensor]
_ROWS = 256


class PreparedLayer(NamedTuple):
    """What one layer does, in turn."""

    num_heads: int
    norm1: Normalize
    qkv: Product
    out: Product
    norm2: Normalize
    norm3: Normalize
    up: Product
    activation: Callable[[Tensor], Tensor]
    norm4: Normalize
    down: Product

    def __call__(
        self, x: Tensor, step: CacheStep | CompiledStep, index: int, first: int, rotation: Tensor | None
    ) -> None:
        """The layer called ``index`` of the cache, ``[n, D]`` in place, of rows from ``first`` on."""
        dtype = self.qkv.dtype
        parts = self.qkv(self.norm1(x).to(dtype)).unflatten(-1, (3, self.num_heads, -1))
        q, kv = parts[:, 0], parts[:, 1:].transpose(0, 1)
        if rotation is not None:
            q, kv = rotate(q, rotation), torch.stack((rotate(kv[0], rotation), kv[1]))
        found = step.attend(index, q, kv, first).flatten(1)
        x += self.norm2(self.out(found))
        hidden = self.activation(self.up(self.norm3(x).to(dtype)))
        x += self.down(self.norm4(hidden))


class PreparedLayers:
    """All layers, for steps of any number of rows.

    Args:
        layers: The `TransformerLayer` modules. Their weights are copied or referred to, never changed.
        dtype: Of the products and of the cache; None for that of the weights.
        compiled: Whether the cache is read, and few rows are multiplied, by compiled functions.

    Attributes:
        kernel: What reads the cache, if compiled.

    Raises:
        ValueError: If there is to be a kernel and cannot be one.
    """

    def __init__(
        self, layers: Iterable[Any], dtype: torch.dtype | None = None, *, compiled: bool = False
    ) -> None:
        with torch.no_grad():
            self.layers = [_prepared(layer, dtype, compiled=compiled) for layer in layers]
        first = self.layers[0]
        self.dtype = first.qkv.dtype
        self.kernel: AttentionKernel | None = None
        if compiled:
            if first.out.device.type != "cpu":
                raise ValueError(
                    f"compile_policy must be false on other devices than a CPU, got {first.out.device}"
                )
            self.kernel = attention_kernel(
                first.num_heads, first.out.in_features // first.num_heads, self.dtype
            )

    def __call__(self, x: Tensor, step: CacheStep | CompiledStep, rotation: Tensor | None) -> Tensor:
        """``[N, D] -> [N, D]``, in place; ``rotation`` ``[N, 1, d]`` turns queries and keys where given."""
        # What lies between two operations stays in the processor's cache if rows are few.
        size = max(1, _ROWS // step.part_size) * step.part_size if x.is_cpu else len(x)
        for first in range(0, len(x), size):
            rows = slice(first, first + size)
            for index, layer in enumerate(self.layers):
                layer(x[rows], step, index, first, None if rotation is None else rotation[rows])
        return x


def _prepared(layer: Any, dtype: torch.dtype | None, *, compiled: bool) -> PreparedLayer:
    attention: SelfAttention = layer.attention
    qkv, out = _weight(attention.qkv).clone(), _weight(attention.out)
    width = out.shape[0]
    head_size = width // attention.num_heads
    qkv[:, :width] *= head_size**-0.5
    if attention.head_scale is not None:
        out = out * attention.head_scale.view(-1, 1).expand(-1, head_size).reshape(-1, 1)
    dtype = qkv.dtype if dtype is None else dtype
    product = functools.partial(Product, dtype=dtype, compiled=compiled)
    return PreparedLayer(
        num_heads=attention.num_heads,
        norm1=_normalize(layer.norm1),
        qkv=product(qkv, None),
        out=product(out, layer.attention.out.bias),
        norm2=_normalize(layer.norm2, dtype),
        norm3=_normalize(layer.norm3),
        up=product(_weight(layer.ff1), layer.ff1.bias),
        activation=layer.activation,
        norm4=_normalize(layer.norm4, dtype),
        down=product(_weight(layer.ff2), layer.ff2.bias),
    )


def _weight(linear: Any) -> Tensor:
    """The matrix ``[in, out]`` that multiplies the input of a linear layer."""
    weight: Tensor = linear.effective_weight() if isinstance(linear, SigmaReparamLinear) else linear.weight
    return weight.detach().t()


def _normalize(norm: Any, dtype: torch.dtype | None = None) -> Normalize:
    """A LayerNorm, of inputs of ``dtype`` if not of the weights', without the cost of calling a module."""
    if not isinstance(norm, nn.LayerNorm):
        return cast(Normalize, norm)
    shape, eps = norm.normalized_shape, norm.eps
    weight, bias = (part if dtype is None else part.to(dtype) for part in (norm.weight, norm.bias))
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
