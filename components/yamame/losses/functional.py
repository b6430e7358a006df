"""The arithmetic of the losses as pure functions of tensors: no module, no key, no state.

Settings out of range raise ``ValueError``.

Shapes: B sequences, L timesteps, T = L - 1 transitions, G discounts, C critics. Timestep t of a
sequence holds what was seen at t and the transition that leaves t.
"""

from typing import Literal

import torch
from torch import Tensor

from yamame.checks import require, require_at_least, require_choice
from yamame.distributed import mean_count


def transition_mask(mask: Tensor, is_init: Tensor) -> Tensor:
    """Mark the transitions that join two real timesteps of one trajectory.

    Args:
        mask: bool [B, L], true where a timestep is real and not padding.
        is_init: bool [B, L], true where a new trajectory starts.

    Returns:
        Bool [B, T]: transition t joins timesteps t and t + 1, so both must be real and the second
        no fresh start.

    >>> mask = torch.tensor([[True, True, True, True, False]])
    >>> is_init = torch.tensor([[True, False, True, False, False]])
    >>> transition_mask(mask, is_init).tolist()
    [[True, False, True, False]]
    """
    return mask[:, :-1] & mask[:, 1:] & ~is_init[:, 1:]


def masked_mean(values: Tensor, mask: Tensor, *, dim: Literal[-1] | None = None) -> Tensor:
    """Average over the entries whose leading dimensions are marked.

    Entries are selected, not multiplied by zero, so a non-finite value under the mask does not
    spread. Where several processes learn together (`yamame.distributed`), the mean of their
    averages is the average over all of their entries.

    Args:
        values: [*M, *E] with any number of trailing dimensions E.
        mask: bool [*M], with at least one true entry.
        dim: -1 where each entry of the last dimension has a mean of its own.

    Returns:
        The mean over the marked M and over all of E: a scalar, or one for each entry of the last
        dimension.

    >>> masked_mean(torch.tensor([[1.0, 3.0], [9.0, 9.0]]), torch.tensor([True, False])).item()
    2.0
    """
    weights = mask.reshape(*mask.shape, *[1] * (values.ndim - mask.ndim)).expand_as(values)
    over = None if dim is None else tuple(range(values.ndim - 1))
    return torch.where(weights, values, 0.0).sum(over) / mean_count(weights.sum(over))


def bootstrapped_targets(
    reward: Tensor,
    terminated: Tensor,
    next_value: Tensor,
    *,
    gammas: Tensor,
    valid: Tensor,
    n_step: int = 1,
    reward_multiplier: float = 1.0,
) -> Tensor:
    """Discounted n-step returns that end in a bootstrapped value, for all discounts at once.

    The window of transition t covers t .. t + n_step - 1 and ends earlier at a termination (no
    bootstrap) or before an invalid transition or the end of the sequence (bootstrap from the last
    valid transition).

    Args:
        reward: [B, T], reward of each transition.
        terminated: bool [B, T], true where the transition ends the task, which cuts the value.
        next_value: [B, T, G], value of the state each transition arrives in, in units of multiplied
            rewards.
        gammas: [G], discounts.
        valid: bool [B, T], see `transition_mask`.
        n_step: the most rewards in one target, at least 1.
        reward_multiplier: factor applied to every reward.

    Returns:
        [B, T, G], zero at invalid transitions.

    >>> reward, terminated = torch.tensor([[1.0, 2.0]]), torch.tensor([[False, True]])
    >>> next_value, valid = torch.full((1, 2, 1), 8.0), torch.ones(1, 2, dtype=torch.bool)
    >>> gammas = torch.tensor([0.5])
    >>> bootstrapped_targets(reward, terminated, next_value, gammas=gammas, valid=valid).squeeze(-1).tolist()
    [[5.0, 2.0]]
    """
    require_at_least("bootstrapped_targets", 1, n_step=n_step)
    scaled = (reward_multiplier * reward).unsqueeze(-1)
    discount = gammas * (~terminated).unsqueeze(-1)
    follows = torch.zeros_like(valid)
    follows[:, :-1] = valid[:, 1:]
    targets = scaled + discount * next_value
    for _ in range(min(n_step, valid.shape[1]) - 1):  # more rewards than that there are not
        # One reward more: the target of the following transition replaces its value, where there is
        # one.
        following = targets.roll(-1, dims=1)
        targets = scaled + discount * torch.where(follows.unsqueeze(-1), following, next_value)
    return torch.where(valid.unsqueeze(-1), targets, 0.0)


def critic_subset_value(
    values: Tensor,
    num_subset: int,
    *,
    reduce: Literal["min", "mean"] = "min",
) -> Tensor:
    """Reduce an ensemble of values over a random subset of its critics (REDQ, arXiv 2101.05982).

    The subset holds distinct critics, as in the paper, so a minimum of two always compares two of
    them. It is drawn for every entry on its own, where the paper draws one per update: each target
    has the same distribution, and the noise averages out within a batch.

    Args:
        values: [*, C, G].
        num_subset: how many of the C critics to draw, in 1..C.
        reduce: the reduction over the drawn critics.

    Returns:
        [*, G].

    >>> values = torch.tensor([[3.0], [1.0], [2.0]])
    >>> critic_subset_value(values, 3).tolist(), critic_subset_value(values, 3, reduce="mean").tolist()
    ([1.0], [2.0])
    """
    num_critics = values.shape[-2]
    condition, in_range = f"be in 1..{num_critics} (the critics)", 1 <= num_subset <= num_critics
    require("critic_subset_value", "num_subset", num_subset, in_range, condition)
    if num_subset < num_critics:
        # The largest of random numbers, one for each critic, draw a subset without replacement.
        scores = torch.rand(values.shape, device=values.device)
        values = values.gather(-2, scores.topk(num_subset, dim=-2).indices)
    return values.amin(-2) if reduce == "min" else values.mean(-2)


def advantage_filter(
    advantage: Tensor,
    *,
    kind: Literal["binary", "exponential", "none"] = "binary",
    threshold: float = 0.0,
    temperature: float = 1.0,
    max_weight: float = 20.0,
) -> Tensor:
    """Weights of filtered behaviour cloning (critic-regularised regression, arXiv 2006.15134).

    Args:
        advantage: any shape, in the units of ``threshold`` and ``temperature``.
        kind: ``binary`` keeps what exceeds the threshold; ``exponential`` weighs by exp((advantage
            - threshold) / temperature); ``none`` keeps everything: plain behaviour cloning.
        threshold: advantage from which an action counts as good.
        temperature: advantage over which an exponential weight grows by a factor e.
        max_weight: ceiling of an exponential weight.

    Returns:
        Weights of the shape of ``advantage``, not negative.

    >>> advantage_filter(torch.tensor([-1.0, 0.0, 2.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    require_choice("advantage_filter", "kind", kind, ("binary", "exponential", "none"))
    if kind == "binary":
        return (advantage > threshold).to(advantage.dtype)
    if kind == "exponential":
        return ((advantage - threshold) / temperature).exp().clamp(max=max_weight)
    return torch.ones_like(advantage)
