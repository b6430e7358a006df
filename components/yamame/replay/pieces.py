"""Trajectories in the rows of a batch: where they begin and end.

A row of a batch may hold several trajectories, one after the other: batches of collectors cross the
ends of episodes, and packed sequences are shared. *Pieces* are these trajectories as right-padded
rows of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey, unravel_key
from torch import Tensor

from yamame.checks import require
from yamame.keys import DONE
from yamame.rollouts import TRAJ_IDS, arrival_keys, changes

ENDS: tuple[NestedKey, ...] = tuple(("next", name) for name in DONE)
"""Entries that mark the last transition of an episode."""


@dataclass(frozen=True)
class Pieces:
    """Trajectories of a batch.

    Attributes:
        source: ``[E, W]`` int64, index of each timestep among all timesteps of the batch.
        real: ``[E, W]`` bool. Other places are padding, and their ``source`` has no meaning.
    """

    source: Tensor
    real: Tensor

    @property
    def lengths(self) -> Tensor:
        """Number of timesteps of each trajectory, ``[E]``."""
        return self.real.sum(-1)


def cut(real: Tensor, is_last: Tensor, order: Tensor | None = None) -> Pieces:
    """Cut rows into trajectories.

    Args:
        real: ``[B, T]`` bool, timesteps that belong to a trajectory.
        is_last: ``[B, T]`` bool, last timesteps of trajectories. The last timestep of each row must
            be one.
        order: Order ``[B T]`` of all timesteps; None for row after row.

    Returns:
        Trajectories in the order of their first timesteps.
    """
    place = real.flatten().nonzero().squeeze(-1)
    if order is not None:
        place = order[real.flatten()[order]]
    ends = is_last.flatten()[place]
    begins = torch.ones_like(ends)
    begins[1:] = ends[:-1]
    piece = begins.cumsum(0) - 1
    lengths = torch.bincount(piece)

    first = lengths.cumsum(0) - lengths
    longest = int(lengths.max()) if len(lengths) else 0
    step = torch.arange(longest, device=place.device)
    index = first.unsqueeze(-1) + step
    is_step = step < lengths.unsqueeze(-1)
    source = place[torch.where(is_step, index, 0)] if len(place) else index
    return Pieces(source, is_step)


def rollout_pieces(
    rollout: TensorDictBase,
    *,
    split: bool = True,
    ends: Sequence[NestedKey] = ENDS,
    owner: str | None = None,
) -> Pieces:
    """Find the trajectories of a rollout in TorchRL's layout.

    A trajectory ends where one of ``ends`` is set, before ``is_init``, where
    ``("collector", "traj_ids")`` changes, before a step that is masked out and at the end of a row.
    In a flat batch ``[T]`` whose dimension is not named ``"time"``, it also ends where the next
    observation is another one than that of the following row; the rows of a trajectory may then be
    interleaved with those of others, if they have ``traj_ids``.

    Args:
        rollout: ``[T]`` or ``[B, T]``.
        split: Whether another trajectory follows where one ends. If not, later steps are void.
        ends: Keys of the flags of ends.
        owner: Class named in the error. None: no error for a flat batch; if no row follows another
            one, the flags are trusted.

    Raises:
        ArgumentError: No row of a flat batch follows another one, or most of its trajectories are
            single steps without an end; and ``owner`` is given.
    """
    is_flat = rollout.ndim == 1 and "time" not in (rollout.names or [])
    rows = rollout if rollout.ndim > 1 else rollout.unsqueeze(0)
    real = real_steps(rows)
    ended = _any(rows, ends)
    if not split:
        # The cumulative sum exceeds the flags after the first end.
        real = real & (ended.int().cumsum(1) == ended)
    is_last = ended.clone()
    is_last[:, -1] = True
    is_last[:, :-1] |= ~real[:, 1:]
    is_init = rows.get("is_init", None)
    if is_init is not None:
        is_last[:, :-1] |= is_init.reshape(rows.shape).bool()[:, 1:]
    ids = rows.get(TRAJ_IDS, None)
    if not is_flat:
        if ids is not None:
            is_last |= changes(ids.reshape(rows.shape))
        return cut(real, is_last)

    order = torch.arange(rows.shape[1], device=real.device)
    if ids is not None:
        ids = ids.flatten()
        order = ids.argsort(stable=True)
    is_last, is_known = _flat_ends(rollout, order, ids, real.flatten(), ended.flatten())
    pieces = cut(real, is_last.unsqueeze(0), order)
    if owner is not None:
        _require_sequences(owner, pieces, ended.flatten(), is_known)
    return pieces


def _require_sequences(owner: str, pieces: Pieces, ended: Tensor, is_known: bool) -> None:
    """Raise if a flat batch seems to be of single steps, as `RandomSampler` draws them.

    Some of them follow others by chance. A single step that ends may be a whole episode.
    """
    is_single = pieces.lengths == 1
    first = pieces.source[is_single][:, :1].flatten()
    num_open = int((~ended[first]).sum())
    num_longer = int((~is_single).sum())
    found = f"{num_open} single steps without an end among {len(is_single)} trajectories"
    if not is_known:
        found = f"{len(ended)} rows of which none follows another"
    require(
        owner,
        "a flat batch",
        found,
        is_known and num_open <= max(num_longer, 1),
        "hold the steps of trajectories one after the other",
        remedy="sample trajectories (SliceSampler), and reshape them to [B, T]",
    )


def _flat_ends(
    rollout: TensorDictBase,
    order: Tensor,
    ids: Tensor | None,
    real: Tensor,
    ended: Tensor,
) -> tuple[Tensor, bool]:
    """Find the last steps of the trajectories in a flat batch, in some order.

    Returns:
        The last steps ``[T]`` bool, and whether next observations show them; if not, they are those
        of the flags.
    """
    here = order[:-1]
    after = order[1:]
    marked = ended[here] | ~real[after] | ~real[here]
    is_init = rollout.get("is_init", None)
    if is_init is not None:
        marked |= is_init.flatten().bool()[after]
    if ids is not None:
        marked |= ids[here] != ids[after]

    follows = torch.ones_like(marked)
    for key in arrival_keys(rollout):
        arrived = rollout.get(unravel_key(("next", key)))[here]
        value = rollout.get(key)[after]
        if not isinstance(value, Tensor):
            continue
        is_same = (arrived == value) | ((arrived != arrived) & (value != value))  # NaN
        follows &= is_same if is_same.ndim == 1 else is_same.flatten(1).all(1)
    unmarked = ~marked
    # Where nothing follows, observations before and after a step were processed differently.
    is_known = bool((follows & unmarked).any()) or not bool(unmarked.any())
    is_last = torch.ones_like(ended)
    is_last[here] = marked | ~follows if is_known else marked
    return is_last, is_known


def packed_pieces(
    batch: TensorDictBase,
    real: Tensor,
    *,
    owner: str,
    is_init: NestedKey = "is_init",
    ends: Sequence[NestedKey] = ENDS,
) -> Pieces | None:
    """Find the trajectories of a packed batch.

    A trajectory begins at the start of a row, at ``is_init``, after padding, and where
    ``("collector", "traj_ids")`` changes.

    Args:
        batch: ``[B, L]``, each observation once.
        real: ``[B, L]`` bool, real timesteps.
        owner: Class named in errors.
        is_init: Key of the starts of episodes.
        ends: Keys of the flags of ends.

    Returns:
        The trajectories; None if each row holds one, right padded.

    Raises:
        ArgumentError: An end is not marked at the transition into the last timestep of a
            trajectory, so another one may follow without a mark.
    """
    begins = torch.zeros_like(real)
    begins[:, 1:] = ~real[:, :-1]
    starts = batch.get(is_init, None)
    if starts is not None:
        begins[:, 1:] |= starts.reshape(real.shape).bool()[:, 1:]
    ids = batch.get(TRAJ_IDS, None)
    if ids is not None:
        begins[:, 1:] |= changes(ids.reshape(real.shape))[:, :-1]
    begins &= real
    is_last = torch.ones_like(real)
    is_last[:, :-1] = ~real[:, 1:] | begins[:, 1:]

    # Timesteps that are the last ones of trajectories with a transition.
    arrives = torch.zeros_like(real)
    arrives[:, :-1] = (real & is_last & ~begins)[:, 1:]
    wrong = _any(batch, ends) & real & ~arrives
    place = wrong.nonzero()[:1].flatten().tolist() if bool(wrong.any()) else None
    require(
        owner,
        "ends of episodes",
        f"one in row {place[0]} at timestep {place[1]}" if place else None,
        place is None,
        "be at the transition into the last timestep of a trajectory",
        remedy="pass rollouts with the observations after each step under 'next', which are split"
        " at their ends, or pack them with yamame.replay.pack(rollout)",
    )
    if not bool(begins[:, 1:].any()):
        return None
    return cut(real, is_last)


def real_steps(rollout: TensorDictBase) -> Tensor:
    """Return the steps ``[*B, T]`` bool that neither mask of a rollout leaves out."""
    real = torch.ones(rollout.shape, dtype=torch.bool, device=_device(rollout))
    for key in (("collector", "mask"), "mask"):
        mask = rollout.get(key, None)
        if mask is not None:
            real = real & mask.reshape(rollout.shape).bool()
    return real


def _any(batch: TensorDictBase, keys: Sequence[NestedKey]) -> Tensor:
    """Return where one of several flags is set, ``[*B]`` bool."""
    marked = torch.zeros(batch.shape, dtype=torch.bool, device=_device(batch))
    for key in keys:
        flag = batch.get(key, None)
        if flag is not None:
            marked = marked | flag.reshape(batch.shape).bool()
    return marked


def _device(batch: TensorDictBase) -> torch.device:
    if batch.device is not None:
        return batch.device
    for value in batch.values(True, True):
        return value.device
    return torch.device("cpu")
