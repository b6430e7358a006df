"""Tabular Q-learning as an acting policy: one learner per env, all envs in one batch.

It learns while it acts, from what every environment of this project shows: the step before is known
from ``prev_reward`` and its own last action. Reads ``observation`` ``[N, F]``, ``prev_reward``
``[N, 1]``, ``trial_start`` and ``is_init`` ``[N, 1]`` bool; writes ``action``. Where ``is_init`` is
set the table is forgotten: another learner.
"""

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor

from yamame.actions import ActionSpace
from yamame.checks import require, require_at_least


class TabularQLearning(TensorDictModuleBase):
    """Q-learning (Watkins 1989) with an optimistic table and epsilon-greedy actions, over rounded
    observations.

    Its tables live outside parameters and state dictionaries, as an acting memory does.

    Args:
        action_space: Discrete.
        dims: Which entries of an observation tell the states apart; none: there is one state.
        num_bins: Values in [0, 1] that each of them is rounded to, less one; more than the
            environment has are harmless.
        learning_rate: Share of the way that a value moves to its target, in (0, 1].
        gamma: Discount factor within a trial, in [0, 1].
        epsilon: Share of random actions, in [0, 1].
        initial_value: Of every action before it was tried. More than is to be had makes it explore.
        observation_key: Where the observation is read.

    Raises:
        ValueError: If a number is out of its range or actions are not discrete; in use, if an
            observation has not so many entries.

    >>> from tensordict import TensorDict
    >>> from torchrl.data import Categorical
    >>> learner = TabularQLearning(ActionSpace(Categorical(2)), dims=[], epsilon=0.0, initial_value=0.0)
    >>> seen = TensorDict({"observation": torch.zeros(4, 1), "prev_reward": torch.ones(4, 1)}, [4])
    >>> seen["is_init"] = seen["trial_start"] = torch.ones(4, 1, dtype=torch.bool)
    >>> first = learner(seen)["action"].clone()
    >>> torch.equal(learner(seen.set("is_init", seen["is_init"].logical_not()))["action"], first)  # it paid 1
    True
    """

    def __init__(
        self,
        action_space: ActionSpace,
        *,
        dims: Sequence[int] = (0, 1, 2),
        num_bins: int = 16,
        learning_rate: float = 0.5,
        gamma: float = 0.9,
        epsilon: float = 0.05,
        initial_value: float = 0.5,
        observation_key: NestedKey = "observation",
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        require(owner, "action_space", action_space.kind, action_space.enumerable, "be discrete")
        require(owner, "dims", list(dims), all(dim >= 0 for dim in dims), "not be negative")
        require_at_least(owner, 1, num_bins=num_bins)
        require(owner, "learning_rate", learning_rate, 0.0 < learning_rate <= 1.0, "be in (0, 1]")
        require(owner, "gamma", gamma, 0.0 <= gamma <= 1.0, "be in [0, 1]")
        require(owner, "epsilon", epsilon, 0.0 <= epsilon <= 1.0, "be in [0, 1]")
        self.action_space = action_space
        self.dims, self.num_bins = tuple(dims), num_bins
        self.learning_rate, self.gamma, self.epsilon = learning_rate, gamma, epsilon
        self.initial_value = initial_value
        self.observation_key = observation_key
        self.in_keys = [observation_key, "prev_reward", "trial_start", "is_init"]
        self.out_keys = ["action"]
        self._memory: dict[str, Tensor] | None = None

    def reset_memory(self) -> None:
        """Forgets everything: the next step begins with a fresh learner in every env."""
        self._memory = None

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Learns from the step that led here, and writes the next action of every env."""
        state = self._states(tensordict.get(self.observation_key))
        is_init = tensordict.get("is_init").reshape(-1).bool()
        memory = self._memory
        if memory is None or memory["state"].shape != state.shape:
            memory, is_init = self._fresh(state), torch.ones_like(is_init)
        table, envs = memory["table"], torch.arange(len(state), device=state.device)
        table[is_init] = self.initial_value
        value = table[envs, state]
        # The observation where a trial starts is not where the last step led.
        follows = ~tensordict.get("trial_start").reshape(-1).bool()
        target = tensordict.get("prev_reward").reshape(-1) + self.gamma * follows * value.amax(-1)
        last = table[envs, memory["state"], memory["action"]]
        learned = last + self.learning_rate * (target - last) * ~is_init
        table[envs, memory["state"], memory["action"]] = learned
        action = self._choose(table[envs, state])
        self._memory = {"table": table, "state": state, "action": action}
        encoded = torch.nn.functional.one_hot(action, self.action_space.encoded_size).float()
        return tensordict.set("action", self.action_space.decode(encoded))

    def _fresh(self, state: Tensor) -> dict[str, Tensor]:
        shape = (len(state), (self.num_bins + 1) ** len(self.dims), self.action_space.encoded_size)
        table = torch.full(shape, float(self.initial_value), device=state.device)
        return {"table": table, "state": torch.zeros_like(state), "action": torch.zeros_like(state)}

    def _states(self, observation: Tensor) -> Tensor:
        """The number of the state that each env is in: ``[N, F]`` to ``[N]`` int64."""
        size = observation.shape[-1]
        holds = all(dim < size for dim in self.dims)
        require(type(self).__name__, "dims", list(self.dims), holds, f"be below {size}")
        state = torch.zeros(observation.shape[0], dtype=torch.int64, device=observation.device)
        for dim in self.dims:
            level = (observation[:, dim].clamp(0, 1) * self.num_bins).round().long()
            state = state * (self.num_bins + 1) + level
        return state

    def _choose(self, value: Tensor) -> Tensor:
        """One of the best actions ``[N]`` of values ``[N, A]``, or any, at random."""
        tie_break = torch.rand_like(value)
        best = (tie_break + (value >= value.amax(-1, keepdim=True))).argmax(-1)
        explores = torch.rand(len(value), device=value.device) < self.epsilon
        return torch.where(explores, torch.rand_like(value).argmax(-1), best)
