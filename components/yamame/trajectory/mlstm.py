"""The matrix memory of xLSTM (mLSTM): linear attention with an exponential input gate.

Each head has a matrix memory and its normaliser (arXiv 2405.04517, equations 19 to 27):

* ``C[t] = f[t] C[t-1] + i[t] v[t] k[t]^T`` (19), ``n[t] = f[t] n[t-1] + i[t] k[t]`` (20);
* ``h[t] = o[t] * C[t] q[t] / max(|n[t] . q[t]|, 1)`` (21), with linear maps q, k and v of the input
  (22 to 24), k divided by the square root of its size;
* ``i = exp(w_i x + b_i)`` (25), ``f = sigmoid(w_f x + b_f)`` (26), ``o = sigmoid(W_o x + b_o)``
  (27).

``n`` has the recurrence of ``C`` with values of 1, so it is stored as one more column. The argument
of ``exp`` is bounded by a soft cap of 15 (as in xLSTM 7B, arXiv 2503.13427), so that no memory
overflows; the running maximum of equations 15 to 17, a third entry of the memory, is not needed
then. ``h`` is scaled to a root mean square of 1 per head, where the paper's block has a LayerNorm;
the block's causal convolution is left out.

Source: Beck et al., "xLSTM: Extended Long Short-Term Memory", 2024.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from yamame.trajectory.linear_attention import Access
from yamame.trajectory.matrix_memory import (
    MatrixMemoryBlock,
    MatrixMemoryEncoder,
    scale_heads,
)

_CAP = 15.0
"""Bound of the logarithm of the input gate."""


class MLSTMBlock(MatrixMemoryBlock):
    """A block with the recurrence of the module; the arguments are those of its base class."""

    extra_columns = 1  # the normaliser

    def access(
        self, query: Tensor, key: Tensor, value: Tensor, write: Tensor, keep: Tensor
    ) -> Access:
        """Scale the key, gate the value, and append the 1 of the normaliser."""
        key = key * self.head_size**-0.5
        gain = (_CAP * torch.tanh(write / _CAP)).exp()  # [*, H]
        with_one = F.pad(value, (0, 1), value=1.0)  # [*, H, K + 1]
        return Access(query, key, gain.unsqueeze(-1) * with_one, F.logsigmoid(keep))

    def gated(self, read: Tensor, gate: Tensor) -> Tensor:
        """Divide by the normaliser, scale per head, and apply a sigmoid gate."""
        size = self.head_size
        total = read[..., size:].abs().clamp(min=1.0)
        hidden = scale_heads(read[..., :size] / total)
        return gate.sigmoid() * hidden.flatten(-2)


class MLSTMEncoder(MatrixMemoryEncoder):
    """A linear map, blocks with the matrix memory of xLSTM (arXiv 2405.04517), and a LayerNorm.

    The arguments are those of `MatrixMemoryEncoder`. A block has ``D (D / heads + 1)`` numbers of
    memory. ``step_index`` is not used.

    >>> from tensordict import TensorDict
    >>> encoder = MLSTMEncoder(3, d_model=8, num_heads=2)
    >>> envs = TensorDict({"features": torch.zeros(5, 3), "is_init": torch.ones(5, 1).bool()}, [5])
    >>> encoder(envs)["context"].shape
    torch.Size([5, 8])
    """

    block = MLSTMBlock
