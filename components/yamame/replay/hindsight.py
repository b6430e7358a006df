"""The deterministic half of hindsight relabelling: new instructions from given goals, and what follows.

`eligible` says which timesteps may give a goal, `merge` puts given goals into an instruction, `replay`
rewrites a batch of whole right-padded trajectories ``[B, L]`` for new instructions. Row t of a trajectory
holds what was seen at t and the transition that leaves t.

Law: what `replay` returns is what the environment would have emitted had it been given the new instruction
(while the agent acted the same), because environments and relabelling share the semantics of `yamame.goals`.

Source: AMAGO, arXiv 2310.09971, hindsight instruction relabelling.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.utils import unravel_key
from torch import Tensor

from yamame.goals import completion_times, num_goals, show
from yamame.replay.layout import zero


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
    options = mask & achieved_mask.any(-1) & ~_marked(times, mask.shape[1])
    options[:, 0] = False
    return options


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
    mask = tensordict.get(keys.mask).reshape(len(changed), -1)
    never, count = mask.shape[1], mask.sum(-1)
    achieved, achieved_mask = tensordict.get(keys.achieved), tensordict.get(keys.achieved_mask)
    times = completion_times(instruction, achieved, achieved_mask, mask)
    times = torch.where(changed.unsqueeze(-1), times, never)
    last = (num_goals(instruction) - 1).clamp(min=0).unsqueeze(-1)
    end = times.gather(-1, last).squeeze(-1)
    lengths = torch.minimum(count, end + 1)
    length = int(lengths.max())
    ends = enumerate(zip(lengths.tolist(), count.tolist(), strict=True))
    beyond = [(b, new, old) for b, (new, old) in ends if new < old]
    leaving = [(b, new - 1, old) for b, new, old in beyond]

    rows = changed.nonzero().squeeze(-1)
    finished = (end < never).nonzero().squeeze(-1)
    finish = finished * length + end[finished] - 1
    row, slot = (times < never).nonzero(as_tuple=True)
    arrived = row * length + times[row, slot]
    goal = _shown(instruction[rows], _marked(times[rows], never)[:, :length].cumsum(-1), lengths[rows])
    rules: dict[NestedKey, Callable[[Tensor], Tensor]] = {
        keys.goal: lambda value: value.index_copy(0, rows, goal.to(value.dtype)),
        keys.mask: lambda value: _cleared(value, beyond),
        keys.prev_reward: lambda value: _written(value, rows, arrived),
        keys.reward: lambda value: _written(value, rows, arrived - 1),
        keys.terminated: lambda value: _written(value, finished, finish),
        keys.success: lambda value: _written(value, rows, finish),
        keys.action: lambda value: _cleared(value, leaving),
        keys.done: lambda value: value,
    }
    rules = {unravel_key(key): rule for key, rule in rules.items()}

    def rewritten(key: NestedKey, value: Tensor) -> Tensor:
        value = value if length == never else value[:, :length]
        if key in rules:
            return rules[key](value)
        return _cleared(value, leaving if isinstance(key, tuple) and key[0] == "next" else beyond)

    out = tensordict.named_apply(rewritten, nested_keys=True, batch_size=(len(mask), length))
    if out.get(keys.done, None) is not None:
        _set_done(out, rows, keys)
    return out


def _set_done(out: TensorDictBase, rows: Tensor, keys: RelabelKeys) -> None:
    done, terminated = out.get(keys.done), out.get(keys.terminated)
    truncated = out.get(keys.truncated, None)
    either = terminated if truncated is None else terminated | truncated.reshape(terminated.shape)
    out.set(keys.done, done.index_copy(0, rows, either[rows].reshape(-1, *done.shape[1:]).to(done.dtype)))


def _written(value: Tensor, rows: Tensor, ones: Tensor) -> Tensor:
    """A copy of ``[B, L, *]`` that is zero in ``rows`` of B, except 1 at the places ``ones`` of B * L."""
    value = value.clone(memory_format=torch.contiguous_format).index_fill_(0, rows, 0)
    value.view(-1, *value.shape[2:]).index_fill_(0, ones, 1)
    return value


def _cleared(value: Tensor, parts: list[tuple[int, int, int]]) -> Tensor:
    """A copy of ``[B, L, *]`` with zeros in ``parts``, see `zero`; the same tensor if there are none."""
    return zero(value.clone(memory_format=torch.contiguous_format), parts) if parts else value


def _marked(times: Tensor, num_steps: int) -> Tensor:
    """Which timesteps are among ``times``: ``[B, N] -> [B, L]`` bool; L in ``times`` marks nothing."""
    marks = torch.zeros(len(times), num_steps + 1, dtype=torch.bool, device=times.device)
    return marks.scatter_(1, times, True)[:, :-1]


def _shown(instruction: Tensor, active: Tensor, lengths: Tensor) -> Tensor:
    """The instruction ``[B, L, K, d]`` as it is shown while ``active`` ``[B, L]`` goals are completed.

    Zeros after ``lengths`` ``[B]``. There are few different ones, each of which is made once.
    """
    batch, slots = instruction.shape[:2]
    views = show(instruction.unsqueeze(1), torch.arange(slots + 1, device=active.device).expand(batch, -1))
    views = torch.cat([views, torch.zeros_like(views[:, :1])], 1)
    real = torch.arange(active.shape[1], device=active.device) < lengths.unsqueeze(-1)
    first = views.shape[1] * torch.arange(batch, device=active.device).unsqueeze(-1)
    source = torch.where(real, active, slots + 1) + first
    shown = views.view(-1, *views.shape[2:]).index_select(0, source.view(-1))
    return shown.view(*active.shape, *instruction.shape[1:])
