"""Sigma-reparametrised linear layers: the spectral norm of the weight is a learnt scalar.

``[*, in_features] -> [*, out_features]``: ``y = (gamma / sigma(W)) W x + b`` with
``sigma(W) = u . W v``, where ``u`` and ``v`` follow the top singular vectors of ``W`` by one
power-iteration step per training forward. They are float32 buffers without gradient; the gradient
flows through ``W`` inside ``sigma``.

A network with many such layers updates all of them at once: see `iterate_together`.

Source: Stabilizing Transformer Training by Preventing Attention Entropy Collapse, arXiv 2303.06296.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yamame.checks import PositiveInt, check_bounds
from yamame.execution.capturing import capturing

_INIT_STD = 0.02


class SigmaReparamLinear(nn.Module):
    """A linear layer whose weight has spectral norm ``gamma`` (arXiv 2303.06296).

    Under ``.eval()`` a forward pass changes nothing.

    Args:
        in_features: Size of the last input dimension.
        out_features: Size of the last output dimension.
        bias: Whether to add a learnt bias, which starts at zero.

    Attributes:
        iterates: Whether a training forward makes a power-iteration step. If False, the network
            calls `power_iteration`.
        is_average: Whether the weight is an average over training, which ``u`` and ``v`` do not
            follow. In eval mode its singular vectors are then computed from the weight: once in
            `prepare_to_act`, otherwise in every forward, which is slow.
        is_stale: Whether the weight has changed since `prepare_to_act`; forwards then use the
            weight itself.

    Raises:
        ArgumentError: A size is not positive.

    >>> layer = SigmaReparamLinear(3, 2)
    >>> torch.linalg.matrix_norm(layer.effective_weight(), ord=2).isclose(layer.gamma)
    tensor(True)
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"weight": "hidden"}

    u: Tensor
    v: Tensor
    prepared: Tensor | None
    """Effective weight for acting. Recorded steps read it at its address, so once allocated it is
    only written in place.
    """

    @check_bounds
    def __init__(
        self, in_features: PositiveInt, out_features: PositiveInt, *, bias: bool = True
    ) -> None:
        super().__init__()
        weight = torch.empty(out_features, in_features)
        nn.init.trunc_normal_(weight, std=_INIT_STD)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.gamma = nn.Parameter(torch.ones(()))
        self.register_buffer("u", torch.zeros(out_features))
        self.register_buffer("v", torch.zeros(in_features))
        self.find_vectors()
        self.register_buffer("prepared", None, persistent=False)
        self.iterates = True
        self.is_average = False
        self.is_stale = False
        self.register_load_state_dict_post_hook(_prepare_again)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: ``[*, in_features] -> [*, out_features]``."""
        is_acting = not self.training and not torch.is_grad_enabled()
        if is_acting and self.prepared is not None and not self.is_stale:
            weight = self.prepared
        else:
            weight = self.effective_weight()
        return F.linear(x, weight, self.bias)

    @torch.no_grad()
    def find_vectors(self) -> None:
        """Set ``u`` and ``v`` to the top singular vectors of the weight, by a full SVD (slow)."""
        u, v = self._top_vectors()
        self.u.copy_(u)
        self.v.copy_(v)

    @torch.no_grad()
    def _top_vectors(self) -> tuple[Tensor, Tensor]:
        weight = self.weight.float()
        left, _, right = torch.linalg.svd(weight, full_matrices=False)
        return left[:, 0], right[0]

    @torch.no_grad()
    def prepare_to_act(self) -> None:
        """Compute the effective weight once, for forwards in eval mode without gradient.

        Call it again after every in-place change of the weight. Loading weights and `eval` call it
        themselves.
        """
        if self.training:
            return
        # Normal tensors even under inference mode.
        with torch.inference_mode(False):
            if self.is_average:
                self.find_vectors()
            if self.prepared is None:
                self.prepared = torch.empty_like(self.weight)
            weight = self._scaled(self.u, self.v)
            self.prepared.copy_(weight)
        self.is_stale = False

    def effective_weight(self) -> Tensor:
        """Return the weight that multiplies the input, ``[out_features, in_features]``.

        In training mode this makes one power-iteration step if ``iterates``.
        """
        if self.training and self.iterates:
            power_iteration([self])
        # An SVD cannot be captured. Captured steps use the prepared weight, compiled ones u and v.
        if self.is_average and not self.training and not capturing():
            return self._scaled(*self._top_vectors())
        if not torch.is_grad_enabled():
            return self._scaled(self.u, self.v)
        # Copies for autograd: a further training forward changes the buffers before the backward.
        u = self.u.clone()
        v = self.v.clone()
        return self._scaled(u, v)

    def _scaled(self, u: Tensor, v: Tensor) -> Tensor:
        """Scale the weight to spectral norm ``gamma``, given its top singular vectors."""
        with torch.autocast(self.weight.device.type, enabled=False):
            weight = self.weight.float()
            sigma = torch.dot(u, torch.mv(weight, v))
            scale = self.gamma.float() / sigma
            return self.weight * scale.to(self.weight.dtype)

    def train(self, mode: bool = True) -> "SigmaReparamLinear":
        """Set training or eval mode."""
        super().train(mode)
        _prepare_again(self)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SigmaReparamLinear":
        super()._apply(fn, recurse)
        # Stay float32 when the module is cast: power iteration needs the precision.
        self.u = self.u.float()
        self.v = self.v.float()
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Copies prepare their own weight.
        buffers = {**self._buffers, "prepared": None}
        return {**self.__dict__, "_buffers": buffers}


def _prepare_again(layer: SigmaReparamLinear, *_: Any) -> None:
    if layer.prepared is not None:
        layer.prepare_to_act()


def sigma_layers(network: nn.Module) -> list[SigmaReparamLinear]:
    """Return the sigma-reparametrised layers of a network."""
    return [module for module in network.modules() if isinstance(module, SigmaReparamLinear)]


def iterate_together(network: nn.Module) -> list[SigmaReparamLinear]:
    """Leave the power iteration of all layers of a network to `power_iteration`.

    Returns:
        The sigma-reparametrised layers of the network.
    """
    layers = sigma_layers(network)
    for layer in layers:
        layer.iterates = False
    return layers


@torch.no_grad()
def power_iteration(layers: Iterable[SigmaReparamLinear]) -> None:
    """Move ``u`` and ``v`` of layers by one power-iteration step (arXiv 2303.06296)."""
    by_shape: dict[torch.Size, list[SigmaReparamLinear]] = {}
    for layer in layers:
        by_shape.setdefault(layer.weight.shape, []).append(layer)

    # One batched product for all layers of a shape instead of two small ones per layer.
    for group in by_shape.values():
        device = group[0].weight.device.type
        with torch.autocast(device, enabled=False):
            weight = torch.stack([layer.weight for layer in group])  # [G, out, in]
            weight = weight.float()
            v = torch.stack([layer.v for layer in group])  # [G, in]
            v = v.unsqueeze(-1)
            u = F.normalize(weight @ v, dim=1)  # [G, out, 1]
            v = F.normalize(weight.mT @ u, dim=1)  # [G, in, 1]
        for index, layer in enumerate(group):
            layer.u.copy_(u[index, :, 0])
            layer.v.copy_(v[index, :, 0])


@torch.no_grad()
def copy_statistics(source: nn.Module, average: nn.Module) -> None:
    """Copy the buffers of a network into one whose parameters are an average of it over time.

    Buffers of sigma-reparametrised layers are not copied: an averaged matrix has other singular
    vectors.
    """
    excluded: set[int] = set()
    for layer in sigma_layers(average):
        excluded.update(id(buffer) for buffer in layer.buffers())
    present = dict(source.named_buffers())
    for name, buffer in average.named_buffers():
        if id(buffer) not in excluded:
            buffer.copy_(present[name])
