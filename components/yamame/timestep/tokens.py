"""Token encoders: integers that name things ``[*, ...]`` become ``[*, out_features]``.

A token outside the vocabulary is neither clamped onto a legal one nor an error: all such share one
id, *unknown*, as in `yamame.timestep.TokenGoalEncoder`. Every timestep is encoded on its own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torchrl.modules import MLP

from yamame.checks import require, require_at_least
from yamame.timestep.cnn import GridCNN
from yamame.timestep.image_shape import ChannelAxis, ImageShape


class TokenSequence(nn.Module):
    """Embeds a sequence of ids of fixed length: token and position embeddings, hidden layer,
    pooling, MLP.

    Pooling is by learned queries: each is a softmax over the sequence, so it can single out one
    token.

    Args:
        num_ids: Ids are in ``0 .. num_ids - 1``.
        length: Ids per sequence.
        out_features: Size of the sequence's embedding.
        embedding_size: Size of an id's embedding.
        hidden_size: Width of the hidden layers.
        num_queries: Number of learned queries.

    >>> TokenSequence(30, length=9)(torch.zeros(4, 9, dtype=torch.int64)).shape
    torch.Size([4, 64])
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"queries": "table"}

    def __init__(
        self,
        num_ids: int,
        *,
        length: int,
        out_features: int = 64,
        embedding_size: int = 16,
        hidden_size: int = 64,
        num_queries: int = 4,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_ids, embedding_size)
        self.positions = nn.Embedding(length, embedding_size)
        self.token_mlp = nn.Sequential(nn.Linear(embedding_size, hidden_size), nn.LeakyReLU())
        self.queries = nn.Linear(hidden_size, num_queries, bias=False)
        self.mlp = MLP(
            num_queries * hidden_size,
            out_features,
            num_cells=[hidden_size],
            activation_class=nn.LeakyReLU,
        )
        self.norm = nn.LayerNorm(out_features)

    def forward(self, ids: Tensor) -> Tensor:
        """Embeds ``ids`` ``[*, length]`` int64; returns ``[*, out_features]``."""
        x = self.token_mlp(self.tokens(ids) + self.positions.weight)
        attention = self.queries(x).softmax(-2)
        pooled = attention.transpose(-1, -2) @ x
        return self.norm(self.mlp(pooled.flatten(-2)))


class TokenEncoder(nn.Module):
    """Embeds tokens of one vocabulary: a sequence is pooled, a grid goes through a `GridCNN`.

    Grids have two dimensions (one token per cell) or three (several per cell: the channels), at
    least 3 x 3 cells; each channel has an embedding table of its own, since the same number means
    another thing in each, and the channels' embeddings are concatenated. Anything else is read as
    one sequence.

    Args:
        shape: Of the tokens at one timestep, up to three dimensions.
        num_tokens: Size of the vocabulary: tokens are in ``0 .. num_tokens - 1``.
        out_features: Size of the result.
        embedding_size: Size of a token's embedding.
        channel_axis: Where the channels of a three-dimensional grid are; see
            `yamame.timestep.ImageShape`.

    Raises:
        ValueError: If a size is not positive, or the shape has too many dimensions or does not tell
            where the channels are; at run time if the tokens are not integers or have another
            shape.

    >>> TokenEncoder((7, 7, 3), num_tokens=11)(torch.zeros(4, 7, 7, 3, dtype=torch.int64)).shape
    torch.Size([4, 64])
    """

    UNKNOWN, NUM_SPECIAL = 0, 1

    def __init__(
        self,
        shape: Sequence[int],
        *,
        num_tokens: int,
        out_features: int = 64,
        embedding_size: int = 16,
        channel_axis: ChannelAxis = "auto",
    ) -> None:
        super().__init__()
        sizes = {
            "num_tokens": num_tokens,
            "out_features": out_features,
            "embedding_size": embedding_size,
        }
        require_at_least("TokenEncoder", 1, **sizes)
        self.shape = tuple(shape)
        require(
            "TokenEncoder", "shape", self.shape, len(self.shape) <= 3, "have at most 3 dimensions"
        )
        self.num_tokens = num_tokens
        self.num_ids = num_tokens + self.NUM_SPECIAL
        self.out_features = out_features
        self.grid_shape = None
        if len(self.shape) > 1:
            grid = ImageShape.of(self.shape, channel_axis=channel_axis, owner="TokenEncoder")
            if min(grid.height, grid.width) >= GridCNN.MIN_SIZE:
                self.grid_shape = grid
        if self.grid_shape is None:
            length = math.prod(self.shape)
            self.sequence = TokenSequence(
                self.num_ids,
                length=length,
                out_features=out_features,
                embedding_size=embedding_size,
            )
        else:
            num_channels, height, width = grid.num_channels, grid.height, grid.width
            self.cells = nn.Embedding(num_channels * self.num_ids, embedding_size)
            cell_shape = (num_channels * embedding_size, height, width)
            self.grid = GridCNN(cell_shape, out_features=out_features, channel_axis="first")

    def token_ids(self, tokens: Tensor) -> Tensor:
        """Ids, int64, in ``0 .. num_tokens``; same shape as ``tokens``."""
        if tokens.is_floating_point() or tokens.is_complex():
            raise ValueError(f"TokenEncoder: tokens must be integers, got {tokens.dtype}")
        tokens = tokens.to(torch.int64)
        known = (tokens >= 0) & (tokens < self.num_tokens)
        return torch.where(known, tokens + self.NUM_SPECIAL, self.UNKNOWN)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeds ``tokens`` ``[*, ...]`` of the declared shape; returns ``[*, out_features]``
        float32.
        """
        batch_dims = tokens.ndim - len(self.shape)
        if batch_dims < 0 or tokens.shape[batch_dims:] != self.shape:
            raise ValueError(
                f"TokenEncoder: tokens must end in shape {self.shape}, got {tuple(tokens.shape)}"
            )
        ids = self.token_ids(tokens)
        if self.grid_shape is None:
            return self.sequence(ids.reshape(*tokens.shape[:batch_dims], -1))
        ids = self.grid_shape.channels_first(ids)
        tables = self.num_ids * torch.arange(self.grid_shape.num_channels, device=ids.device)
        cells = self.cells(ids + tables[:, None, None])  # [*, C, H, W, E]
        return self.grid(cells.movedim(-1, -3).flatten(-4, -3))
