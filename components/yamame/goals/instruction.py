"""Instructions: ordered lists of goals, how they are shown and when they are completed.

An instruction is a float tensor ``[*, K, d]``: ``K`` slots of one goal each, real goals first,
unused slots filled with `GOAL_PAD`. At every step the *active* goal is the first one that is not
yet completed. It completes when one of the goals achieved on arrival at that step equals it; at
most one goal completes per step, each pays a reward of 1. Whatever holds at step 0 was not achieved
by the agent and never counts.

Environments pay rewards with `advance` (one step) and hindsight relabelling recomputes them with
`completion_times` (whole trajectories), which agree at every step.

Source: AMAGO, arXiv 2310.09971, section 4 (instructions and hindsight relabelling).
"""

import torch
from torch import Tensor

from yamame.keys import GOAL_COMPLETED, GOAL_PAD, GOAL_TOLERANCE


def num_goals(instruction: Tensor) -> Tensor:
    """Counts the goals of an instruction: ``[*, K, d] -> [*]`` int64.

    >>> num_goals(torch.tensor([[2.0, 1.0], [GOAL_PAD, GOAL_PAD]]))
    tensor(1)
    """
    return (instruction != GOAL_PAD).any(-1).sum(-1)


def holds(
    goal: Tensor, achieved: Tensor, achieved_mask: Tensor, *, radius: float | None = None
) -> Tensor:
    """Whether any achieved goal equals ``goal``, or lies near it.

    Args:
        goal: ``[*, d]``.
        achieved: ``[*, M, d]``.
        achieved_mask: ``[*, M]`` bool, which of the M slots hold an achieved goal.
        radius: Largest Euclidean distance at which a goal is reached; None: every coordinate must
            be the same.

    Returns:
        ``[*]`` bool. Leading dimensions broadcast.
    """
    if radius is None:
        same = ((achieved - goal.unsqueeze(-2)).abs() < GOAL_TOLERANCE).all(-1)
    else:  # in double precision, so that no two places compute another verdict
        same = (achieved.double() - goal.unsqueeze(-2).double()).square().sum(-1) <= radius**2
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
        The new ``active`` and the reward ``[*]`` float32 (1 where the active goal was completed,
        else 0).

    >>> instruction = torch.tensor([[3.0], [5.0]])
    >>> advance(instruction, torch.tensor(0), torch.tensor([[3.0]]), torch.tensor([True]))
    (tensor(1), tensor(1.))
    """
    last = instruction.shape[-2] - 1
    index = active.clamp(max=last)[..., None, None].expand(*active.shape, 1, instruction.shape[-1])
    goal = instruction.gather(-2, index).squeeze(-2)
    done = holds(goal, achieved, achieved_mask) & (active < num_goals(instruction))
    return active + done, done.to(torch.float32)


def completion_times(
    instruction: Tensor,
    achieved: Tensor,
    achieved_mask: Tensor,
    mask: Tensor,
    *,
    radius: float | None = None,
) -> Tensor:
    """When each goal of an instruction is completed along whole trajectories.

    Args:
        instruction: ``[B, K, d]``.
        achieved: ``[B, L, M, d]``, goals that hold at each timestep.
        achieved_mask: ``[B, L, M]`` bool.
        mask: ``[B, L]`` bool, real timesteps.
        radius: As for `holds`.

    Returns:
        ``[B, K]`` int64: the timestep (1 or later) at which each goal was completed, L where it
        never was. Timesteps increase strictly over completed goals.

    >>> position = torch.tensor([[[[0.0]], [[5.0]], [[3.0]], [[5.0]]]])
    >>> real = torch.ones(1, 4, dtype=torch.bool)
    >>> completion_times(torch.tensor([[[3.0], [5.0]]]), position, real.unsqueeze(-1), real)
    tensor([[2, 3]])
    """
    num_steps = mask.shape[1]
    achieved_mask = achieved_mask & mask.unsqueeze(-1)
    step = torch.arange(num_steps, device=mask.device)
    time = step.new_zeros(len(mask), 1)  # what holds at step 0 never counts
    times = []
    for goal in instruction.unbind(1):
        reached = holds(goal.unsqueeze(1), achieved, achieved_mask, radius=radius) & (step > time)
        time = torch.where(reached, step, num_steps).amin(1, keepdim=True)
        times.append(time)
    slot = torch.arange(instruction.shape[1], device=mask.device)
    is_goal = slot < num_goals(instruction).unsqueeze(-1)
    return torch.where(is_goal, torch.cat(times, 1), num_steps)


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
            active.clamp(max=goal.shape[-2] - 1)
            .unsqueeze(-1)
            .expand(*goal.shape[:-2], 1, goal.shape[-1])
        )
        first = torch.where(
            active.unsqueeze(-1) < goal.shape[-2], goal.gather(-2, source), GOAL_PAD
        )
        return torch.where((slot == 0).unsqueeze(-1), first, GOAL_PAD)
    return torch.where((slot <= active).unsqueeze(-1), goal, GOAL_PAD)
