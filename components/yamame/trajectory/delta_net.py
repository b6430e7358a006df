"""Gated DeltaNet: a matrix memory that replaces what a key recalls, and fades.

Each head has a matrix memory (arXiv 2412.06464, equation 10)

    ``S[t] = S[t-1] alpha[t] (I - beta[t] k[t] k[t]^T) + beta[t] v[t] k[t]^T``,

which is read as ``S[t] q[t]``. ``beta`` in (0, 1) is the share of what ``k`` recalls that ``v``
replaces, and ``alpha`` in (0, 1) the share of all memory that is kept; both depend on the input. As
in the paper's block, q and k are linear maps of the input, a SiLU, and scaled to length 1; v is a
linear map and a SiLU; what is read is scaled per head and multiplied by the SiLU of a linear
map. Different from it, ``alpha`` is the sigmoid of a linear map, and the short convolutions before
q, k and v are left out.

Source: Yang, Kautz & Hatamizadeh, "Gated Delta Networks", 2024.
"""

from torch import Tensor
from torch.nn import functional as F

from yamame.trajectory.linear_attention import Access
from yamame.trajectory.matrix_memory import (
    MatrixMemoryBlock,
    MatrixMemoryEncoder,
    scale_heads,
)


class DeltaNetBlock(MatrixMemoryBlock):
    """A block with the recurrence of the module; the arguments are those of its base class."""

    def access(
        self, query: Tensor, key: Tensor, value: Tensor, write: Tensor, keep: Tensor
    ) -> Access:
        """Scale query and key to length 1."""
        query = F.normalize(F.silu(query), dim=-1)
        key = F.normalize(F.silu(key), dim=-1)
        return Access(query, key, F.silu(value), F.logsigmoid(keep), write.sigmoid())

    def gated(self, read: Tensor, gate: Tensor) -> Tensor:
        """Scale per head, and apply a SiLU gate."""
        return F.silu(gate) * scale_heads(read).flatten(-2)


class DeltaNetEncoder(MatrixMemoryEncoder):
    """A linear map, blocks with a gated delta rule (arXiv 2412.06464), and a LayerNorm.

    The arguments are those of `MatrixMemoryEncoder`. A block has ``D D / heads`` numbers of memory.
    ``step_index`` is not used.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> encoder = DeltaNetEncoder(3, d_model=8, num_heads=2)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 8])
    """

    block = DeltaNetBlock
