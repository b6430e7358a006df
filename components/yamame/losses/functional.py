"""Arithmetic of the losses as pure functions of tensors, without modules, keys or state.

Settings out of range raise `yamame.checks.ArgumentError`, a ``ValueError``.

Shapes: B sequences, L timesteps, T = L - 1 transitions, G discounts, C critics. Timestep t of a
sequence holds the observation at t and the transition that leaves t.
"""

from typing import Literal

import torch
from torch import Tensor

from yamame.checks import require, require_choice
from yamame.distributed import mean_count


def transition_mask(mask: Tensor, is_init: Tensor) -> Tensor:
    """Mark the transitions that join two real timesteps of one trajectory.

    Args:
        mask: Bool [B, L], true where a timestep is real and not padding.
        is_init: Bool [B, L], true where a new trajectory starts.

    Returns:
        Bool [B, T]. Transition t joins timesteps t and t + 1, so both must be real, and the second
        must not start a trajectory.

    >>> mask = torch.tensor([[True, True, True, True, False]])
    >>> is_init = torch.tensor([[True, False, True, False, False]])
    >>> transition_mask(mask, is_init).tolist()
    [[True, False, True, False]]
    """
    return mask[:, :-1] & mask[:, 1:] & ~is_init[:, 1:]


def masked_mean(values: Tensor, mask: Tensor, *, dim: Literal[-1] | None = None) -> Tensor:
    """Average over the entries whose leading dimensions are marked.

    With several ranks (`yamame.distributed`), the mean of their results is the average over the
    entries of all ranks.

    Args:
        values: [*M, *E] with any number of trailing dimensions E.
        mask: Bool [*M], with at least one true entry.
        dim: -1 computes one mean for each entry of the last dimension.

    Returns:
        Mean over the marked M and all of E: a scalar, or [E_last] with ``dim=-1``.

    >>> masked_mean(torch.tensor([[1.0, 3.0], [9.0, 9.0]]), torch.tensor([True, False])).item()
    2.0
    """
    return MaskedMean(mask)(values, dim=dim)


class MaskedMean:
    """Averages over the marked entries of a mask, which is counted once over all ranks.

    Args:
        mask: Bool [*M], with at least one true entry.

    >>> mean = MaskedMean(torch.tensor([True, False]))
    >>> mean(torch.tensor([[1.0, 3.0], [9.0, 9.0]])).item()
    2.0
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self._count = mean_count(mask.sum())

    def __call__(self, values: Tensor, *, dim: Literal[-1] | None = None) -> Tensor:
        """Average values as `masked_mean` does."""
        trailing = [1] * (values.ndim - self.mask.ndim)
        selected = self.mask.reshape(*self.mask.shape, *trailing)
        reduced = None if dim is None else tuple(range(values.ndim - 1))
        # Selecting, instead of multiplying by zero, keeps NaN and Inf of masked entries out of the
        # sum.
        total = torch.where(selected, values, 0.0).sum(reduced)
        num_averaged = self._count
        for size in values.shape[self.mask.ndim : values.ndim if dim is None else -1]:
            num_averaged = num_averaged * size
        return total / num_averaged


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
    """Compute discounted n-step returns with a bootstrapped end, for all discounts at once.

    The window of transition t covers t .. t + n_step - 1. It ends earlier at a termination, without
    a bootstrapped value, and before an invalid transition or the end of the sequence, with the
    value after the last valid transition.

    Args:
        reward: Reward of each transition, [B, T].
        terminated: Bool [B, T], true where the transition ends the task. The value after it is 0.
        next_value: Value of the state that each transition arrives in, [B, T, G], in units of
            multiplied rewards.
        gammas: Discounts, [G].
        valid: Bool [B, T], see `transition_mask`.
        n_step: Largest number of rewards in one target, at least 1.
        reward_multiplier: Factor applied to every reward.

    Returns:
        Targets [B, T, G], zero at invalid transitions.

    >>> reward, terminated = torch.tensor([[1.0, 2.0]]), torch.tensor([[False, True]])
    >>> next_value, valid = torch.full((1, 2, 1), 8.0), torch.ones(1, 2, dtype=torch.bool)
    >>> gammas = torch.tensor([0.5])
    >>> options = {"gammas": gammas, "valid": valid}
    >>> bootstrapped_targets(reward, terminated, next_value, **options).squeeze(-1).tolist()
    [[5.0, 2.0]]
    """
    require("bootstrapped_targets", "n_step", n_step, n_step >= 1, "be at least 1")
    scaled = (reward_multiplier * reward).unsqueeze(-1)
    discount = gammas * (~terminated).unsqueeze(-1)
    has_successor = torch.zeros_like(valid)
    has_successor[:, :-1] = valid[:, 1:]

    targets = scaled + discount * next_value
    # A sequence of T transitions has at most T rewards in a target.
    for _ in range(min(n_step, valid.shape[1]) - 1):
        # Each pass adds one reward: the target of the successor replaces the bootstrapped value.
        successor = targets.roll(-1, dims=1)
        value = torch.where(has_successor.unsqueeze(-1), successor, next_value)
        targets = scaled + discount * value
    return torch.where(valid.unsqueeze(-1), targets, 0.0)


def critic_subset_value(
    values: Tensor,
    num_subset: int,
    *,
    reduce: Literal["min", "mean"] = "min",
) -> Tensor:
    """Reduce an ensemble of values over a random subset of its critics (REDQ, arXiv 2101.05982).

    The subset holds distinct critics. A new one is drawn for every entry, while the paper draws one
    per update: the distribution of each target is the same, and the noise averages out within a
    batch.

    Args:
        values: [*, C, G].
        num_subset: Number of critics to draw, in 1..C.
        reduce: Reduction over the drawn critics.

    Returns:
        [*, G].

    >>> values = torch.tensor([[3.0], [1.0], [2.0]])
    >>> critic_subset_value(values, 3).tolist()
    [1.0]
    >>> critic_subset_value(values, 3, reduce="mean").tolist()
    [2.0]
    """
    num_critics = values.shape[-2]
    in_range = 1 <= num_subset <= num_critics
    condition = f"be in 1..{num_critics} (the critics)"
    require("critic_subset_value", "num_subset", num_subset, in_range, condition)
    if num_subset < num_critics:
        # The critics with the largest of C random numbers are a subset without replacement.
        scores = torch.rand(values.shape, device=values.device)
        drawn = scores.topk(num_subset, dim=-2).indices
        values = values.gather(-2, drawn)
    if reduce == "min":
        return values.amin(-2)
    return values.mean(-2)


def advantage_filter(
    advantage: Tensor,
    *,
    kind: Literal["binary", "exponential", "none"] = "binary",
    threshold: float = 0.0,
    temperature: float = 1.0,
    max_weight: float = 20.0,
) -> Tensor:
    """Compute weights of filtered behaviour cloning (CRR, arXiv 2006.15134).

    Args:
        advantage: Any shape, in the units of ``threshold`` and ``temperature``.
        kind: ``binary`` keeps actions whose advantage exceeds the threshold, ``exponential`` weighs
            them by exp((advantage - threshold) / temperature), and ``none`` keeps all of them:
            plain behaviour cloning.
        threshold: Advantage beyond which an action is good.
        temperature: Advantage over which an exponential weight grows by a factor of e.
        max_weight: Upper limit of an exponential weight.

    Returns:
        Non-negative weights of the shape of ``advantage``.

    >>> advantage_filter(torch.tensor([-1.0, 0.0, 2.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    require_choice("advantage_filter", "kind", kind, ("binary", "exponential", "none"))
    if kind == "binary":
        return (advantage > threshold).to(advantage.dtype)
    if kind == "exponential":
        # Single actions of very high advantage would dominate the batch without a limit.
        return ((advantage - threshold) / temperature).exp().clamp(max=max_weight)
    return torch.ones_like(advantage)
