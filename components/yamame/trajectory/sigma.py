"""Sigma-reparametrised linear layers: the weight's spectral norm is a learnt scalar.

``[*, in_features] -> [*, out_features]``: ``y = (gamma / sigma(W)) W x + b`` with
``sigma(W) = u . W v``, where ``u`` and ``v`` follow the top singular vectors of ``W`` by one
power-iteration step per training forward. They are float32 buffers without gradient; the gradient
flows through ``W`` inside ``sigma``.

A network with many such layers iterates on all of them at once: see `iterate_together`.

Source: Stabilizing Transformer Training by Preventing Attention Entropy Collapse, arXiv 2303.06296.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from yamame.checks import require_at_least
from yamame.execution.capturing import capturing

_INIT_STD = 0.02


class SigmaReparamLinear(nn.Module):
    """A linear layer whose weight has spectral norm ``gamma`` (arXiv 2303.06296).

    Under ``.eval()`` a forward changes nothing.

    Args:
        in_features: Size of the last input dimension.
        out_features: Size of the last output dimension.
        bias: Whether to add a learnt bias, which starts at zero.

    Attributes:
        iterates: Whether a training forward makes a power-iteration step. False: the network calls
            `power_iteration`.
        is_average: Whether the weight is an average over training, which ``u`` and ``v`` do not
            follow. In eval mode the singular vectors are then computed from the weight: once in
            `prepare_to_act`, otherwise in every forward, which is slow.
        is_stale: Whether the weight has changed since `prepare_to_act`: forwards then use the
            weight itself.

    Raises:
        ValueError: If a size is not positive.

    >>> layer = SigmaReparamLinear(3, 2)
    >>> torch.linalg.matrix_norm(layer.effective_weight(), ord=2).isclose(layer.gamma)
    tensor(True)
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"weight": "hidden"}

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        require_at_least(
            "SigmaReparamLinear", 1, in_features=in_features, out_features=out_features
        )
        self.weight = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(out_features, in_features), std=_INIT_STD)
        )
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.gamma = nn.Parameter(torch.ones(()))
        self.u: Tensor
        self.v: Tensor
        self.register_buffer("u", torch.zeros(out_features))
        self.register_buffer("v", torch.zeros(in_features))
        self.find_vectors()
        # The effective weight of acting. A recorded step reads its memory, so once made it is only
        # written in place.
        self.prepared: Tensor | None
        self.register_buffer("prepared", None, persistent=False)
        self.iterates, self.is_average, self.is_stale = True, False, False
        self.register_load_state_dict_post_hook(_prepare_again)

    def forward(self, x: Tensor) -> Tensor:
        """``[*, in_features] -> [*, out_features]``."""
        prepared = None if self.is_stale else self.prepared
        if prepared is not None and not (self.training or torch.is_grad_enabled()):
            return F.linear(x, prepared, self.bias)
        return F.linear(x, self.effective_weight(), self.bias)

    @torch.no_grad()
    def find_vectors(self) -> None:
        """Sets ``u`` and ``v`` to the top singular vectors of the weight, by a full decomposition
        (slow).
        """
        u, v = self._top_vectors()
        self.u.copy_(u)
        self.v.copy_(v)

    @torch.no_grad()
    def _top_vectors(self) -> tuple[Tensor, Tensor]:
        left, _, right = torch.linalg.svd(self.weight.float(), full_matrices=False)
        return left[:, 0], right[0]

    @torch.no_grad()
    def prepare_to_act(self) -> None:
        """Computes the effective weight once, for forwards in eval mode without gradient.

        To be called again whenever the weight was changed in place. Loading weights and `eval` see
        to it themselves.
        """
        if self.training:
            return
        with torch.inference_mode(False):
            if self.is_average:
                self.find_vectors()
            if self.prepared is None:
                self.prepared = torch.empty_like(self.weight)
            self.prepared.copy_(self._scaled(self.u, self.v))
        self.is_stale = False

    def effective_weight(self) -> Tensor:
        """The weight that multiplies the input, ``[out_features, in_features]``; in training, one
        power iteration.
        """
        if self.training and self.iterates:
            power_iteration([self])
        # A decomposition cannot be captured. Captured steps read the prepared weight, and compiled
        # ones the buffers.
        if self.is_average and not self.training and not capturing():
            return self._scaled(*self._top_vectors())
        # The graph must not hold the buffers: a training forward before its backward would change
        # them.
        u, v = (self.u.clone(), self.v.clone()) if torch.is_grad_enabled() else (self.u, self.v)
        return self._scaled(u, v)

    def _scaled(self, u: Tensor, v: Tensor) -> Tensor:
        """The weight with the spectral norm ``gamma``, given its top singular vectors."""
        with torch.autocast(self.weight.device.type, enabled=False):
            scale = self.gamma.float() / torch.dot(u, torch.mv(self.weight.float(), v))
            return self.weight * scale.to(self.weight.dtype)

    def train(self, mode: bool = True) -> "SigmaReparamLinear":
        """Sets the mode."""
        super().train(mode)
        _prepare_again(self)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SigmaReparamLinear":
        super()._apply(fn, recurse)
        self.u, self.v = self.u.float(), self.v.float()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_buffers": {**self._buffers, "prepared": None},
        }  # copies prepare their own


def _prepare_again(layer: SigmaReparamLinear, *_: Any) -> None:
    if layer.prepared is not None:
        layer.prepare_to_act()


def sigma_layers(network: nn.Module) -> list[SigmaReparamLinear]:
    """The sigma-reparametrised layers in a network."""
    return [module for module in network.modules() if isinstance(module, SigmaReparamLinear)]


def iterate_together(network: nn.Module) -> list[SigmaReparamLinear]:
    """Leaves the power iteration of all layers in a network to `power_iteration`; returns the
    layers.
    """
    layers = sigma_layers(network)
    for layer in layers:
        layer.iterates = False
    return layers


@torch.no_grad()
def power_iteration(layers: Iterable[SigmaReparamLinear]) -> None:
    """Moves ``u`` and ``v`` of layers by one power-iteration step, those of layers of one shape
    together.
    """
    by_shape: dict[torch.Size, list[SigmaReparamLinear]] = {}
    for layer in layers:
        by_shape.setdefault(layer.weight.shape, []).append(layer)
    for group in by_shape.values():
        with torch.autocast(group[0].weight.device.type, enabled=False):
            weight = torch.stack([layer.weight for layer in group]).float()
            v = torch.stack([layer.v for layer in group]).unsqueeze(-1)
            u = F.normalize(weight @ v, dim=1)
            v = F.normalize(weight.mT @ u, dim=1)
        for layer, new_u, new_v in zip(group, u.squeeze(-1), v.squeeze(-1), strict=True):
            layer.u.copy_(new_u)
            layer.v.copy_(new_v)


@torch.no_grad()
def copy_statistics(source: nn.Module, average: nn.Module) -> None:
    """Copies the buffers of a network into one whose parameters are an average of its own over
    time.

    All but those of sigma-reparametrised layers: the singular vectors of an averaged matrix are
    others.
    """
    own = {id(buffer) for layer in sigma_layers(average) for buffer in layer.buffers()}
    present = dict(source.named_buffers())
    for name, buffer in average.named_buffers():
        if id(buffer) not in own:
            buffer.copy_(present[name])
