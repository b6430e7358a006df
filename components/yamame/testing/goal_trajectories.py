"""Goal-conditioned trajectories without an environment, to test relabellers and losses.

Shapes: B trajectories, L timesteps, K goals of size d in an instruction, M goals that may hold at
once.
"""

import torch
from tensordict import TensorDict
from torch import Tensor

from yamame.goals import GOAL_PAD, completion_times, num_goals, show


def goal_trajectories(
    instruction: Tensor, achieved: Tensor, achieved_mask: Tensor, mask: Tensor, *, seed: int = 0
) -> TensorDict:
    """Return trajectories as replay would, for given instructions and achieved goals.

    A trajectory that completes its last goal terminates there. Any other ends with its mask,
    terminated or truncated at random. ``observation``, ``action``, ``prev_action`` and
    ``("next", "energy")`` are random.

    Args:
        instruction: ``[B, K, d]``.
        achieved: ``[B, L, M, d]``.
        achieved_mask: ``[B, L, M]`` bool.
        mask: ``[B, L]`` bool, right-padded, at least two real timesteps each.
        seed: Seed of the random entries.

    Returns:
        ``[B, L]``, right-padded. Timestep t holds the observation at t and the transition that
        leaves t.
    """
    num_trajectories, length = mask.shape
    step = torch.arange(length)
    times = completion_times(instruction, achieved, achieved_mask, mask)  # [B, K]
    # The first slot of an empty instruction is never completed.
    last_goal = (num_goals(instruction) - 1).clamp(min=0)
    end = times.gather(1, last_goal.unsqueeze(1))  # [B, 1]; L if the last goal is not completed
    mask = mask & (step <= end)
    last = mask.sum(-1, keepdim=True) - 1

    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(num_trajectories, length, 8, generator=generator)
    terminates = torch.rand(num_trajectories, 1, generator=generator) < 0.5
    action = torch.randint(1, 5, (num_trajectories, length), generator=generator)

    goal_times = times.unsqueeze(1)  # [B, 1, K]
    step_times = step.unsqueeze(1)  # [L, 1]
    arrived = (goal_times == step_times).any(-1)
    active = (goal_times <= step_times).sum(-1)

    trajectories = TensorDict(batch_size=[num_trajectories, length])
    trajectories["observation"] = noise
    trajectories["goal"] = show(instruction.unsqueeze(1), active)
    trajectories["achieved"] = achieved
    trajectories["achieved_mask"] = achieved_mask
    trajectories["prev_action"] = noise[..., :4]
    trajectories["prev_reward"] = arrived.unsqueeze(-1).float()
    trajectories["step_index"] = step_times.expand(num_trajectories, -1, -1)
    trajectories["is_init"] = trajectories["step_index"] == 0
    trajectories["mask"] = mask.unsqueeze(-1)
    _zero_outside(mask, trajectories)

    # The last timestep of a trajectory has no transition.
    has_transition = step < last
    trajectories["action"] = action * has_transition
    outcome = _outcomes(arrived, step == last - 1, end < length, terminates)
    outcome["energy"] = noise[..., :1]
    _zero_outside(has_transition, outcome)
    trajectories["next"] = outcome
    return trajectories


def _outcomes(
    arrived: Tensor, is_final: Tensor, is_completed: Tensor, terminates: Tensor
) -> TensorDict:
    """Return the entries under ``next`` that the goals determine.

    Args:
        arrived: ``[B, L]`` bool, timesteps at which a goal is completed.
        is_final: ``[B, L]`` bool, the last transition of each trajectory.
        is_completed: ``[B, 1]`` bool, trajectories that complete their last goal.
        terminates: ``[B, 1]`` bool, trajectories that terminate without completing it.
    """
    success = is_final & is_completed
    terminated = is_final & (is_completed | terminates)
    truncated = is_final & ~is_completed & ~terminates
    # A transition is rewarded for the goal completed on its arrival. No goal is completed at the
    # first timestep, so nothing wraps around.
    reward = arrived.roll(-1, dims=1)

    outcome = TensorDict(batch_size=arrived.shape)
    outcome["reward"] = reward.unsqueeze(-1).float()
    outcome["terminated"] = terminated.unsqueeze(-1)
    outcome["truncated"] = truncated.unsqueeze(-1)
    outcome["done"] = (terminated | truncated).unsqueeze(-1)
    outcome["success"] = success.unsqueeze(-1)
    return outcome


def random_goal_trajectories(
    batch: int = 64,
    length: int = 12,
    *,
    num_goals: int = 3,
    num_achieved: int = 2,
    goal_size: int = 1,
    span: int = 6,
    seed: int = 0,
) -> TensorDict:
    """Return random `goal_trajectories`, with and without success, of any length up to L.

    Args:
        batch: Number B of trajectories.
        length: Number L of timesteps, at least 2; trajectories have from 2 to L.
        num_goals: Number K of slots for goals; instructions have from 0 to K goals.
        num_achieved: Number M of slots for achieved goals; half of them are empty.
        goal_size: Size d of a goal.
        span: Goals are integers from 0 to ``span - 1`` in each coordinate. The smaller, the more
            goals are completed.
        seed: Seed of all entries.
    """
    generator = torch.Generator().manual_seed(seed)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    instruction = integers(span, batch, num_goals, goal_size).float()
    goals_used = integers(num_goals + 1, batch).unsqueeze(1)
    is_unused = torch.arange(num_goals) >= goals_used
    instruction = instruction.masked_fill(is_unused.unsqueeze(-1), GOAL_PAD)

    achieved = integers(span, batch, length, num_achieved, goal_size).float()
    achieved_mask = integers(2, batch, length, num_achieved).bool()
    lengths = integers(length - 1, batch) + 2
    mask = torch.arange(length) < lengths.unsqueeze(1)
    return goal_trajectories(instruction, achieved, achieved_mask, mask, seed=seed)


def _zero_outside(mask: Tensor, entries: TensorDict) -> None:
    """Set every entry to zero where ``mask [B, L]`` is False."""
    for name, value in entries.items():
        trailing = [1] * (value.ndim - mask.ndim)
        entries[name] = value * mask.reshape(*mask.shape, *trailing)
