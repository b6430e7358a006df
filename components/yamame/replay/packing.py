"""Packing: from TorchRL rollouts to the batches of replay, relabelling and losses.

A rollout ``[B, T]`` holds every observation twice: at the root and under ``"next"``. A packed batch
``[E, L]``, ``L = T + 1``, holds it once: timestep t consists of the observation at t and the
transition out of t. The last timestep of a trajectory is its last observation, where all entries of
a transition are zero. Trajectories are right padded with zeros; ``mask`` ``[E, L, 1]`` marks real
timesteps.
"""

from collections.abc import Sequence

import torch
from tensordict import TensorDict, TensorDictBase, pad
from tensordict.utils import NestedKey, expand_as_right, unravel_key
from torch import Tensor

from yamame.checks import require
from yamame.execution.capturing import NUM_SEGMENTS
from yamame.replay.gather import gather_timesteps
from yamame.replay.pieces import ENDS, Pieces, rollout_pieces
from yamame.rollouts import TRANSITION_KEYS, arrival_keys


def pack(rollout: TensorDictBase | Sequence[TensorDictBase], *, split: bool = True) -> TensorDict:
    """Pack TorchRL rollouts; each episode becomes a trajectory, in order of env and then time.

    Root entries stay at the root; their last value comes from ``"next"``, or is zero where
    ``"next"`` lacks it, as for ``action``. A trajectory ends where ``("next", "done")`` is set
    (``terminated`` and ``truncated`` also count), before ``is_init``, where
    ``("collector", "traj_ids")`` changes, and where the rollout ends. Steps at which
    ``("collector", "mask")`` or ``mask`` is False are left out, and so are entries named ``done``
    or ``"collector"``. ``reward``, ``terminated``, ``truncated`` and ``success`` stay under
    ``"next"``, with all entries that only ``"next"`` holds, and are removed from the root.

    A flat batch ``[T]`` of several trajectories, such as a sample of ``SliceSampler``, is also
    split where the next observation is another one than that of the following row. With
    ``traj_ids``, its trajectories may be interleaved.

    Args:
        rollout: ``[*, T]``, or a list of those, with equal entries.
        split: Whether another episode follows where one ends. False for
            ``rollout(break_when_all_done=True)``, where steps after the first end are void.

    Returns:
        Trajectories ``[E, L]`` with ``mask``.

    Raises:
        ArgumentError: A rollout lacks ``"next"``, its ``"done"`` or the next observations, or has
            no steps.

    >>> observation = torch.arange(3.0)
    >>> done = torch.zeros(3, 1, dtype=torch.bool)
    >>> arrival = {"observation": observation + 1, "reward": torch.ones(3, 1), "done": done}
    >>> entries = {"observation": observation, "action": torch.ones(3), "next": arrival}
    >>> rollout = TensorDict(entries, batch_size=[3])
    >>> pack(rollout)["observation"], pack(rollout)["action"]
    (tensor([[0., 1., 2., 3.]]), tensor([[1., 1., 1., 0.]]))
    """
    if not isinstance(rollout, TensorDictBase):
        return join([pack(one, split=split) for one in rollout])
    return pack_pieces(rollout, find_pieces(rollout, split=split))


def find_pieces(
    rollout: TensorDictBase,
    *,
    split: bool = True,
    ends: Sequence[NestedKey] = ENDS,
    owner: str | None = None,
) -> Pieces:
    """Find the trajectories of a rollout ``[*, T]``; see `pack` and `rollout_pieces`."""
    keys = list(rollout.keys())
    has_ends = rollout.get(("next", "done"), None) is not None
    has_ends = has_ends or rollout.get(("next", "terminated"), None) is not None
    require("pack", "a rollout", keys, has_ends, "hold ('next', 'done')")
    remedy = "collect with compact_obs=False; packed trajectories need not be packed again"
    condition = "hold the observations after each step under 'next'"
    require("pack", "a rollout", keys, bool(arrival_keys(rollout)), condition, remedy=remedy)
    require("pack", "a rollout", list(rollout.shape), rollout.ndim > 0, "be [*, T]")
    rows = rollout if rollout.ndim == 1 else _as_rows(rollout)
    pieces = rollout_pieces(rows, split=split, ends=ends, owner=owner)
    has_steps = len(pieces.real) > 0
    require("pack", "a rollout", tuple(rollout.shape), has_steps, "have at least one step")
    return pieces


def pack_pieces(rollout: TensorDictBase, pieces: Pieces) -> TensorDict:
    """Pack the trajectories of a rollout ``[*, T]``.

    Returns:
        Trajectories ``[E, L]`` with ``mask``.
    """
    rollout = _as_rows(rollout)
    # An episode of n steps has n + 1 timesteps, the last of which comes from "next".
    last = pieces.lengths
    column = torch.zeros_like(pieces.source[:, :1])
    source = torch.cat([pieces.source, column], 1)
    is_step = torch.cat([pieces.real, column.bool()], 1)
    step = torch.arange(source.shape[1], device=source.device)

    # The number of segments counts those of other rows.
    left_out = ("next", "done", "collector", "mask", NUM_SEGMENTS)
    root = rollout.exclude(*left_out, *TRANSITION_KEYS)
    root_keys = list(root.keys(True, True))
    following = rollout.get("next").exclude("done")
    packed = gather_timesteps(root, source, is_step)
    packed.set("next", gather_timesteps(following.exclude(*root_keys), source, is_step))
    if following.get("terminated", None) is None:
        # An end is a termination unless it is a truncation, as in TorchRL.
        ended = rollout.get(("next", "done"))
        truncated = following.get("truncated", None)
        if truncated is not None:
            ended = ended & ~truncated
        packed.set(("next", "terminated"), gather_steps(ended, rollout, pieces))

    next_observation = following.exclude(*TRANSITION_KEYS)
    episode = torch.arange(len(last), device=source.device)
    final = source[episode, last - 1]
    for key in root_keys:
        value = next_observation.get(key, None)
        if value is not None:
            packed.get(key)[episode, last] = value.flatten(0, 1)[final]
    return packed.set("mask", (step <= last.unsqueeze(-1)).unsqueeze(-1))


def unpack_pieces(
    packed: TensorDictBase, rollout: TensorDictBase, pieces: Pieces, mask_key: NestedKey = "mask"
) -> TensorDictBase:
    """Write changed trajectories back to their places in a rollout.

    Args:
        packed: ``[E, L]`` trajectories of `pack_pieces`, which may have become shorter.
        rollout: ``[*, T]`` of which they were packed.
        pieces: Trajectories of ``rollout``.
        mask_key: Key of the mask of ``packed``, and of the result.

    Returns:
        New rollout ``[*, T]``, whose mask is False where no trajectory has a step.
    """
    out = _as_rows(rollout).copy()
    missing = pieces.real.shape[1] + 1 - packed.shape[1]
    packed = pad(packed, [0, 0, 0, missing])
    place = pieces.source[pieces.real]

    def put(key: NestedKey, value: Tensor) -> None:
        """Write the values ``[E, W, *]`` of the steps."""
        old = out.get(key, None)
        if old is None:
            old = value.new_zeros(*out.shape, *value.shape[2:])
        flat = old.flatten(0, 1).clone()
        flat[place] = value[pieces.real].to(flat.dtype)
        out.set(key, flat.unflatten(0, out.shape))

    shared = arrival_keys(rollout)
    for key in packed.exclude(mask_key).keys(True, True):
        value = packed.get(key)
        put(key, value[:, :-1])
        if key in shared:
            put(unravel_key(("next", key)), value[:, 1:])
    # A step is real if the timestep after it is.
    timesteps = packed.get(mask_key).reshape(*packed.shape, 1)
    out.exclude(mask_key, inplace=True)
    put(mask_key, timesteps[:, 1:])
    return out.reshape(rollout.shape)


def gather_steps(entry: Tensor, rollout: TensorDictBase, pieces: Pieces) -> Tensor:
    """Return an entry ``[*, T, *]`` of the steps of trajectories, as ``[E, L, *]`` like `pack`."""
    flat = entry.flatten(0, rollout.ndim - 1)
    values = flat[torch.where(pieces.real, pieces.source, 0)]
    values = values.masked_fill(~expand_as_right(pieces.real, values), 0)
    last = torch.zeros_like(values[:, :1])
    return torch.cat([values, last], 1)


def pack_whole(
    data: TensorDictBase | Sequence[TensorDictBase],
) -> TensorDictBase | Sequence[TensorDictBase]:
    """Pack TorchRL rollouts of whole episodes; return packed trajectories unchanged.

    Args:
        data: Rollout ``[*, T]``, or packed trajectories.

    Raises:
        ArgumentError: A rollout begins or ends within an episode.
    """
    if not isinstance(data, TensorDictBase) or data.get(("next", "done"), None) is None:
        return data
    pieces = find_pieces(data)
    owner = "pack_whole"
    remedy = "pass whole episodes, or pack unfinished ones with yamame.replay.pack"
    episode = torch.arange(len(pieces.real), device=pieces.real.device)

    final = pieces.source[episode, pieces.lengths - 1]
    is_over = data.get(("next", "done")).flatten()[final]
    unfinished = int(pieces.lengths[~is_over].sum())
    name = "steps after the last end of an episode"
    require(owner, name, unfinished, unfinished == 0, "be 0", remedy=remedy)

    starts = data.get("is_init", None)
    if starts is not None:
        is_headless = ~starts.flatten()[pieces.source[:, 0]]
        headless = int(pieces.lengths[is_headless].sum())
        name = "steps before the first beginning of an episode"
        require(owner, name, headless, headless == 0, "be 0", remedy=remedy)
    # A flag of environments that may fail, which collectors do not store either.
    return pack_pieces(data.exclude("aborted", ("next", "aborted")), pieces)


def _as_rows(rollout: TensorDictBase) -> TensorDictBase:
    """Return a rollout ``[*, T]`` as ``[B, T]``."""
    return rollout if rollout.ndim == 2 else rollout.reshape(-1, rollout.shape[-1])


def join(batches: Sequence[TensorDictBase]) -> TensorDict:
    """Concatenate right-padded batches ``[E_i, L_i]``, padded to the longest."""
    longest = max(batch.shape[1] for batch in batches)
    padded = [pad(batch, [0, 0, 0, longest - batch.shape[1]]) for batch in batches]
    return torch.cat(padded)
