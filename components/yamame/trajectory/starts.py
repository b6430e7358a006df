"""Starts of fresh memories in sequences, and positions since them."""

import torch
from torch import Tensor

from yamame.execution.capturing import capturing


def segment_starts(
    shape: torch.Size, is_init: Tensor | None, mask: Tensor | None, *, device: torch.device
) -> Tensor:
    """Return the starts of fresh memories in sequences.

    They are the first column, every ``is_init``, and the first real timestep after padding.

    Args:
        shape: ``[B, L]``.
        is_init: ``[B, L]``, or None.
        mask: ``[B, L]``, True for real timesteps; None if all are real.
        device: Device of the result.

    Returns:
        ``[B, L]`` bool.

    >>> is_init = torch.tensor([[False, False, False, True, False]])
    >>> mask = torch.tensor([[False, True, True, True, False]])
    >>> segment_starts(mask.shape, is_init, mask, device=mask.device).int()
    tensor([[1, 1, 0, 1, 0]], dtype=torch.int32)
    """
    starts = torch.zeros(shape, dtype=torch.bool, device=device)
    starts[:, 0] = True
    if mask is None:
        if is_init is not None:
            starts |= is_init.bool()
        return starts

    real = mask.bool()
    if is_init is not None:
        starts |= is_init.bool() & real  # flags in padding have no meaning
    follows_padding = ~real[:, :-1]
    starts[:, 1:] |= real[:, 1:] & follows_padding
    return starts


def segment_positions(starts: Tensor) -> Tensor:
    """Count timesteps since the last start: bool ``[B, L]`` -> int64 ``[B, L]``.

    >>> segment_positions(torch.tensor([[True, False, False, True, False]]))
    tensor([[0, 1, 2, 0, 1]])
    """
    length = starts.shape[1]
    column = torch.arange(length, device=starts.device)
    last_start = torch.where(starts, column, 0).cummax(1).values
    return column - last_start


def count_segments(starts: Tensor) -> int | None:
    """Count the starts in ``[B, L]``; None while capturing, when no value can be read back."""
    if capturing():
        return None
    return int(starts.sum())
