"""Instructions: ordered lists of goals, how they are shown and when they are completed.

An instruction is a float tensor ``[*, K, d]``: ``K`` slots of one goal each, real goals first, unused slots
filled with `GOAL_PAD`. At every step the *active* goal is the first one that is not yet completed. It completes
when one of the goals achieved on arrival at that step equals it; at most one goal completes per step, each pays
a reward of 1. Whatever holds at step 0 was not achieved by the agent and never counts.

Environments pay rewards with `advance` (one step) and hindsight relabelling recomputes them with
`completion_times` (whole trajectories), which agree at every step.

Source: AMAGO, arXiv 2310.09971, section 4 (instructions and hindsight relabelling).
"""

import functools

import torch
from torch import Tensor

GOAL_PAD = -1.0
"""Value of every coordinate of an unused goal slot."""
GOAL_COMPLETED = -3.0
"""Value of every coordinate of a goal slot that the agent has completed."""
GOAL_TOLERANCE = 1e-3
"""Largest difference in any coordinate at which two goals are the same goal."""


def num_goals(instruction: Tensor) -> Tensor:
    """Counts the goals of an instruction: ``[*, K, d] -> [*]`` int64.

    >>> num_goals(torch.tensor([[2.0, 1.0], [GOAL_PAD, GOAL_PAD]]))
    tensor(1)
    """
    return (instruction != GOAL_PAD).any(-1).sum(-1)


def holds(goal: Tensor, achieved: Tensor, achieved_mask: Tensor) -> Tensor:
    """Whether any achieved goal equals ``goal``.

    Args:
        goal: ``[*, d]``.
        achieved: ``[*, M, d]``.
        achieved_mask: ``[*, M]`` bool, which of the M slots hold an achieved goal.

    Returns:
        ``[*]`` bool. Leading dimensions broadcast.
    """
    same = ((achieved - goal.unsqueeze(-2)).abs() < GOAL_TOLERANCE).all(-1)
    return (same & achieved_mask).any(-1)


def advance(
    instruction: Tensor, active: Tensor, achieved: Tensor, achieved_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Moves the active goal on by one environment step.

    Args:
        instruction: ``[*, K, d]``.
        active: ``[*]`` int64, number of goals completed before this step.
        achieved: ``[*, M, d]``, goals that hold on arrival.
        achieved_mask: ``[*, M]`` bool.

    Returns:
        The new ``active`` and the reward ``[*]`` float32 (1 where the active goal was completed, else 0).

    >>> instruction = torch.tensor([[3.0], [5.0]])
    >>> advance(instruction, torch.tensor(0), torch.tensor([[3.0]]), torch.tensor([True]))
    (tensor(1), tensor(1.))
    """
    last = instruction.shape[-2] - 1
    index = active.clamp(max=last)[..., None, None].expand(*active.shape, 1, instruction.shape[-1])
    goal = instruction.gather(-2, index).squeeze(-2)
    done = holds(goal, achieved, achieved_mask) & (active < num_goals(instruction))
    return active + done, done.to(torch.float32)


def show(instruction: Tensor, active: Tensor) -> Tensor:
    """The instruction as the agent sees it: completed goals replaced by `GOAL_COMPLETED`.

    Args:
        instruction: ``[*, K, d]``.
        active: ``[*]`` int64, number of goals completed so far.
    """
    slot = torch.arange(instruction.shape[-2], device=instruction.device)
    completed = (slot < active.unsqueeze(-1)).unsqueeze(-1)
    return torch.where(completed, GOAL_COMPLETED, instruction)


def view(goal: Tensor, *, hide_future_goals: bool = False, single_goal: bool = False) -> Tensor:
    """Restricts what of a shown instruction ``[*, K, d]`` may be seen.

    Args:
        goal: An instruction as returned by `show`.
        hide_future_goals: Goals after the active one appear as unused slots.
        single_goal: Only the active goal remains, in the first slot.
    """
    if not (hide_future_goals or single_goal):
        return goal
    completed = (goal == GOAL_COMPLETED).all(-1)
    active = completed.sum(-1, keepdim=True)
    slot = torch.arange(goal.shape[-2], device=goal.device)
    if single_goal:
        source = (
            active.clamp(max=goal.shape[-2] - 1).unsqueeze(-1).expand(*goal.shape[:-2], 1, goal.shape[-1])
        )
        first = torch.where(active.unsqueeze(-1) < goal.shape[-2], goal.gather(-2, source), GOAL_PAD)
        return torch.where((slot == 0).unsqueeze(-1), first, GOAL_PAD)
    return torch.where((slot <= active).unsqueeze(-1), goal, GOAL_PAD)


def completion_times(instruction: Tensor, achieved: Tensor, achieved_mask: Tensor, mask: Tensor) -> Tensor:
    """When each goal of an instruction is completed along whole trajectories.

    Args:
        instruction: ``[B, K, d]``.
        achieved: ``[B, L, M, d]``, goals that hold at each timestep.
        achieved_mask: ``[B, L, M]`` bool.
        mask: ``[B, L]`` bool, real timesteps.

    Returns:
        ``[B, K]`` int64: the timestep (1 or later) at which each goal was completed, L where it never was.
        Timesteps increase strictly over completed goals.
    """
    length = mask.shape[1]
    # As float32, which holds L exactly: torch compares several times faster without a bool tensor in between.
    early = torch.arange(-length, 0, device=mask.device, dtype=torch.float32)  # t - L
    early[0] = 0  # what holds at step 0 never counts
    near = _distances(instruction, achieved, achieved_mask & mask.unsqueeze(-1)).lt_(GOAL_TOLERANCE)
    hits = near.to(torch.float32).mul_(early)
    times = [hits[0].amin(-1)]
    for hit in hits[1:]:
        later = hit.gt(times[-1].unsqueeze(-1))
        times.append((hit * later).amin(-1))
    return torch.stack(times, -1).to(torch.int64) + length


def _distances(instruction: Tensor, achieved: Tensor, valid: Tensor) -> Tensor:
    """Largest difference in any coordinate between each goal and the nearest that is achieved: ``[K, B, L]``.

    This is `holds` before the comparison, laid out so that the last dimension is long: operations along the
    short ones of ``achieved`` take several times as long. NaN and infinity are far away.
    """
    places = achieved.permute(3, 2, 0, 1).clone(memory_format=torch.contiguous_format)
    places[0].masked_fill_(~valid.permute(2, 0, 1), torch.inf)
    if len(places[0]) > 1:  # where there is another, a NaN must not hide it
        places.nan_to_num_(torch.inf, torch.inf, -torch.inf)
    used = torch.arange(instruction.shape[1], device=places.device) < num_goals(instruction).unsqueeze(-1)
    goals = instruction.masked_fill(~used.unsqueeze(-1), torch.nan).permute(2, 1, 0)[:, :, None, :, None]
    pairs = zip(places, goals, strict=True)
    distances = functools.reduce(torch.maximum, [(theirs - ours).abs_() for theirs, ours in pairs])
    return functools.reduce(torch.minimum, distances.unbind(1))
