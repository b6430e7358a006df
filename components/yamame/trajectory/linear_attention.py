"""Memories that are matrices: written by keys and values, read by queries, and fading.

The state of a head is a matrix ``S`` of K by V numbers, with one row per number of a key:

    ``S[t] = keep[t] S[t-1] + k[t] u[t]^T``,  output ``S[t]^T q[t]``.

It is written in one of two ways. Linear attention adds the value, ``u = v`` (mLSTM, arXiv
2405.04517, equation 19). The gated delta rule replaces what the key recalls, ``u[t] = write[t]
(v[t] - keep[t] S[t-1]^T k[t])`` (arXiv 2412.06464, equation 10).

A sequence is cut into chunks. Within a chunk, all timesteps are computed by products of matrices;
states go from one chunk to the next, so that there are ``L / size`` dependent operations instead of
L. With the delta rule, every ``u`` of a chunk depends on those before it: a triangular system of
equations, whose solution is linear in the state at the beginning of the chunk (the WY
representation of section 3.3). Sums of logarithms of ``keep`` are never subtracted from each other,
so a timestep that forgets nearly everything costs no precision.

Shapes: B sequences, L timesteps, N envs, H heads, K numbers of a key, V of a value, C chunks of T
timesteps.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_CHUNK = 32
"""Most timesteps of a chunk. Work within chunks grows with it, the number of chunks falls."""


class Access(NamedTuple):
    """Arguments of writing into and reading from matrix memories at some timesteps.

    Attributes:
        query: ``[*, H, K]``.
        key: ``[*, H, K]``; for the delta rule, of length 1 at most.
        value: ``[*, H, V]``.
        log_keep: ``[*, H]``, logarithm of the share of memory that is kept.
        write: ``[*, H]`` in [0, 1], for the delta rule: share of what the key recalls that is
            replaced by the value. None to add the value.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_keep: Tensor
    write: Tensor | None = None


def attend_sequence(access: Access, is_init: Tensor, *, chunk: int = _CHUNK) -> Tensor:
    """Write and read over whole sequences; memories begin with zero at every start.

    Args:
        access: Of ``[B, L]`` timesteps.
        is_init: ``[B, L]`` bool, starts; True in the first column.
        chunk: Most timesteps T of a chunk.

    Returns:
        What was read, ``[B, L, H, V]``.

    >>> one = torch.ones(1, 4, 1, 1)
    >>> starts = torch.tensor([[True, False, False, True]])
    >>> added = Access(one, one, one, torch.zeros(1, 4, 1))
    >>> attend_sequence(added, starts).flatten()
    tensor([1., 2., 3., 1.])
    >>> replaced = added._replace(write=torch.ones(1, 4, 1))
    >>> attend_sequence(replaced, starts).flatten()
    tensor([1., 1., 1., 1.])
    """
    query, key, value, log_keep, write = access
    length = query.shape[1]
    # Chunks of equal size, with as little as possible to fill up.
    num_chunks = math.ceil(length / chunk)
    chunk = math.ceil(length / num_chunks)
    log_keep = log_keep.masked_fill(is_init.unsqueeze(-1), -torch.inf)
    query = _chunks(query, chunk)  # [B, C, H, T, K]
    key = _chunks(key, chunk)
    value = _chunks(value, chunk)
    log_keep = _chunks(log_keep.unsqueeze(-1), chunk).squeeze(-1)  # [B, C, H, T]

    kept = _kept_between(log_keep)  # [B, C, H, T, T]
    kept_since = log_keep.cumsum(-1).exp().unsqueeze(-1)  # since before the chunk, [B, C, H, T, 1]
    kept_until = kept[..., -1, :].unsqueeze(-1)  # until the end of the chunk, [B, C, H, T, 1]
    scores = ((query @ key.mT) * kept).unbind(1)

    added = value
    erased: Sequence[Tensor | None] = [None] * num_chunks
    if write is not None:
        share = _chunks(write.unsqueeze(-1), chunk)  # [B, C, H, T, 1]
        added, recalled = _replacements(share * value, share * key, key, kept, kept_since)
        erased = recalled.unbind(1)

    # What depends on no state is computed for all chunks at once.
    read = (kept_since * query).unbind(1)
    written = (kept_until * key).mT.unbind(1)
    kept_all = kept_since[..., -1:, :].unbind(1)
    state = value.new_zeros(len(value), value.shape[2], key.shape[-1], value.shape[-1])
    outputs = []
    for c, update in enumerate(added.unbind(1)):  # [B, H, T, V]
        erase = erased[c]
        if erase is not None:
            update = update - erase @ state
        outputs.append(scores[c] @ update + read[c] @ state)
        state = kept_all[c] * state + written[c] @ update  # [B, H, K, V]
    # [B, C, H, T, V] -> [B, L, H, V]
    merged = torch.stack(outputs, 1).transpose(2, 3).flatten(1, 2)
    return merged[:, :length]


def attend_step(access: Access, state: Tensor) -> tuple[Tensor, Tensor]:
    """Write into matrix memories, then read them, at one timestep.

    Args:
        access: Of N timesteps, one of each env.
        state: ``[N, H, K, V]``.

    Returns:
        What was read, ``[N, H, V]``, and the next state.
    """
    query, key, value, log_keep, write = access
    state = log_keep.exp().unsqueeze(-1).unsqueeze(-1) * state
    column = key.unsqueeze(-1)  # [N, H, K, 1]
    if write is not None:
        recalled = (column * state).sum(-2)
        value = write.unsqueeze(-1) * (value - recalled)
    state = state + column * value.unsqueeze(-2)
    output = (query.unsqueeze(-1) * state).sum(-2)
    return output, state


def _replacements(
    value: Tensor, shared_key: Tensor, key: Tensor, kept: Tensor, kept_since: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what the delta rule writes in chunks that begin with an empty memory, and what else.

    Args:
        value: ``[*, T, V]``, times the share that is written.
        shared_key: ``[*, T, K]``, likewise.
        key: ``[*, T, K]``.
        kept: ``[*, T, T]``, share of each timestep's memory that is left at each later one.
        kept_since: ``[*, T, 1]``, share of the memory before the chunk.

    Returns:
        ``u`` for an empty memory, ``[*, T, V]``, and the factor ``[*, T, K]`` by which the memory
        before the chunk reduces it.
    """
    # u[t] = value[t] - sum of (shared_key[t] . key[s]) kept[t, s] u[s] over all s before t
    system = ((shared_key @ key.mT) * kept).tril(-1)
    sides = torch.cat((value, kept_since * shared_key), -1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    written, reduced = solved.split((value.shape[-1], key.shape[-1]), -1)
    return written, reduced


def _chunks(x: Tensor, size: int) -> Tensor:
    """Cut sequences into chunks, the last one filled with zeros.

    ``[B, L, H, *] -> [B, C, H, T, *]``
    """
    missing = -x.shape[1] % size
    padded = F.pad(x, (0, 0, 0, 0, 0, missing))
    return padded.unflatten(1, (-1, size)).transpose(2, 3)


def _kept_between(log_keep: Tensor) -> Tensor:
    """Return the share of what was written at timestep s that is left at timestep t.

    Args:
        log_keep: ``[*, T]``.

    Returns:
        ``[*, T, T]``, t first; zero where s is later.
    """
    size = log_keep.shape[-1]
    ones = torch.ones(size, size, dtype=torch.bool, device=log_keep.device)
    is_after = ones.tril(-1)
    # Sums over the timesteps after s up to t. Differences of two sums would lose precision.
    terms = torch.where(is_after, log_keep.unsqueeze(-1), 0)
    logs = terms.cumsum(-2)
    return logs.masked_fill(~ones.tril(), -torch.inf).exp()
