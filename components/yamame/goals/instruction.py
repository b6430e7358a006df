"""Instructions: ordered lists of goals, their completion, and the observation of them.

An instruction is a float tensor ``[*, K, d]``: ``K`` slots of one goal each, real goals first,
unused slots filled with `GOAL_PAD`. At every step the *active* goal is the first one that is not
yet completed. It completes when one of the goals achieved on arrival at that step equals it; at
most one goal completes per step, each pays a reward of 1. Goals that hold at step 0 were not
achieved by the agent and never count.

Environments pay rewards with `advance` (one step) and hindsight relabelling recomputes them with
`completion_times` (whole trajectories), which agree at every step.

Source: AMAGO, arXiv 2310.09971, section 4 (instructions and hindsight relabelling).
"""

import torch
from torch import Tensor

from yamame.keys import GOAL_COMPLETED, GOAL_PAD, GOAL_TOLERANCE


def num_goals(instruction: Tensor) -> Tensor:
    """Count the goals of an instruction: ``[*, K, d] -> [*]`` int64.

    >>> num_goals(torch.tensor([[2.0, 1.0], [GOAL_PAD, GOAL_PAD]]))
    tensor(1)
    """
    is_goal = (instruction != GOAL_PAD).any(-1)
    return is_goal.sum(-1)


def holds(
    goal: Tensor, achieved: Tensor, achieved_mask: Tensor, *, radius: float | None = None
) -> Tensor:
    """Return whether any achieved goal equals ``goal``, or lies near it.

    Args:
        goal: ``[*, d]``.
        achieved: ``[*, M, d]``.
        achieved_mask: ``[*, M]`` bool, slots that hold an achieved goal.
        radius: Largest Euclidean distance at which a goal is reached; None if every coordinate must
            be the same.

    Returns:
        ``[*]`` bool. Leading dimensions broadcast.
    """
    goal = goal.unsqueeze(-2)  # [*, 1, d]
    if radius is None:
        is_near = (achieved - goal).abs() < GOAL_TOLERANCE
        is_same = is_near.all(-1)
    else:
        # Double precision: environment and relabelling must agree at the very radius.
        difference = achieved.double() - goal.double()
        squared_distance = difference.square().sum(-1)
        is_same = squared_distance <= radius**2
    is_achieved = is_same & achieved_mask  # [*, M]
    return is_achieved.any(-1)


def advance(
    instruction: Tensor,
    active: Tensor,
    achieved: Tensor,
    achieved_mask: Tensor,
    *,
    radius: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Advance the active goal by one environment step.

    Args:
        instruction: ``[*, K, d]``.
        active: ``[*]`` int64, number of goals completed before this step.
        achieved: ``[*, M, d]``, goals that hold on arrival.
        achieved_mask: ``[*, M]`` bool, slots that hold an achieved goal.
        radius: Largest distance at which a goal is reached; see `holds`.

    Returns:
        The new ``active`` and the reward ``[*]`` float32 (1 where the active goal was completed,
        else 0).

    >>> instruction = torch.tensor([[3.0], [5.0]])
    >>> advance(instruction, torch.tensor(0), torch.tensor([[3.0]]), torch.tensor([True]))
    (tensor(1), tensor(1.))
    """
    goal = _goal_in(instruction, active)
    is_reached = holds(goal, achieved, achieved_mask, radius=radius)
    is_left = active < num_goals(instruction)
    done = is_reached & is_left
    return active + done, done.to(torch.float32)


def _goal_in(instruction: Tensor, slot: Tensor) -> Tensor:
    """Return the goal in a slot ``[*]`` of ``[*, K, d]``: ``[*, d]``; past the end the last one."""
    num_slots, size = instruction.shape[-2:]
    # Once all goals are completed, the active one is beyond the last slot.
    slot = slot.clamp(max=num_slots - 1)
    index = slot[..., None, None].expand(*slot.shape, 1, size)
    return instruction.gather(-2, index).squeeze(-2)


def completion_times(
    instruction: Tensor,
    achieved: Tensor,
    achieved_mask: Tensor,
    mask: Tensor,
    *,
    radius: float | None = None,
) -> Tensor:
    """Return the timestep at which each goal is completed along whole trajectories.

    Args:
        instruction: ``[B, K, d]``.
        achieved: ``[B, L, M, d]``, goals that hold at each timestep.
        achieved_mask: ``[B, L, M]`` bool.
        mask: ``[B, L]`` bool, real timesteps.
        radius: Largest distance at which a goal is reached; see `holds`.

    Returns:
        ``[B, K]`` int64: a timestep of 1 or later, or L for a goal that was not completed.
        Timesteps increase strictly over completed goals.

    >>> position = torch.tensor([[[[0.0]], [[5.0]], [[3.0]], [[5.0]]]])
    >>> real = torch.ones(1, 4, dtype=torch.bool)
    >>> completion_times(torch.tensor([[[3.0], [5.0]]]), position, real.unsqueeze(-1), real)
    tensor([[2, 3]])
    """
    length = mask.shape[1]
    achieved_mask = achieved_mask & mask.unsqueeze(-1)
    step = torch.arange(length, device=mask.device)
    time = step.new_zeros(len(mask), 1)  # [B, 1]; 0, because goals that hold at step 0 never count
    times = []
    for goal in instruction.unbind(1):
        goal = goal.unsqueeze(1)  # [B, 1, d]
        is_reached = holds(goal, achieved, achieved_mask, radius=radius)  # [B, L]
        # Later than the goal before: at most one goal completes per step.
        is_completed = is_reached & (step > time)
        completed_at = torch.where(is_completed, step, length)
        time = completed_at.amin(1, keepdim=True)
        times.append(time)

    num_slots = instruction.shape[1]
    slot = torch.arange(num_slots, device=mask.device)
    is_goal = slot < num_goals(instruction).unsqueeze(-1)  # [B, K]
    return torch.where(is_goal, torch.cat(times, 1), length)


def show(instruction: Tensor, active: Tensor) -> Tensor:
    """Replace completed goals by `GOAL_COMPLETED`: the instruction as the agent observes it.

    Args:
        instruction: ``[*, K, d]``.
        active: ``[*]`` int64, number of goals completed so far.
    """
    num_slots = instruction.shape[-2]
    slot = torch.arange(num_slots, device=instruction.device)
    is_completed = slot < active.unsqueeze(-1)  # [*, K]
    return torch.where(is_completed.unsqueeze(-1), GOAL_COMPLETED, instruction)


def view(goal: Tensor, *, hide_future_goals: bool = False, single_goal: bool = False) -> Tensor:
    """Hide parts of a shown instruction.

    Args:
        goal: ``[*, K, d]``, an instruction as returned by `show`.
        hide_future_goals: Whether goals after the active one appear as unused slots.
        single_goal: Whether only the active goal remains, in the first slot.
    """
    if not (hide_future_goals or single_goal):
        return goal
    num_slots = goal.shape[-2]
    is_completed = (goal == GOAL_COMPLETED).all(-1)  # [*, K]
    active = is_completed.sum(-1, keepdim=True)  # [*, 1]
    slot = torch.arange(num_slots, device=goal.device)
    if not single_goal:
        is_visible = slot <= active
        return torch.where(is_visible.unsqueeze(-1), goal, GOAL_PAD)

    is_left = active < num_slots
    first = _goal_in(goal, active.squeeze(-1))  # [*, d]
    first = torch.where(is_left, first, GOAL_PAD)
    first = first.unsqueeze(-2)  # [*, 1, d]
    is_first = slot == 0
    return torch.where(is_first.unsqueeze(-1), first, GOAL_PAD)
