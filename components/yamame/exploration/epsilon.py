"""Random actions: epsilon annealed over training, and over each rollout."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import TensorSpec

from yamame.actions import ActionSpace, BoxActions
from yamame.exploration.base import Exploration, perturb


class BilevelEpsilon(Exploration):
    """Epsilon that falls within every rollout and over training, scaled at random per rollout.

    An agent that adapts within a rollout should explore at its start and exploit at its end. With the
    rollout's ``time`` (t / horizon, zero without the key) epsilon is ``u (begin + (finish - begin) time)``;
    begin and finish are annealed linearly over training and u ~ U[0, 1) is drawn anew for each row where
    ``is_init`` is set. Box actions get normal noise of that size instead, see
    `yamame.exploration.base.perturb`. AMAGO (arXiv 2310.09971).

    The u of the current rollouts are part of `state_dict`, so that a restored run goes on exactly; they are
    dropped by copies and pickles (every process draws its own) and drawn anew when the number of rows
    changes.

    Args:
        action_space: A `yamame.actions.ActionSpace`, or the environment's action spec with or without its
            batch dimensions.
        anneal_steps: Environment steps, over all rows, after which both schedules have reached their end.
        start: Epsilon at the start of a rollout: when training begins, and once annealed.
        end: Epsilon at the end of a rollout: when training begins, and once annealed.
        randomize: Whether u is drawn; it is 1 otherwise.
        action_key: Key of the action, read and written.
        time_key: Key of ``time`` ``[N, 1]``.
        is_init_key: Key of ``is_init`` ``[N, 1]`` bool; read if ``randomize``.
        action_mask_key: Key of the allowed actions ``[N, A]`` bool, read when present.

    Raises:
        ValueError: If an epsilon is not in [0, 1]; at run time if ``is_init`` is missing though
            ``randomize``.

    >>> from torchrl.data import Categorical
    >>> noise = BilevelEpsilon(Categorical(4, shape=(8,)), anneal_steps=100, randomize=False)
    >>> noise.step(50)
    >>> [round(float(bound), 3) for bound in noise.bounds()]
    [0.525, 0.405]
    """

    def __init__(
        self,
        action_space: ActionSpace | TensorSpec,
        *,
        anneal_steps: int,
        start: Sequence[float] = (1.0, 0.05),
        end: Sequence[float] = (0.8, 0.01),
        randomize: bool = True,
        action_key: NestedKey = "action",
        time_key: NestedKey = "time",
        is_init_key: NestedKey = "is_init",
        action_mask_key: NestedKey = "action_mask",
    ) -> None:
        super().__init__(action_space, anneal_steps=anneal_steps, action_key=action_key)
        for name, pair in (("start", start), ("end", end)):
            if len(pair) != 2 or not all(0.0 <= value <= 1.0 for value in pair):
                raise ValueError(f"BilevelEpsilon: {name} must be two numbers in [0, 1], got {tuple(pair)}")
        self.start = (float(start[0]), float(start[1]))
        self.end = (float(end[0]), float(end[1]))
        self.randomize = randomize
        self.time_key = time_key
        self.is_init_key = is_init_key
        self.action_mask_key = action_mask_key
        self._multiplier: Tensor | None = None
        if randomize:
            self.in_keys = [*self.in_keys, is_init_key]

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Epsilon at the start and at the end of a rollout, now, before the random factor."""
        progress = self._progress()
        (begin, annealed_begin), (finish, annealed_finish) = self.start, self.end
        return begin + progress * (annealed_begin - begin), finish + progress * (annealed_finish - finish)

    def epsilon(self, tensordict: TensorDictBase) -> Tensor:
        """Epsilon of every row ``[N]``; draws the random factor of rows that start a rollout."""
        device = self._require(tensordict, self.action_key).device
        begin, finish = (bound.to(device) for bound in self.bounds())
        time = tensordict.get(self.time_key, None)
        if time is None:
            epsilon = begin.expand(tensordict.batch_size)
        else:
            epsilon = begin + (finish - begin) * time.reshape(tensordict.batch_size).clamp(0.0, 1.0)
        if not self.randomize:
            return epsilon
        starts = self._require(tensordict, self.is_init_key).reshape(tensordict.batch_size)
        drawn = torch.rand(starts.shape, device=device)
        if self._multiplier is not None and self._multiplier.shape == starts.shape:
            drawn = torch.where(starts, drawn, self._multiplier.to(device))
        self._multiplier = drawn
        return epsilon * drawn

    def explore(self, tensordict: TensorDictBase, space: ActionSpace, action: Tensor) -> Tensor:
        """Perturbs the action by the epsilon of its row."""
        mask = tensordict.get(self.action_mask_key, None)
        return perturb(space, action, self.epsilon(tensordict), mask)

    def get_extra_state(self) -> dict[str, Tensor]:
        """The random factors of the current rollouts, empty before the first step."""
        return {} if self._multiplier is None else {"multiplier": self._multiplier.clone()}

    def set_extra_state(self, state: Any) -> None:
        """Restores what `get_extra_state` returned."""
        multiplier = state.get("multiplier")
        self._multiplier = None if multiplier is None else multiplier.clone()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_multiplier": None}


class EpsilonGreedy(Exploration):
    """With probability epsilon a uniform action among the allowed ones; epsilon falls linearly over training.

    Bits are replaced one by one, everything else whole, see `yamame.exploration.base.perturb`.

    Args:
        action_space: A `yamame.actions.ActionSpace` (not a box), or the environment's action spec with or
            without its batch dimensions.
        anneal_steps: Environment steps, over all rows, after which epsilon stays at ``end``.
        start: Epsilon when training begins.
        end: Epsilon once annealed.
        action_key: Key of the action, read and written.
        action_mask_key: Key of the allowed actions ``[N, A]`` bool, read when present.

    Raises:
        ValueError: If an epsilon is not in [0, 1] or the action is continuous (use `GaussianNoise`).
    """

    def __init__(
        self,
        action_space: ActionSpace | TensorSpec,
        *,
        anneal_steps: int,
        start: float = 1.0,
        end: float = 0.05,
        action_key: NestedKey = "action",
        action_mask_key: NestedKey = "action_mask",
    ) -> None:
        super().__init__(action_space, anneal_steps=anneal_steps, action_key=action_key)
        for name, value in (("start", start), ("end", end)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"EpsilonGreedy: {name} must be in [0, 1], got {value}")
        self.start = start
        self.end = end
        self.action_mask_key = action_mask_key

    def check_space(self, space: ActionSpace) -> None:
        """Refuses boxes."""
        if isinstance(space, BoxActions):
            raise ValueError(
                "EpsilonGreedy: action_space must be discrete (GaussianNoise is for boxes), got BoxActions"
            )

    def explore(self, tensordict: TensorDictBase, space: ActionSpace, action: Tensor) -> Tensor:
        """Replaces the action with probability epsilon."""
        epsilon = self.anneal(self.start, self.end).expand(tensordict.batch_size)
        return perturb(space, action, epsilon, tensordict.get(self.action_mask_key, None))
