"""Choices at random among what is possible, made from uniform numbers in [0, 1): one number, one choice.

Both functions invert a distribution function, so the caller's numbers decide everything.
"""

import numpy as np


def distinct(options: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Different options of each row, all equally likely, in order of drawing.

    Args:
        options: ``[B, N]`` bool.
        uniform: ``[B, H]`` float64.

    Returns:
        ``[B, H]`` int64; arbitrary once a row has no options left.

    >>> distinct(np.array([[True, False, True, True]]), np.array([[0.0, 0.6]]))
    array([[0, 3]])
    """
    batch, size = options.shape
    places = options.ravel().nonzero()[0]
    bounds = places.searchsorted(size * np.arange(batch + 1))
    first = bounds[:-1, None]
    number = bounds[1:, None] - first
    # A shuffle of the options of a row that ends after H of them: draw i swaps what is at i with what is
    # there or later. Going back over the swaps tells what each draw found.
    order = np.arange(uniform.shape[1])
    swapped = order + (uniform * np.maximum(number - order, 0)).astype(np.int64)
    found = swapped.copy()
    for i in order[:-1][::-1]:
        later = found[:, i + 1 :]
        np.copyto(later, i, where=later == swapped[:, i, None])
    if not len(places):
        return found
    return places[np.minimum(first + found, len(places) - 1)] % size


def weighted(weights: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """One of N, in proportion to its weight.

    Args:
        weights: ``[*, N]``, not negative.
        uniform: ``[*]`` float64.

    Returns:
        ``[*]`` int64, never of weight zero; arbitrary where all weights are zero.

    >>> weighted(np.array([1.0, 0.0, 3.0]), np.array(0.3))
    np.int64(2)
    """
    ends = weights.cumsum(-1, dtype=np.float64)
    index = (ends <= uniform[..., None] * ends[..., -1:]).sum(-1)
    return np.minimum(index, weights.shape[-1] - 1)
