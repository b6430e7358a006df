"""Batches of goal-conditioned trajectories without an environment, to try relabellers and losses
on.
"""

import torch
from tensordict import TensorDict
from torch import Tensor

from yamame.goals import GOAL_PAD, completion_times, num_goals, show


def goal_trajectories(
    instruction: Tensor, achieved: Tensor, achieved_mask: Tensor, mask: Tensor, *, seed: int = 0
) -> TensorDict:
    """What replay would return had an environment emitted these achieved goals under these
    instructions.

    A trajectory ends where its last goal is completed (terminated), else with its mask: terminated
    or truncated, at random. ``observation``, ``action``, ``prev_action`` and ``("next", "energy")``
    are noise.

    Args:
        instruction: ``[B, K, d]``.
        achieved: ``[B, L, M, d]``.
        achieved_mask: ``[B, L, M]`` bool.
        mask: ``[B, L]`` bool, right-padded, at least two real steps each.
        seed: Of the noise.

    Returns:
        ``[B, L]``, right-padded; timestep t holds what was seen at t and the transition that leaves
        t.
    """
    batch, length = mask.shape
    step = torch.arange(length)
    times = completion_times(instruction, achieved, achieved_mask, mask)
    end = times.gather(1, (num_goals(instruction) - 1).clamp(min=0)[:, None])
    mask = mask & (step <= end)
    last = mask.sum(-1, keepdim=True) - 1
    finish = (step == last - 1) & (end < length)
    stopped = (step == last - 1) & (end >= length)
    arrived = (times[:, None] == step[:, None]).any(-1)
    active = (times[:, None] <= step[:, None]).sum(-1)

    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(batch, length, 8, generator=generator)
    horizon = torch.rand(batch, 1, generator=generator) < 0.5
    terminated, truncated = finish | (stopped & horizon), stopped & ~horizon
    at_step = {
        "observation": noise,
        "goal": show(instruction[:, None], active),
        "achieved": achieved,
        "achieved_mask": achieved_mask,
        "prev_action": noise[..., :4],
        "prev_reward": arrived[..., None].float(),
        "step_index": step[:, None].expand(batch, -1, -1),
        "is_init": (step == 0)[:, None].expand(batch, -1, -1),
        "mask": mask[..., None],
    }
    leaving = {
        "reward": torch.cat([arrived[:, 1:], arrived[:, :1]], 1)[..., None].float(),
        "terminated": terminated[..., None],
        "truncated": truncated[..., None],
        "done": (terminated | truncated)[..., None],
        "success": finish[..., None],
        "energy": noise[..., :1],
    }
    action = torch.randint(1, 5, (batch, length), generator=generator)
    entries = {name: _where(mask, value) for name, value in at_step.items()}
    after = {name: _where(step < last, value) for name, value in leaving.items()}
    return TensorDict(
        {**entries, "action": _where(step < last, action), "next": after},
        batch_size=[batch, length],
    )


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
    """Random `goal_trajectories`: short and long, with and without success, some with an empty
    instruction.

    Args:
        batch: B.
        length: L, at least 2; trajectories have from 2 to L timesteps.
        num_goals: K; instructions have from 0 to K goals.
        num_achieved: M; each slot holds a goal every other time.
        goal_size: d.
        span: Goals are integers from 0 to ``span - 1`` in each coordinate: the fewer, the more are
            completed.
        seed: Of everything.
    """
    generator = torch.Generator().manual_seed(seed)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    instruction = integers(span, batch, num_goals, goal_size).float()
    unused = torch.arange(num_goals) >= integers(num_goals + 1, batch)[:, None]
    instruction = instruction.masked_fill(unused[..., None], GOAL_PAD)
    achieved = integers(span, batch, length, num_achieved, goal_size).float()
    achieved_mask = integers(2, batch, length, num_achieved).bool()
    mask = torch.arange(length) < (integers(length - 1, batch) + 2)[:, None]
    return goal_trajectories(instruction, achieved, achieved_mask, mask, seed=seed)


def _where(mask: Tensor, value: Tensor) -> Tensor:
    return value * mask.reshape(*mask.shape, *[1] * (value.ndim - 2))
