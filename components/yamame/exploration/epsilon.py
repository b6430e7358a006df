"""Random actions and noise, annealed over training or also within each episode."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import TensorSpec

from yamame.actions import ActionSpace
from yamame.checks import PositiveInt, check_bounds, require
from yamame.execution.capturing import Constant
from yamame.exploration.base import Exploration, Share


class LinearNoise(Exploration):
    """Noise whose strength falls linearly over training and is constant within an episode.

    Args:
        action_space: See `Exploration`.
        anneal: Share of the budget, in (0, 1], after which the strength stays at ``end``.
        anneal_steps: Environment steps, over all envs, after which it does, in place of ``anneal``;
            None: the share.
        start: Strength (probability of a random action, or standard deviation of the noise in half
            ranges of the action) when training begins.
        end: Strength after annealing.
        action_key: See `Exploration`.

    Attributes:
        largest: Largest allowed strength.

    Raises:
        ValueError: If a strength is negative or greater than ``largest``.
    """

    largest: ClassVar[float] = 1.0

    @check_bounds
    def __init__(
        self,
        action_space: ActionSpace | TensorSpec,
        *,
        anneal: Share = 0.25,
        anneal_steps: PositiveInt | None = None,
        start: float = 1.0,
        end: float = 0.05,
        action_key: NestedKey = "action",
    ) -> None:
        super().__init__(
            action_space, anneal=anneal, anneal_steps=anneal_steps, action_key=action_key
        )
        # The range belongs to the class, so it cannot stand in the signature.
        for name, value in (("start", start), ("end", end)):
            in_range = 0.0 <= value <= self.largest
            condition = f"be in [0, {self.largest:g}]"
            require(type(self).__name__, name, value, in_range, condition)
        self.start = start
        self.end = end

    def epsilon(self, tensordict: TensorDictBase) -> Tensor:
        """Return the strength, a scalar tensor."""
        return self.anneal(self.start, self.end)


class EpsilonGreedy(LinearNoise):
    """Takes a uniform action among the allowed ones with probability epsilon, which falls linearly.

    Bits are replaced one by one, everything else whole, see `yamame.exploration.base.perturb`.
    Arguments are those of `LinearNoise`; a strength is epsilon, in [0, 1].

    Raises:
        ValueError: As `LinearNoise`, and if the action is continuous (use `GaussianNoise`).
    """

    kinds = ("index", "indices", "one_hot", "bits")


class GaussianNoise(LinearNoise):
    """Adds normal noise to box actions and clips to the bounds; its size falls linearly.

    Arguments are those of `LinearNoise`; a strength is a standard deviation in half ranges of the
    action (1 is from centre to bound), of any size.

    Raises:
        ValueError: As `LinearNoise`, and if the action is not continuous.
    """

    kinds = ("box",)
    largest = math.inf


class BilevelEpsilon(Exploration):
    """Epsilon that falls within every episode and over training, scaled at random per episode.

    An agent that adapts within an episode should explore at its start and exploit at its end. With
    the episode's ``time`` ``[N, 1]`` (t / horizon, zero without the key) epsilon is
    ``u (begin + (finish - begin) time)``; begin and finish are annealed linearly over training and
    u ~ U[0, 1) is drawn anew for each env where ``is_init`` ``[N, 1]`` bool is set. Box actions get
    normal noise of that size instead, see `yamame.exploration.base.perturb`. AMAGO (arXiv
    2310.09971).

    The u of the current episodes are part of `state_dict`, so that a restored run continues
    exactly; copies and pickles drop them.

    Args:
        action_space: See `Exploration`.
        anneal: Share of the budget, in (0, 1], after which the probabilities have reached their
            second values.
        anneal_steps: Environment steps, over all envs, after which they have, in place of
            ``anneal``; None: the share.
        start: Probability of a random action at the start of an episode: when training begins, and
            after annealing.
        end: Probability of a random action at the end of an episode: when training begins, and
            after annealing.
        randomize: Multiply the probability by a random factor between 0 and 1, drawn for each
            episode.
        action_key: See `Exploration`.

    Raises:
        ValueError: If an epsilon is not in [0, 1]; at run time if ``is_init`` is missing though
            ``randomize``.

    >>> from torchrl.data import Categorical
    >>> noise = BilevelEpsilon(Categorical(4, shape=(8,)), anneal_steps=100, randomize=False)
    >>> noise.step(50)
    >>> [round(float(bound), 3) for bound in noise.bounds()]
    [0.525, 0.405]
    """

    @check_bounds
    def __init__(
        self,
        action_space: ActionSpace | TensorSpec,
        *,
        anneal: Share = 0.25,
        anneal_steps: PositiveInt | None = None,
        start: Sequence[float] = (1.0, 0.05),
        end: Sequence[float] = (0.8, 0.01),
        randomize: bool = True,
        action_key: NestedKey = "action",
    ) -> None:
        super().__init__(
            action_space, anneal=anneal, anneal_steps=anneal_steps, action_key=action_key
        )
        for name, pair in (("start", start), ("end", end)):
            holds = len(pair) == 2 and all(0.0 <= value <= 1.0 for value in pair)
            require("BilevelEpsilon", name, tuple(pair), holds, "be two numbers in [0, 1]")
        self.start = float(start[0]), float(start[1])
        self.end = float(end[0]), float(end[1])
        self.randomize = randomize
        # Both bounds at once.
        first = torch.tensor([self.start[0], self.end[0]], device="cpu")
        change = torch.tensor(
            [self.start[1] - self.start[0], self.end[1] - self.end[0]], device="cpu"
        )
        self._first = Constant(first)
        self._change = Constant(change)
        self._multiplier: Tensor | None = None
        if randomize:
            self.in_keys = [*self.in_keys, "is_init"]

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the current epsilon at the start and at the end of an episode, without u."""
        device = self.num_env_steps.device
        bounds = self._first.on(device) + self.progress() * self._change.on(device)
        begin, finish = bounds.unbind()
        return begin, finish

    def epsilon(self, tensordict: TensorDictBase) -> Tensor:
        """Return epsilon of every env ``[N]``; draw u of the envs that start an episode."""
        device = self._get(tensordict, self.action_key).device
        begin, finish = self.bounds()
        begin = begin.to(device)
        finish = finish.to(device)
        time = tensordict.get("time", None)
        if time is None:
            time = begin.new_zeros(tensordict.batch_size)
        time = time.reshape(tensordict.batch_size).clamp(0.0, 1.0)
        epsilon = begin + (finish - begin) * time
        if not self.randomize:
            return epsilon

        is_init = self._get(tensordict, "is_init").reshape(tensordict.batch_size)
        # Drawn for all envs at every step: a draw for some of them would depend on the data, which
        # cannot be captured.
        multiplier = torch.rand(is_init.shape, device=device)
        former = self._multiplier
        # With another number of envs, all are drawn anew.
        if former is not None and former.shape == is_init.shape:
            multiplier = torch.where(is_init, multiplier, former.to(device))
        self._multiplier = multiplier
        return epsilon * multiplier

    def static_buffers(self) -> dict[str, Tensor]:
        """Return the counters and, after the first step, u of the current episodes."""
        buffers = super().static_buffers()
        if self._multiplier is not None:
            buffers["multiplier"] = self._multiplier
        return buffers

    def set_static_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        """Use tensors like those of `static_buffers`, without a copy."""
        super().set_static_buffers(tensors)
        self._multiplier = tensors.get("multiplier")

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return u of the current episodes, empty before the first step."""
        if self._multiplier is None:
            return {}
        return {"multiplier": self._multiplier.clone()}

    def set_extra_state(self, state: Any) -> None:
        """Restore the result of `get_extra_state`."""
        self._multiplier = state.get("multiplier")
        if self._multiplier is not None:
            self._multiplier = self._multiplier.clone()

    def __getstate__(self) -> dict[str, Any]:
        # Every process draws its own.
        return {**self.__dict__, "_multiplier": None}
