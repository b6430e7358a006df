"""The laws of hindsight relabelling as a checker for any relabeller, in the manner of
`check_env_specs`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from yamame.goals import GOAL_TOLERANCE, advance, num_goals, show
from yamame.replay.hindsight import RelabelKeys


class _Trajectories(NamedTuple):
    """What an instruction pays along given trajectories, found by stepping through them."""

    instruction: Tensor
    """``[B, K, d]``."""
    active: Tensor
    """``[B, L]`` goals completed by then."""
    arrived: Tensor
    """``[B, L]`` bool, a goal was completed on arrival."""
    end: Tensor
    """``[B, 1]`` the timestep at which the last goal was completed, L if it never was."""
    mask: Tensor
    """``[B, L]`` real timesteps, none after ``end``."""


def check_relabeller(
    relabel: Callable[[TensorDictBase], TensorDictBase],
    batch: TensorDictBase,
    *,
    num_draws: int = 4,
    identity: bool = False,
    shortens: bool = False,
    keys: RelabelKeys | None = None,
) -> None:
    """Checks that a relabeller keeps the laws of hindsight relabelling on a batch of whole
    trajectories.

    Every new instruction is replayed one step at a time with `yamame.goals.advance`, and the output
    must be what an environment would have emitted under it. Instructions are read from the first
    timestep of the output, so future goals must not be hidden.

    Args:
        relabel: From a batch to the relabelled batch.
        batch: ``[B, L]`` right-padded trajectories of an environment with goals, as replay returns
            them.
        num_draws: How often to relabel.
        identity: Demand that nothing changes at all.
        shortens: The relabeller may drop goals of an instruction, so even trajectories that
            succeeded may change.
        keys: Names of the entries.

    Raises:
        AssertionError: With a sentence on the law that is broken, and where.
    """
    keys = RelabelKeys() if keys is None else keys
    before = batch.clone()
    given = _step_through(batch.get(keys.goal)[:, 0], batch, keys)
    for _ in range(num_draws):
        out = relabel(batch)
        _same_batch(batch, before, "the relabeller must not change its input")
        if identity:
            _same_batch(out, batch, "nothing may change")
            continue
        _check_structure(out, batch, keys)
        new = _step_through(out.get(keys.goal)[:, 0], batch, keys)
        _check_instruction(new, given, batch, shortens, keys)
        _check_rewritten(out, new, batch, keys)
        _check_untouched(out, new, batch, keys)
        same = _unchanged(new, given)
        law = "a trajectory that keeps its instruction must stay as it was"
        _same_batch(out[same], batch[same][:, : out.shape[1]], law)


def _step_through(instruction: Tensor, batch: TensorDictBase, keys: RelabelKeys) -> _Trajectories:
    achieved, achieved_mask = batch.get(keys.achieved), batch.get(keys.achieved_mask)
    mask = _flat(batch, keys.mask)
    num_steps = mask.shape[1]
    active = torch.zeros_like(mask, dtype=torch.int64)
    arrived = torch.zeros_like(mask)
    for t in range(1, num_steps):
        after, reward = advance(instruction, active[:, t - 1], achieved[:, t], achieved_mask[:, t])
        arrived[:, t] = (reward > 0) & mask[:, t]
        active[:, t] = torch.where(mask[:, t], after, active[:, t - 1])
    unfinished = active < num_goals(instruction).unsqueeze(-1)
    length = mask.sum(-1, keepdim=True)
    end = unfinished.sum(-1, keepdim=True)
    end = torch.where((end < length) & (end > 0), end, num_steps)
    step = torch.arange(num_steps, device=mask.device)
    return _Trajectories(instruction, active, arrived, end, mask & (step <= end))


def _check_structure(out: TensorDictBase, batch: TensorDictBase, keys: RelabelKeys) -> None:
    names = set(batch.keys(True, True))
    _law(
        set(out.keys(True, True)) == names,
        "the output must hold the keys of the input, and no others",
    )
    same_number = out.ndim == 2 and out.shape[0] == batch.shape[0]
    _law(same_number, "the output must hold as many sequences as the input")
    _law(out.shape[1] <= batch.shape[1], "sequences must not become longer")
    for name in names:
        same = out.get(name).dtype == batch.get(name).dtype
        same &= out.get(name).shape[2:] == batch.get(name).shape[2:]
        _law(same, f"{name!r} must keep its dtype and the shape of an item")
    mask = _flat(out, keys.mask)
    _law(bool((mask[:, 1:] <= mask[:, :-1]).all()), "no real step may follow padding")


def _check_instruction(
    new: _Trajectories,
    given: _Trajectories,
    batch: TensorDictBase,
    shortens: bool,
    keys: RelabelKeys,
) -> None:
    achieved = batch.get(keys.achieved)[:, 1:]
    real = batch.get(keys.achieved_mask)[:, 1:] & _flat(batch, keys.mask)[:, 1:, None]
    known = (new.instruction == given.instruction).all(-1)
    near = (
        achieved.flatten(1, 2).unsqueeze(1) - new.instruction.unsqueeze(2)
    ).abs() < GOAL_TOLERANCE
    known |= (near.all(-1) & real.flatten(1, 2).unsqueeze(1)).any(-1)
    used = torch.arange(known.shape[1], device=known.device) < num_goals(new.instruction).unsqueeze(
        -1
    )
    _same(
        known | ~used,
        torch.ones_like(known),
        "a new goal must be an old one, or achieved after the start",
    )
    lengths, old_lengths = num_goals(new.instruction), num_goals(given.instruction)
    completed, old_completed = new.arrived.sum(-1), given.arrived.sum(-1)
    if shortens:
        _law(bool((lengths <= old_lengths).all()), "an instruction must not gain goals")
        enough = completed >= torch.minimum(old_completed, lengths)
    else:
        _same(lengths, old_lengths, "an instruction must keep its number of goals")
        changed = ~_unchanged(new, given)
        enough = completed >= old_completed + changed
        succeeded = given.end.squeeze(-1) < given.mask.shape[1]
        _same(
            changed & succeeded,
            torch.zeros_like(changed),
            "whoever succeeded must keep the instruction",
        )
    _same(
        enough,
        torch.ones_like(enough),
        "a new instruction must be carried out further than the old one",
    )


def _check_rewritten(
    out: TensorDictBase, new: _Trajectories, batch: TensorDictBase, keys: RelabelKeys
) -> None:
    length = out.shape[1]
    _law(
        not bool(new.mask[:, length:].any()),
        "the output must not be shorter than its longest trajectory",
    )
    real = new.mask[:, :length]
    _same(
        _flat(out, keys.mask),
        real,
        "the mask must end where the last goal is completed, and only there",
    )
    goal = show(new.instruction.unsqueeze(1), new.active)[:, :length]
    _same(
        out.get(keys.goal),
        goal,
        "goals must show as completed from the step that completes them",
        real,
    )
    arrived = new.arrived[:, :length]
    leaving = torch.cat([arrived[:, 1:] & real[:, 1:], torch.zeros_like(arrived[:, :1])], 1)
    reward = _flat(out, keys.reward)
    message = "a reward must be 1 where the transition completes a goal, else 0"
    _same(reward, leaving.to(reward.dtype), message)
    prev_reward = out.get(keys.prev_reward, None)
    if prev_reward is not None:
        shifted = torch.cat([torch.zeros_like(reward[:, :1]), reward[:, :-1]], 1)
        message = "the previous reward must be the reward of the transition before"
        _same(prev_reward.reshape(reward.shape), shifted, message, real)
    step = torch.arange(length, device=real.device)
    complete = new.end < new.mask.shape[1]
    finish = complete & (step == new.end - 1)
    terminated = torch.where(complete, finish, _flat(batch, keys.terminated)[:, :length])
    message = "terminated must be True once, where the last goal is completed, else as it was"
    _same(_flat(out, keys.terminated), terminated, message)
    if out.get(keys.success, None) is not None:
        _same(
            _flat(out, keys.success),
            finish,
            "success must be True where the last goal is completed",
        )
    if out.get(keys.done, None) is not None:
        ends = _flat(out, keys.terminated)
        if out.get(keys.truncated, None) is not None:
            ends = ends | _flat(out, keys.truncated)
        _same(_flat(out, keys.done), ends, "done must be terminated or truncated")


def _check_untouched(
    out: TensorDictBase, new: _Trajectories, batch: TensorDictBase, keys: RelabelKeys
) -> None:
    """All other entries are as they were, but zero where the trajectory was cut off."""
    length = out.shape[1]
    was_real = _flat(batch, keys.mask)[:, :length]
    step = torch.arange(length, device=was_real.device)
    rewritten = {keys.goal, keys.mask, keys.prev_reward}
    rewritten |= {keys.reward, keys.terminated, keys.done, keys.success}
    for name in batch.keys(True, True):
        value, old = out.get(name), batch.get(name)[:, :length]
        leaves = name == keys.action or (isinstance(name, tuple) and name[0] == "next")
        cut = was_real & ((step >= new.end) if leaves else (step > new.end))
        message = f"{name!r} must be zero where the trajectory was cut off"
        _same(value, torch.zeros_like(value), message, cut)
        if name not in rewritten:
            _same(value, old, f"{name!r} must stay as it was", was_real & ~cut)


def _unchanged(new: _Trajectories, given: _Trajectories) -> Tensor:
    return (new.instruction == given.instruction).flatten(1).all(-1)


def _same_batch(got: TensorDictBase, want: TensorDictBase, law: str) -> None:
    names = set(want.keys(True, True))
    _law(
        set(got.keys(True, True)) == names and got.shape == want.shape,
        f"{law}: keys or shape differ",
    )
    for name in names:
        _law(torch.equal(got.get(name), want.get(name)), f"{law}: {name!r} differs")


def _same(got: Tensor, want: Tensor, law: str, where: Tensor | None = None) -> None:
    wrong = got != want
    if where is not None:
        wrong &= where.reshape(*where.shape, *[1] * (wrong.ndim - where.ndim))
    if bool(wrong.any()):
        index = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{law}: at {index} expected {want[index].item()}, got {got[index].item()}"
        )


def _law(holds: bool, law: str) -> None:
    if not holds:
        raise AssertionError(law)


def _flat(batch: TensorDictBase, key: NestedKey) -> Tensor:
    return batch.get(key).reshape(batch.shape)
