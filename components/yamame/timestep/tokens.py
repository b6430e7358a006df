"""Token encoders: integers ``[*, ...]`` that are names, to embeddings ``[*, out_features]``.

A token outside of the vocabulary is neither clamped to a legal token nor an error: all of them
share one id, *unknown*, as in `yamame.timestep.TokenGoalEncoder`. Every timestep is encoded by
itself.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torchrl.modules import MLP

from yamame.checks import PositiveInt, check_bounds, require
from yamame.timestep.image_shape import ChannelAxis, ImageShape


class TokenSequence(nn.Module):
    """Embedding of a sequence of ids of fixed length, pooled by learned queries.

    Token and position embeddings pass a hidden layer. Each query is a softmax over the sequence, so
    it can select one token. An MLP and LayerNorm follow.

    Args:
        num_ids: Ids are in ``0 .. num_ids - 1``.
        length: Ids per sequence.
        out_features: Size of the embedding of a sequence.
        embedding_size: Size of the embedding of an id.
        hidden_size: Width of the hidden layers.
        num_queries: Number of learned queries.

    Raises:
        ArgumentError: A size is not positive.

    >>> TokenSequence(30, length=9)(torch.zeros(4, 9, dtype=torch.int64)).shape
    torch.Size([4, 64])
    """

    parameter_roles: ClassVar[Mapping[str, str]] = {"queries": "table"}

    @check_bounds
    def __init__(
        self,
        num_ids: PositiveInt,
        *,
        length: PositiveInt,
        out_features: PositiveInt = 64,
        embedding_size: PositiveInt = 16,
        hidden_size: PositiveInt = 64,
        num_queries: PositiveInt = 4,
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
        """Embed ``ids`` ``[*, length]`` int64; returns ``[*, out_features]``."""
        x = self.token_mlp(self.tokens(ids) + self.positions.weight)  # [*, length, hidden]
        attention = self.queries(x).softmax(-2)  # [*, length, queries]
        pooled = attention.transpose(-1, -2) @ x
        return self.norm(self.mlp(pooled.flatten(-2)))


class TokenGrid(nn.Module):
    """Embedding of a grid of ids: a linear layer over the embeddings of all cells, and LayerNorm.

    Unlike `GridCNN`, it does not mix neighbouring cells.

    Args:
        num_ids: Ids are in ``0 .. num_ids - 1``, in each channel.
        shape: Channels C, height H and width W.
        out_features: Size of the embedding of a grid.
        embedding_size: Size of the embedding of an id.

    Raises:
        ArgumentError: A size is not positive.

    >>> TokenGrid(12, shape=(2, 5, 5))(torch.zeros(4, 2, 5, 5, dtype=torch.int64)).shape
    torch.Size([4, 64])
    """

    MIN_SIZE: ClassVar[int] = 3
    _first_ids: Tensor

    @check_bounds
    def __init__(
        self,
        num_ids: PositiveInt,
        *,
        shape: tuple[int, int, int],
        out_features: PositiveInt = 64,
        embedding_size: PositiveInt = 16,
    ) -> None:
        super().__init__()
        # The same number has another meaning in each channel, so each has its own table.
        self.cells = nn.Embedding(shape[0] * num_ids, embedding_size)
        self.linear = nn.Linear(math.prod(shape) * embedding_size, out_features)
        self.norm = nn.LayerNorm(out_features)
        # First id of each channel in the table.
        first_ids = num_ids * torch.arange(shape[0])[:, None, None]
        self.register_buffer("_first_ids", first_ids, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Embed ``ids`` ``[*, C, H, W]`` int64; returns ``[*, out_features]``."""
        return self.norm(self.linear(self.cells(ids + self._first_ids).flatten(-4)))


class TokenEncoder(nn.Module):
    """Embedding of tokens: sequences are pooled, grids pass a `TokenGrid`.

    Grids have two dimensions (one token per cell) or three (one token per cell and channel), and at
    least 3 x 3 cells. Anything else is read as one sequence.

    Args:
        shape: Shape of the tokens at one timestep, up to three dimensions.
        num_tokens: Size of the vocabulary: tokens are in ``0 .. num_tokens - 1``.
        out_features: Size of the result.
        embedding_size: Size of the embedding of a token.
        channel_axis: Position of the channels of a three-dimensional grid; see
            `yamame.timestep.ImageShape`.

    Raises:
        ArgumentError: A size is not positive, or the shape has too many dimensions or does not show
            where the channels are. When called: the tokens are not integers or have another shape.

    >>> TokenEncoder((7, 7, 3), num_tokens=11)(torch.zeros(4, 7, 7, 3, dtype=torch.int64)).shape
    torch.Size([4, 64])
    """

    UNKNOWN = 0
    NUM_SPECIAL = 1

    @check_bounds
    def __init__(
        self,
        shape: Sequence[int],
        *,
        num_tokens: PositiveInt,
        out_features: PositiveInt = 64,
        embedding_size: PositiveInt = 16,
        channel_axis: ChannelAxis = "auto",
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.shape = tuple(shape)
        require(owner, "shape", self.shape, len(self.shape) <= 3, "have at most 3 dimensions")
        self.num_tokens = num_tokens
        self.num_ids = num_tokens + self.NUM_SPECIAL
        self.out_features = out_features
        self.grid_shape = None
        if len(self.shape) > 1:
            grid = ImageShape.of(self.shape, channel_axis=channel_axis, owner=owner)
            if min(grid.height, grid.width) >= TokenGrid.MIN_SIZE:
                self.grid_shape = grid

        if self.grid_shape is None:
            self.sequence = TokenSequence(
                self.num_ids,
                length=math.prod(self.shape),
                out_features=out_features,
                embedding_size=embedding_size,
            )
        else:
            self.grid = TokenGrid(
                self.num_ids,
                shape=(grid.num_channels, grid.height, grid.width),
                out_features=out_features,
                embedding_size=embedding_size,
            )

    def token_ids(self, tokens: Tensor) -> Tensor:
        """Return ids, int64 in ``0 .. num_tokens``, of the shape of ``tokens``."""
        is_integer = not tokens.is_floating_point() and not tokens.is_complex()
        require(type(self).__name__, "tokens", tokens.dtype, is_integer, "be integers")
        tokens = tokens.to(torch.int64)
        is_known = (tokens >= 0) & (tokens < self.num_tokens)
        return torch.where(is_known, tokens + self.NUM_SPECIAL, self.UNKNOWN)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed ``tokens`` ``[*, ...]`` of the declared shape; returns ``[*, out_features]``."""
        batch_dims = tokens.ndim - len(self.shape)
        fits = batch_dims >= 0 and tokens.shape[batch_dims:] == self.shape
        condition = f"end in shape {self.shape}"
        require(type(self).__name__, "tokens", tuple(tokens.shape), fits, condition)
        ids = self.token_ids(tokens)
        if self.grid_shape is None:
            return self.sequence(ids.reshape(*tokens.shape[:batch_dims], -1))

        return self.grid(self.grid_shape.channels_first(ids))
