"""Sequences cut at the starts inside them: every segment between two starts as a sequence of its own.

For networks that can read a sequence from its beginning only. Shapes: B sequences, L timesteps, S segments.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from yamame.trajectory.base import segment_positions


def segment_outputs(function: Callable[[Tensor], Tensor], x: Tensor, starts: Tensor) -> Tensor:
    """A causal function of sequences, applied to each segment by itself.

    Segments lie side by side, padded with zeros behind their end; those whose lengths have the same power of two
    go together, so that less than half of what is computed is padding. (`nn.GRU` and `nn.LSTM` also take a packed
    sequence without any, and over hundreds of timesteps are several times slower with it.)

    Args:
        function: ``[S, l, E] -> [S, l, D]``, where no output depends on a later timestep or on another row.
        x: ``[B, L, E]``.
        starts: ``[B, L]`` bool, True in the first column.

    Returns:
        ``[B, L, D]``.

    >>> x = torch.ones(1, 5, 1)
    >>> segment_outputs(lambda rows: rows.cumsum(1), x, torch.tensor([[True, False, False, True, False]])).flatten()
    tensor([1., 2., 3., 1., 2.])
    """
    if not bool(starts[:, 1:].any()):
        return function(x)
    rows = x.flatten(0, 1)
    segment = starts.flatten().cumsum(0) - 1
    position = segment_positions(starts).flatten()
    lengths = torch.bincount(segment)
    size = torch.frexp((lengths - 1).float()).exponent  # the same for 1; 2; 3 and 4; 5 to 8; ...
    found, places = [], []
    for group in size.unique().tolist():
        chosen = size == group
        row = chosen.cumsum(0) - 1
        place = chosen[segment].nonzero().squeeze(1)
        side = x.new_zeros(int(chosen.sum()), int(lengths[chosen].max()), x.shape[-1])
        where = (row[segment[place]], position[place])
        found.append(function(side.index_put(where, rows[place]))[where])
        places.append(place)
    return torch.cat(found)[torch.cat(places).argsort()].unflatten(0, starts.shape)
