"""The deterministic half of hindsight relabelling: new instructions from given goals, and what follows.

`eligible` says which timesteps may give a goal, `merge` puts given goals into an instruction, `replay`
rewrites a batch of whole right-padded trajectories ``[B, L]`` for new instructions. Row t of a trajectory
holds what was seen at t and the transition that leaves t.

Law: what `replay` returns is what the environment would have emitted had it been given the new instruction
(while the agent acted the same), because environments and relabelling share the semantics of `yamame.goals`.

Source: AMAGO, arXiv 2310.09971, hindsight instruction relabelling.
"""

from dataclasses import dataclass

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from yamame.goals import completion_times, num_goals, show


@dataclass(frozen=True)
class RelabelKeys:
    """Where a batch of trajectories keeps what relabelling reads and rewrites.

    The entries from ``action`` on are rewritten where the batch holds them and not needed otherwise;
    ``is_init`` is only checked: each trajectory must begin with the start of its rollout.
    """

    goal: NestedKey = "goal"
    achieved: NestedKey = "achieved"
    achieved_mask: NestedKey = "achieved_mask"
    mask: NestedKey = "mask"
    reward: NestedKey = ("next", "reward")
    terminated: NestedKey = ("next", "terminated")
    action: NestedKey = "action"
    prev_reward: NestedKey = "prev_reward"
    truncated: NestedKey = ("next", "truncated")
    done: NestedKey = ("next", "done")
    success: NestedKey = ("next", "success")
    is_init: NestedKey = "is_init"

    def needed(self) -> list[NestedKey]:
        """The entries without which a batch cannot be relabelled."""
        return [self.goal, self.achieved, self.achieved_mask, self.mask, self.reward, self.terminated]

    def rewritten(self) -> list[NestedKey]:
        """The entries that relabelling rewrites (it also zeroes every entry in rows that it cuts off)."""
        always: list[NestedKey] = [self.goal, self.mask, self.reward, self.terminated]
        return [*always, self.action, self.prev_reward, self.truncated, self.done, self.success]


def eligible(times: Tensor, achieved_mask: Tensor, mask: Tensor) -> Tensor:
    """Timesteps ``[B, L]`` that may give a synthetic goal.

    These are the real ones after the first, with an achieved goal, at which no goal was completed.

    Args:
        times: ``[B, K]`` completion times, L where never.
        achieved_mask: ``[B, L, M]`` bool.
        mask: ``[B, L]`` bool.
    """
    step = torch.arange(mask.shape[1], device=mask.device)
    completed = (times.unsqueeze(1) == step.unsqueeze(-1)).any(-1)
    return mask & achieved_mask.any(-1) & ~completed & (step > 0)


def merge(
    instruction: Tensor, times: Tensor, drawn_times: Tensor, drawn_goals: Tensor, num_steps: int
) -> Tensor:
    """Writes completed and drawn goals, in order of time, into the first slots; later slots stay as they are.

    No two times are equal: drawn timesteps are distinct, and no goal was completed at any of them.

    Args:
        instruction: ``[B, K, d]``.
        times: ``[B, K]`` int64, when each of its goals was completed; ``num_steps`` where never.
        drawn_times: ``[B, H]`` int64, ``num_steps`` where nothing was drawn.
        drawn_goals: ``[B, H, d]``.
        num_steps: L.
    """
    slots = instruction.shape[1]
    all_times = torch.cat([times, drawn_times], 1)
    order = all_times.argsort(-1)[:, :slots]
    row = torch.arange(len(order), device=order.device).unsqueeze(-1)
    known = torch.cat([instruction, drawn_goals], 1)[row, order]
    count = (all_times < num_steps).sum(-1, keepdim=True)
    first = torch.arange(slots, device=order.device) < count
    return torch.where(first.unsqueeze(-1), known, instruction)


def replay(
    tensordict: TensorDictBase, instruction: Tensor, changed: Tensor, keys: RelabelKeys
) -> TensorDictBase:
    """What the environment would have emitted for other instructions, in a new batch.

    The new batch is trimmed to its longest mask.

    Args:
        tensordict: ``[B, L]`` whole trajectories.
        instruction: ``[B, K, d]``.
        changed: ``[B]`` bool, the trajectories to rewrite.
        keys: Names of the entries.
    """
    achieved, achieved_mask = tensordict.get(keys.achieved), tensordict.get(keys.achieved_mask)
    mask = tensordict.get(keys.mask).reshape(changed.shape[0], -1)
    never = mask.shape[1]
    times = completion_times(instruction, achieved, achieved_mask, mask)
    last = (num_goals(instruction) - 1).clamp(min=0).unsqueeze(-1)
    end = torch.where(changed.unsqueeze(-1), times.gather(-1, last), never)
    step = torch.arange(never, device=mask.device)
    length = int((mask & (step <= end)).any(0).sum())
    out, mask, step = tensordict[:, :length], mask[:, :length], step[:length]
    kept = mask & (step <= end)
    _clear(out, mask & ~kept, mask & (step >= end), keys)

    arrived = (times.unsqueeze(1) == step.unsqueeze(-1)).any(-1)
    active = (times.unsqueeze(1) <= step.unsqueeze(-1)).sum(-1)
    goal = show(instruction.unsqueeze(1), active).masked_fill(~kept[..., None, None], 0.0)
    finish = (step == end - 1) & (end < never)
    terminated = torch.where(end < never, finish, out.get(keys.terminated).reshape(kept.shape))
    truncated = out.get(keys.truncated, None)
    done = terminated if truncated is None else terminated | truncated.reshape(kept.shape)
    reward = torch.cat([arrived[:, 1:], torch.zeros_like(arrived[:, :1])], 1)
    new = {keys.goal: goal, keys.mask: kept, keys.prev_reward: arrived, keys.reward: reward}
    new |= {keys.terminated: terminated, keys.done: done, keys.success: finish}
    for key, value in new.items():
        old = out.get(key, None)
        if old is not None:
            rows = changed.reshape(-1, *[1] * (old.ndim - 1))
            out.set(key, torch.where(rows, value.reshape(old.shape).to(old.dtype), old))
    return out


def _clear(out: TensorDictBase, rows: Tensor, transitions: Tensor, keys: RelabelKeys) -> None:
    """Zeroes what is not rewritten: what is seen in ``rows`` ``[B, L]``, and what leaves ``transitions``."""
    if not bool(rows.any()):
        return
    rewritten = set(keys.rewritten()) - {keys.action, keys.truncated}
    for key, value in list(out.items(include_nested=True, leaves_only=True)):
        if key not in rewritten:
            leaving = key == keys.action or (isinstance(key, tuple) and key[0] == "next")
            where = transitions if leaving else rows
            out.set(key, value.masked_fill(where.reshape(*where.shape, *[1] * (value.ndim - 2)), 0))
