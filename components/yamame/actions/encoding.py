"""Encoding of an environment's actions for networks: a float32 vector ``[*, A]``.

===============================  ===============================================
spec                             encoding
===============================  ===============================================
`Categorical`                    one-hot
`MultiCategorical`               concatenated one-hots of the choices
`OneHot`, `MultiOneHot`          unchanged
`Binary`                         unchanged
`Bounded`, real numbers          in [-1, 1], by an affine map of the bounds
===============================  ===============================================

`ActionEncoding.decode` returns the dtype and shape of the environment, so decoding an encoded
action is the identity.
"""

from typing import Literal

import torch
from torch import Tensor
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
)

from yamame.checks import ArgumentError, require
from yamame.execution.capturing import Constant


class ActionEncoding:
    """Encoding of the actions of a spec: an object that pickles and has no device.

    Args:
        spec: Leaf spec: `Categorical`, `OneHot`, `MultiCategorical`, `MultiOneHot`, `Binary` or a
            continuous `Bounded`. After the batch, `Categorical` has no dimension and the others
            have one.
        batch_dims: Number of leading dimensions of the spec that belong to the batch.

    Attributes:
        encoded_size: Size A of an encoded action.
        kind: Kind of the environment's actions: one index, several indices, one or several
            one-hots, bits, or a box.
        nvec: Number of actions of every choice; empty for bits and boxes.
        dtype: Dtype of the environment's actions.
        low: Smallest action, a tensor that broadcasts against actions.
        high: Largest action, inclusive.

    Raises:
        ArgumentError: The spec has no encoding, or no action.

    >>> encoding = ActionEncoding(Categorical(3, shape=(2,)), batch_dims=1)
    >>> encoding.encode(torch.tensor([2, 0]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """

    encoded_size: int

    def __init__(self, spec: TensorSpec, *, batch_dims: int = 0) -> None:
        self.kind = _kind(spec, batch_dims)
        self.dtype = spec.dtype
        self.nvec: list[int] = []
        if self.kind == "box":
            self.low, self.high = _bounds(spec)
            self._low = Constant(self.low)
            self._high = Constant(self.high)
            self._middle = Constant((self.low + self.high) / 2.0)
            self._half = Constant((self.high - self.low) / 2.0)
            self.encoded_size = self.low.numel()
            return
        if isinstance(spec, MultiCategorical):
            self.nvec = spec.nvec.reshape(-1, spec.shape[-1])[0].tolist()
        elif isinstance(spec, MultiOneHot):
            self.nvec = list(spec.nvec)
        elif not isinstance(spec, Binary):
            self.nvec = [int(spec.space.n)]
        self.encoded_size = sum(self.nvec) if self.nvec else spec.shape[-1]
        counts = self.nvec or [self.encoded_size]
        require("ActionEncoding", "numbers of actions", counts, min(counts) >= 1, "be positive")
        self.low = torch.tensor(0)
        is_binary = self.kind in ("one_hot", "bits")
        if is_binary:
            self.high = torch.tensor(1)
        else:
            self.high = torch.tensor(self.nvec).squeeze() - 1
        self._low = Constant(self.low)
        self._high = Constant(self.high)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action of the environment, without a batch."""
        if self.kind == "index":
            return ()
        if self.kind == "indices":
            return (len(self.nvec),)
        return (self.encoded_size,)

    def bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return ``low`` and ``high`` on a device."""
        return self._low.on(device), self._high.on(device)

    def encode(self, action: Tensor) -> Tensor:
        """Encode actions of the environment as float32 ``[*, A]``; boxes are clipped."""
        if self.kind == "box":
            middle = self._middle.on(action.device)
            half = self._half.on(action.device)
            return ((action - middle) / half).clamp(-1.0, 1.0).float()
        if self.kind in ("one_hot", "bits"):
            return action.float()
        if self.kind == "index":
            return _one_hot(action, self.encoded_size)
        choices = zip(action.unbind(-1), self.nvec, strict=True)
        return torch.cat([_one_hot(choice, size) for choice, size in choices], -1)

    def decode(self, encoded: Tensor) -> Tensor:
        """Decode ``[*, A]`` to actions of the environment, within their bounds."""
        if self.kind == "box":
            low, high = self.bounds(encoded.device)
            middle = self._middle.on(encoded.device)
            half = self._half.on(encoded.device)
            action = torch.addcmul(middle, encoded.to(low.dtype), half)
            # Rounding may exceed a bound by one unit in the last place.
            return action.clamp(low, high)
        if self.kind in ("one_hot", "bits"):
            return (encoded > 0.5).to(self.dtype)
        if self.kind == "index":
            return encoded.argmax(-1).to(self.dtype)
        indices = [part.argmax(-1) for part in encoded.split(self.nvec, -1)]
        return torch.stack(indices, -1).to(self.dtype)


def _one_hot(index: Tensor, size: int) -> Tensor:
    """Encode indices ``[*]`` as float32 ``[*, size]``."""
    # `torch.nn.functional.one_hot` checks the indices, for which it waits for the device.
    positions = torch.arange(size, device=index.device)
    return (index.long().unsqueeze(-1) == positions).float()


def _kind(
    spec: TensorSpec, batch_dims: int
) -> Literal["index", "indices", "one_hot", "bits", "box"]:
    name = type(spec).__name__
    is_known = isinstance(spec, Categorical | OneHot | Bounded)
    kinds = "Categorical, OneHot, MultiCategorical, MultiOneHot, Binary or Bounded"
    require("ActionEncoding", "spec", name, is_known, f"be a leaf of kind {kinds}")
    is_index = isinstance(spec, Categorical) and not isinstance(spec, MultiCategorical | Binary)
    num_dims = 0 if is_index else 1
    if len(spec.shape) != batch_dims + num_dims:
        raise ArgumentError(
            "ActionEncoding",
            name,
            tuple(spec.shape),
            f"have {num_dims} dimensions after its batch of batch_dims={batch_dims}",
            remedy="set batch_dims to the environment's; several choices are a MultiCategorical, "
            "and one number is a Bounded of shape (1,)",
        )
    if isinstance(spec, Bounded):
        return "box"
    if is_index:
        return "index"
    if isinstance(spec, Binary):
        return "bits"
    if isinstance(spec, MultiCategorical):
        return "indices"
    return "one_hot"


def _bounds(spec: Bounded) -> tuple[Tensor, Tensor]:
    """Return the bounds ``[A]`` of a box, which all envs must share."""
    owner = "ActionEncoding"
    condition = "be continuous (give whole numbers as MultiCategorical)"
    require(owner, "dtype of a Bounded", spec.dtype, spec.dtype.is_floating_point, condition)
    lows = spec.space.low.reshape(-1, spec.shape[-1]).cpu()
    highs = spec.space.high.reshape(-1, spec.shape[-1]).cpu()
    low = lows[0].clone()
    high = highs[0].clone()

    are_same = bool((lows == low).all() and (highs == high).all())
    condition = "be the same in every env of the batch"
    require(owner, "bounds", (lows.tolist(), highs.tolist()), are_same, condition)
    # The range of float32's extremes overflows.
    is_finite = bool((high - low).isfinite().all())
    is_ordered = bool((low < high).all())
    condition = "be finite, the lower below the upper"
    require(owner, "bounds", (low.tolist(), high.tolist()), is_finite and is_ordered, condition)
    return low, high
