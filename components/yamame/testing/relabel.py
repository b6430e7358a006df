"""Checker of the laws of hindsight relabelling, for any relabeller.

Shapes: B trajectories, L timesteps, K goals of size d in an instruction, M goals that may hold at
once.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from yamame.goals import GOAL_TOLERANCE, advance, num_goals, show
from yamame.replay.hindsight import RelabelKeys


class _Progress(NamedTuple):
    """Progress of given trajectories through an instruction.

    Attributes:
        instruction: ``[B, K, d]``.
        active: ``[B, L]`` int64, number of goals completed so far.
        arrived: ``[B, L]`` bool, timesteps at which a goal is completed.
        end: ``[B, 1]`` int64, timestep at which the last goal is completed; L if it never is.
        mask: ``[B, L]`` bool, real timesteps up to ``end``.
    """

    instruction: Tensor
    active: Tensor
    arrived: Tensor
    end: Tensor
    mask: Tensor

    @property
    def is_completed(self) -> Tensor:
        """Trajectories that complete their last goal, ``[B, 1]`` bool."""
        return self.end < self.mask.shape[1]


def check_relabeller(
    relabel: Callable[[TensorDictBase], TensorDictBase],
    batch: TensorDictBase,
    *,
    num_draws: int = 4,
    identity: bool = False,
    shortens: bool = False,
    keys: RelabelKeys | None = None,
) -> None:
    """Check that a relabeller satisfies the laws of hindsight relabelling on a batch.

    Every new instruction is replayed step by step with `yamame.goals.advance`, and the output must
    equal the batch that an environment would have returned under it. Instructions are read from the
    first timestep of the output, so future goals must not be hidden.

    Args:
        relabel: Function that maps a batch to the relabelled batch.
        batch: ``[B, L]`` right-padded whole trajectories of an environment with goals, as replay
            returns them.
        num_draws: Number of times the batch is relabelled.
        identity: Require that nothing changes.
        shortens: Allow instructions with fewer goals, also for trajectories that succeeded.
        keys: Names of the entries; None for the defaults.

    Raises:
        AssertionError: A law is broken. The message names the law, and the first place where the
            output differs.

    >>> from yamame.replay import Relabel
    >>> from yamame.testing import random_goal_trajectories
    >>> check_relabeller(Relabel("some"), random_goal_trajectories(8))
    """
    keys = RelabelKeys() if keys is None else keys
    before = batch.clone()
    given = _step_through(batch.get(keys.goal)[:, 0], batch, keys)
    for _ in range(num_draws):
        out = relabel(batch)
        _require_same_batch(batch, before, "the relabeller must not change its input")
        if identity:
            _require_same_batch(out, batch, "nothing may change")
            continue
        # The structure comes first: the other checks read entries by name and shape.
        _check_structure(out, batch, keys)
        new = _step_through(out.get(keys.goal)[:, 0], batch, keys)
        _check_instruction(new, given, batch, shortens, keys)
        _check_progress(out, new, keys)
        _check_ends(out, new, batch, keys)
        _check_other_entries(out, new, batch, keys)
        # Padding is compared only here: in rewritten trajectories it may hold anything.
        same = _unchanged(new, given)
        law = "a trajectory that keeps its instruction must stay as it was"
        _require_same_batch(out[same], batch[same][:, : out.shape[1]], law)


def _step_through(instruction: Tensor, batch: TensorDictBase, keys: RelabelKeys) -> _Progress:
    """Follow an instruction ``[B, K, d]`` along the trajectories of a batch ``[B, L]``."""
    achieved = batch.get(keys.achieved)
    achieved_mask = batch.get(keys.achieved_mask)
    mask = _flat(batch, keys.mask)
    length = mask.shape[1]
    active = torch.zeros_like(mask, dtype=torch.int64)
    arrived = torch.zeros_like(mask)
    # Goals that hold at the first timestep never count.
    for t in range(1, length):
        is_real = mask[:, t]
        before = active[:, t - 1]
        after, reward = advance(instruction, before, achieved[:, t], achieved_mask[:, t])
        arrived[:, t] = (reward > 0) & is_real
        active[:, t] = torch.where(is_real, after, before)

    is_unfinished = active < num_goals(instruction).unsqueeze(-1)
    # The number of unfinished timesteps is the index of the first finished one.
    end = is_unfinished.sum(-1, keepdim=True)
    num_real = mask.sum(-1, keepdim=True)
    # Without goals, a trajectory is finished from the start and ends with its mask.
    is_completed = (end < num_real) & (end > 0)
    end = torch.where(is_completed, end, length)
    step = torch.arange(length, device=mask.device)
    return _Progress(instruction, active, arrived, end, mask & (step <= end))


def _check_structure(out: TensorDictBase, batch: TensorDictBase, keys: RelabelKeys) -> None:
    """Check keys, shapes and dtypes, and that the output is right-padded."""
    names = set(batch.keys(True, True))
    has_names = set(out.keys(True, True)) == names
    _require(has_names, "the output must hold the keys of the input, and no others")
    has_rows = out.ndim == 2 and out.shape[0] == batch.shape[0]
    _require(has_rows, "the output must hold as many sequences as the input")
    _require(out.shape[1] <= batch.shape[1], "sequences must not become longer")

    for name in names:
        value = out.get(name)
        old = batch.get(name)
        is_same = value.dtype == old.dtype and value.shape[2:] == old.shape[2:]
        _require(is_same, f"{name!r} must keep its dtype and the shape of an item")

    mask = _flat(out, keys.mask)
    is_padded_right = bool((mask[:, 1:] <= mask[:, :-1]).all())
    _require(is_padded_right, "no real timestep may follow padding")


def _check_instruction(
    new: _Progress,
    given: _Progress,
    batch: TensorDictBase,
    shortens: bool,
    keys: RelabelKeys,
) -> None:
    """Check that new instructions consist of possible goals, and are completed further."""
    # Goals achieved at the first timestep may not be used: an environment never rewards them.
    achieved = batch.get(keys.achieved)[:, 1:].flatten(1, 2)  # [B, (L - 1) M, d]
    is_real = _flat(batch, keys.mask)[:, 1:]
    is_achieved = batch.get(keys.achieved_mask)[:, 1:] & is_real.unsqueeze(-1)
    difference = achieved.unsqueeze(1) - new.instruction.unsqueeze(2)  # [B, K, (L - 1) M, d]
    is_near = (difference.abs() < GOAL_TOLERANCE).all(-1)
    was_achieved = (is_near & is_achieved.flatten(1, 2).unsqueeze(1)).any(-1)  # [B, K]
    was_given = (new.instruction == given.instruction).all(-1)

    num_new = num_goals(new.instruction)
    num_given = num_goals(given.instruction)
    slot = torch.arange(new.instruction.shape[1], device=num_new.device)
    is_unused = slot >= num_new.unsqueeze(-1)
    law = "a new goal must be an old one, or achieved after the start"
    _require_everywhere(was_achieved | was_given | is_unused, law)

    completed = new.arrived.sum(-1)
    previously = given.arrived.sum(-1)
    if shortens:
        law = "an instruction must not gain goals"
        _require_everywhere(num_new <= num_given, law)
        # Dropped goals cannot be completed any more.
        is_further = completed >= torch.minimum(previously, num_new)
    else:
        _require_equal(num_new, num_given, "an instruction must keep its number of goals")
        is_changed = ~_unchanged(new, given)
        is_further = completed >= previously + is_changed
        has_succeeded = given.is_completed.squeeze(-1)
        law = "a trajectory that succeeded must keep its instruction"
        _require_everywhere(~(is_changed & has_succeeded), law)
    _require_everywhere(is_further, "a new instruction must be completed further than the old one")


def _check_progress(out: TensorDictBase, new: _Progress, keys: RelabelKeys) -> None:
    """Check mask, goals and rewards."""
    length = out.shape[1]
    is_cut = bool(new.mask[:, length:].any())
    _require(not is_cut, "the output must not be shorter than its longest trajectory")
    is_real = new.mask[:, :length]
    law = "the mask must end where the last goal is completed, and only there"
    _require_equal(_flat(out, keys.mask), is_real, law)

    goal = show(new.instruction.unsqueeze(1), new.active)[:, :length]
    law = "goals must show as completed from the timestep that completes them"
    _require_equal(out.get(keys.goal), goal, law, is_real)

    # The transition that leaves t is rewarded for the goal completed at t + 1.
    arrived = new.arrived[:, :length] & is_real
    expected = torch.zeros_like(arrived)
    expected[:, :-1] = arrived[:, 1:]
    reward = _flat(out, keys.reward)
    law = "a reward must be 1 where the transition completes a goal, else 0"
    _require_equal(reward, expected.to(reward.dtype), law)

    prev_reward = out.get(keys.prev_reward, None)
    if prev_reward is not None:
        shifted = torch.zeros_like(reward)
        shifted[:, 1:] = reward[:, :-1]
        law = "the previous reward must be the reward of the transition before"
        _require_equal(prev_reward.reshape(reward.shape), shifted, law, is_real)


def _check_ends(
    out: TensorDictBase, new: _Progress, batch: TensorDictBase, keys: RelabelKeys
) -> None:
    """Check the flags of the ends of episodes; ``success``, ``done``, ``truncated`` if present."""
    length = out.shape[1]
    step = torch.arange(length, device=new.end.device)
    is_finish = new.is_completed & (step == new.end - 1)
    terminated = _flat(out, keys.terminated)
    before = _flat(batch, keys.terminated)[:, :length]
    expected = torch.where(new.is_completed, is_finish, before)
    law = "terminated must be True once, where the last goal is completed, else as it was"
    _require_equal(terminated, expected, law)

    if out.get(keys.success, None) is not None:
        law = "success must be True where the last goal is completed"
        _require_equal(_flat(out, keys.success), is_finish, law)
    if out.get(keys.done, None) is not None:
        ends = terminated
        if out.get(keys.truncated, None) is not None:
            ends = ends | _flat(out, keys.truncated)
        law = "done must be terminated or truncated"
        _require_equal(_flat(out, keys.done), ends, law)


def _check_other_entries(
    out: TensorDictBase, new: _Progress, batch: TensorDictBase, keys: RelabelKeys
) -> None:
    """Check that all entries are zero beyond the new end, and others unchanged before it."""
    length = out.shape[1]
    was_real = _flat(batch, keys.mask)[:, :length]
    step = torch.arange(length, device=was_real.device)
    rewritten = {keys.goal, keys.mask, keys.prev_reward}
    rewritten |= {keys.reward, keys.terminated, keys.done, keys.success}
    for name in batch.keys(True, True):
        value = out.get(name)
        old = batch.get(name)[:, :length]
        # No transition leaves the last timestep, so these entries are cut one timestep earlier.
        is_of_transition = name == keys.action or (isinstance(name, tuple) and name[0] == "next")
        is_beyond = step >= new.end if is_of_transition else step > new.end
        is_cut = was_real & is_beyond
        law = f"{name!r} must be zero where the trajectory was cut off"
        _require_equal(value, torch.zeros_like(value), law, is_cut)
        if name not in rewritten:
            _require_equal(value, old, f"{name!r} must stay as it was", was_real & ~is_cut)


def _unchanged(new: _Progress, given: _Progress) -> Tensor:
    """Return the trajectories that keep their instruction, ``[B]`` bool."""
    is_same = new.instruction == given.instruction
    return is_same.flatten(1).all(-1)


def _require_same_batch(actual: TensorDictBase, expected: TensorDictBase, law: str) -> None:
    names = set(expected.keys(True, True))
    has_names = set(actual.keys(True, True)) == names
    has_shape = actual.shape == expected.shape
    _require(has_names and has_shape, f"{law}: keys or shape differ")
    for name in names:
        is_equal = torch.equal(actual.get(name), expected.get(name))
        _require(is_equal, f"{law}: {name!r} differs")


def _require_equal(actual: Tensor, expected: Tensor, law: str, where: Tensor | None = None) -> None:
    """Raise, with the first difference, unless tensors are equal where ``where [B, L]`` is True."""
    is_wrong = actual != expected
    if where is not None:
        trailing = [1] * (is_wrong.ndim - where.ndim)
        is_wrong &= where.reshape(*where.shape, *trailing)
    if not bool(is_wrong.any()):
        return
    index = tuple(is_wrong.nonzero()[0].tolist())
    expected_value = expected[index].item()
    actual_value = actual[index].item()
    raise AssertionError(f"{law}: at {index} expected {expected_value}, got {actual_value}")


def _require_everywhere(holds: Tensor, law: str) -> None:
    """Raise, with the first index that fails, unless a bool tensor is True everywhere."""
    if not bool(holds.all()):
        index = tuple((~holds).nonzero()[0].tolist())
        raise AssertionError(f"{law}: violated at {index}")


def _require(holds: bool, law: str) -> None:
    if not holds:
        raise AssertionError(law)


def _flat(batch: TensorDictBase, key: NestedKey) -> Tensor:
    """Return an entry with one number per timestep as ``[B, L]``."""
    return batch.get(key).reshape(batch.shape)
