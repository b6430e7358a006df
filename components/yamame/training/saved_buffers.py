"""Copies of the buffers of a module at a fixed place in memory."""

import torch
from torch import Tensor, nn


class SavedBuffers:
    """Copies of all buffers of a module, such as running statistics, to undo changes of them.

    Copies are overwritten in place, so that a recorded update contains `save`: one kernel per dtype
    instead of a launch per buffer. Which buffers there are is saved, too: a forward may register or
    replace some.

    Args:
        module: Module whose buffers are saved.

    >>> module = nn.BatchNorm1d(2)
    >>> saved = SavedBuffers(module)
    >>> saved.save()
    >>> _ = module.running_mean.fill_(3.0)
    >>> module.register_buffer("center", torch.ones(2))
    >>> saved.restore()
    >>> module.running_mean
    tensor([0., 0.])
    >>> hasattr(module, "center")
    False
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._copies: list[Tensor] = []
        self._buffers: list[Tensor] = []
        self._registered: list[tuple[nn.Module, dict[str, Tensor | None]]] = []

    @property
    def tensors(self) -> list[Tensor]:
        """The copies; empty before the first `save`."""
        return self._copies

    @torch.no_grad()
    def save(self) -> None:
        """Copy the present buffers."""
        self._buffers = list(self._module.buffers())
        self._registered = [(part, dict(part._buffers)) for part in self._module.modules()]
        if _forms(self._buffers) != _forms(self._copies):
            self._copies = [torch.empty_like(buffer) for buffer in self._buffers]
        _copy(self._copies, self._buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """Copy the saved values back, and remove buffers that were registered after `save`."""
        for part, former in self._registered:
            for name in [*part._buffers]:
                if name not in former:
                    delattr(part, name)
            # Also what was replaced: the former tensors get their values back below.
            part._buffers.update(former)
        _copy(self._buffers, self._copies)


def _forms(tensors: list[Tensor]) -> list[tuple[torch.Size, torch.dtype, torch.device]]:
    return [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors]


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors to others of the same forms."""
    pairs: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        like = pairs.setdefault((target.dtype, target.device), ([], []))
        like[0].append(target)
        like[1].append(source)
    # One kernel takes tensors of one dtype alone.
    for like_targets, like_sources in pairs.values():
        torch._foreach_copy_(like_targets, like_sources)
