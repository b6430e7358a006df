"""How an environment's actions are encoded, as networks read them: a float32 vector `[*, A]`.

================================================  =======================================================
spec                                              encoding
================================================  =======================================================
`Categorical`                                     one-hot
`MultiCategorical`                                one-hots of the choices, one after the other
`OneHot`, `MultiOneHot`, `Binary`                 as they are
`Bounded`, real numbers                           in [-1, 1], by the affine map of the bounds
================================================  =======================================================

`ActionEncoding.decode` gives back the environment's own dtype and shape, so decoding what was
encoded is the identity.
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

from yamame.checks import require
from yamame.execution.capturing import Constant


class ActionEncoding:
    """The encoding of the actions of a spec: a plain object that pickles, and follows the device of
    its inputs.

    Args:
        spec: A leaf spec: `Categorical`, `OneHot`, `MultiCategorical`, `MultiOneHot`, `Binary` or a
            continuous `Bounded`. After the batch, `Categorical` has no dimension and every other
            one.
        batch_dims: Number of leading dimensions of the spec that belong to the environment's batch.

    Attributes:
        encoded_size: A, the size of an encoded action.
        kind: What the environment's actions are: one index, several indices, one or several
            one-hots, bits, or a box.
        nvec: Number of actions of every choice; empty for bits and boxes.
        dtype: Their dtype.
        low: Their least value, a tensor that broadcasts against them.
        high: Their greatest value, inclusive.

    Raises:
        ValueError: If there is no encoding for this spec, or no action in it.

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
            self._bounds = Constant(self.low), Constant(self.high)
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
        self.high = torch.tensor(1) if is_binary else torch.tensor(self.nvec).squeeze() - 1
        self._bounds = Constant(self.low), Constant(self.high)

    def bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """``low`` and ``high`` on a device."""
        low, high = self._bounds
        return low.on(device), high.on(device)

    def encode(self, action: Tensor) -> Tensor:
        """The environment's action to its encoding, float32 `[*, A]`; beyond the bounds of a box,
        the bound's.
        """
        if self.kind == "box":
            middle, half = self._middle.on(action.device), self._half.on(action.device)
            return ((action - middle) / half).clamp(-1.0, 1.0).float()
        if self.kind in ("one_hot", "bits"):
            return action.float()
        if self.kind == "index":
            return _one_hot(action, self.encoded_size)
        choices = zip(action.unbind(-1), self.nvec, strict=True)
        return torch.cat([_one_hot(choice, n) for choice, n in choices], -1)

    def decode(self, encoded: Tensor) -> Tensor:
        """An encoding `[*, A]` to the environment's action, which is within its bounds."""
        if self.kind == "box":
            low, high = self.bounds(encoded.device)
            middle, half = self._middle.on(encoded.device), self._half.on(encoded.device)
            return torch.addcmul(middle, encoded.to(low.dtype), half).clamp(low, high)
        if self.kind in ("one_hot", "bits"):
            return (encoded > 0.5).to(self.dtype)
        if self.kind == "index":
            return encoded.argmax(-1).to(self.dtype)
        return torch.stack([part.argmax(-1) for part in encoded.split(self.nvec, -1)], -1).to(
            self.dtype
        )


def _one_hot(index: Tensor, size: int) -> Tensor:
    """``[*] -> [*, size]`` float32, as `torch.nn.functional.one_hot` does it, which reads indices
    back on a CPU.
    """
    return (index.long().unsqueeze(-1) == torch.arange(size, device=index.device)).float()


def _kind(
    spec: TensorSpec, batch_dims: int
) -> Literal["index", "indices", "one_hot", "bits", "box"]:
    name = type(spec).__name__
    leaves = (
        "be a leaf of kind Categorical, OneHot, MultiCategorical, MultiOneHot, Binary or Bounded"
    )
    require(
        "ActionEncoding", "spec", name, isinstance(spec, Categorical | OneHot | Bounded), leaves
    )
    is_index = isinstance(spec, Categorical) and not isinstance(spec, MultiCategorical | Binary)
    if len(spec.shape) != batch_dims + (not is_index):
        raise ValueError(
            f"ActionEncoding: {name} must have {int(not is_index)} dimensions after its batch (set "
            "batch_dims to the environment's; give several choices as MultiCategorical, and one number as "
            f"a Bounded of shape (1,)), got shape {tuple(spec.shape)} with batch_dims={batch_dims}"
        )
    if isinstance(spec, Bounded):
        return "box"
    if is_index:
        return "index"
    if isinstance(spec, Binary):
        return "bits"
    return "indices" if isinstance(spec, MultiCategorical) else "one_hot"


def _bounds(spec: Bounded) -> tuple[Tensor, Tensor]:
    """The bounds ``[A]`` of a box, which are those of every env."""
    condition = "be continuous (give whole numbers as MultiCategorical)"
    require(
        "ActionEncoding", "dtype of a Bounded", spec.dtype, spec.dtype.is_floating_point, condition
    )
    lows, highs = (
        bound.reshape(-1, spec.shape[-1]).cpu() for bound in (spec.space.low, spec.space.high)
    )
    low, high, got = lows[0].clone(), highs[0].clone(), (lows.tolist(), highs.tolist())
    same = bool((lows == low).all() and (highs == high).all())
    require("ActionEncoding", "bounds", got, same, "be the same in every env of the batch")
    got, proper = (
        (low.tolist(), high.tolist()),
        bool((high - low).isfinite().all() and (low < high).all()),
    )
    require("ActionEncoding", "bounds", got, proper, "be finite, the lower below the upper")
    return low, high
