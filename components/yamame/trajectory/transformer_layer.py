"""One layer of the Transformer::

    x = x + LN2(out(scale_h * attention(qkv(LN1(x)))))
    x = x + dropout(ff2(LN4(act(ff1(LN3(x))))))

Source: AMAGO, arXiv 2310.09971, appendix A, with NormFormer (LN2, LN4, per-head scale_h; arXiv 2110.09456)
and sigma-reparametrised linear maps (arXiv 2303.06296).
"""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from yamame.rows import in_row_blocks
from yamame.trajectory.activation import Activation, activation_function
from yamame.trajectory.attention import Attend, Map, SelfAttention, fixed, linear
from yamame.trajectory.dropout import Dropout


class TransformerLayer(nn.Module):
    """One pre-norm layer; every stabiliser can be switched off on its own.

    Args:
        d_model: Size D of the residual stream.
        num_heads: Number of attention heads.
        d_ff: Size of the hidden layer of the feed-forward part.
        dropout: Probability on the feed-forward branch.
        activation: Of the feed-forward part.
        norm_attention: LayerNorm after attention.
        norm_feedforward: LayerNorm after the activation.
        head_scaling: One learnt factor per head.
        sigma_reparam: Sigma-reparametrised linear maps.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        d_ff: int,
        dropout: float,
        activation: Activation,
        norm_attention: bool,
        norm_feedforward: bool,
        head_scaling: bool,
        sigma_reparam: bool,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.attention = SelfAttention(
            d_model, num_heads, head_scaling=head_scaling, sigma_reparam=sigma_reparam
        )
        self.norm2 = nn.LayerNorm(d_model) if norm_attention else nn.Identity()
        self.norm3 = nn.LayerNorm(d_model)
        self.ff1 = linear(d_model, d_ff, sigma_reparam=sigma_reparam)
        self.norm4 = nn.LayerNorm(d_ff) if norm_feedforward else nn.Identity()
        self.ff2 = linear(d_ff, d_model, sigma_reparam=sigma_reparam)
        self.dropout = Dropout(dropout) if dropout else nn.Identity()
        self.activation = activation_function(activation, owner="TransformerLayer", overwrite=True)

    def forward(self, x: Tensor, attend: Attend, rotation: Tensor | None) -> Tensor:
        """``[B, L, D] -> [B, L, D]``."""
        return self._forward(x, attend, rotation, self._maps(x))

    def checkpointed(self, x: Tensor, attend: Attend, rotation: Tensor | None) -> Tensor:
        """`forward`, whose backward pass computes it again rather than have kept all that lies between."""
        # The maps are kept: making them again would move the vectors of the power iteration again.
        return checkpoint(self._forward, x, attend, rotation, self._maps(x), use_reentrant=False)

    def _maps(self, x: Tensor) -> tuple[Map, ...]:
        layers = (self.attention.qkv, self.attention.out, self.ff1, self.ff2)
        return tuple(fixed(layer, x.shape[:-1].numel()) for layer in layers)

    def _forward(self, x: Tensor, attend: Attend, rotation: Tensor | None, maps: tuple[Map, ...]) -> Tensor:
        qkv, out, up, down = maps
        x = x + self.norm2(self.attention(self.norm1(x), attend, rotation, (qkv, out)))
        return x + self.dropout(self._feedforward(x, up, down))

    def _feedforward(self, x: Tensor, up: Map, down: Map) -> Tensor:
        def part(rows: Tensor) -> Tensor:
            return down(self.norm4(self.activation(up(self.norm3(rows)))))

        return in_row_blocks(part, x.reshape(-1, x.shape[-1])).view(*x.shape)
