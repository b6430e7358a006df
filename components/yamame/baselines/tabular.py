"""Tabular Q-learning as an acting policy: one learner per env, all envs in one batch.

It learns while it acts. The last reward is in ``prev_reward``, and the last action in its memory.
Reads ``observation`` ``[N, F]``, ``prev_reward`` ``[N, 1]``, ``trial_start`` and ``is_init``
``[N, 1]`` bool; writes ``action``. Where ``is_init`` is true, a new learner starts.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import NestedKey
from torch import Tensor

from yamame.actions import ActionSpace
from yamame.checks import Bounds, PositiveInt, UnitInterval, check_bounds, require


class TabularQLearning(TensorDictModuleBase):
    """Q-learning (Watkins 1989) over rounded observations, with epsilon-greedy actions.

    The tables are neither parameters nor part of a ``state_dict``: they are a memory of acting.

    Args:
        action_space: Discrete actions.
        dims: Entries of an observation that identify the state; without any there is one state.
        num_bins: Values in [0, 1] are rounded to ``num_bins + 1`` levels. More levels than the
            environment has are harmless.
        learning_rate: Step size of the values, in (0, 1].
        gamma: Discount factor within a trial, in [0, 1].
        epsilon: Share of random actions, in [0, 1].
        initial_value: Initial value of every action. A value above all returns makes the learner
            explore.
        observation_key: Key of the observation.

    Raises:
        ArgumentError: A number is out of its range, or actions are not discrete. When called: an
            observation has fewer entries than ``dims`` needs.

    >>> from tensordict import TensorDict
    >>> from torchrl.data import Categorical
    >>> space = ActionSpace(Categorical(2))
    >>> learner = TabularQLearning(space, dims=[], epsilon=0.0, initial_value=0.0)
    >>> step = TensorDict({"observation": torch.zeros(4, 1), "prev_reward": torch.ones(4, 1)}, [4])
    >>> step["is_init"] = step["trial_start"] = torch.ones(4, 1, dtype=torch.bool)
    >>> first = learner(step)["action"].clone()
    >>> step["is_init"] = torch.zeros(4, 1, dtype=torch.bool)
    >>> torch.equal(learner(step)["action"], first)  # the first action had a reward of 1
    True
    """

    @check_bounds
    def __init__(
        self,
        action_space: ActionSpace,
        *,
        dims: Sequence[int] = (0, 1, 2),
        num_bins: PositiveInt = 16,
        learning_rate: Annotated[float, Bounds(above=0, most=1)] = 0.5,
        gamma: UnitInterval = 0.9,
        epsilon: UnitInterval = 0.05,
        initial_value: float = 0.5,
        observation_key: NestedKey = "observation",
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        require(owner, "action_space", action_space.kind, action_space.enumerable, "be discrete")
        require(owner, "dims", list(dims), all(dim >= 0 for dim in dims), "not be negative")
        self.action_space = action_space
        self.dims = tuple(dims)
        self.num_bins = num_bins
        self.learning_rate = learning_rate
        self.gamma = gamma
        self.epsilon = epsilon
        self.initial_value = initial_value
        self.observation_key = observation_key
        self.in_keys = [observation_key, "prev_reward", "trial_start", "is_init"]
        self.out_keys = ["action"]
        self._memory: dict[str, Tensor] | None = None

    def reset_memory(self) -> None:
        """Delete all tables: the next step starts a new learner in every env."""
        self._memory = None

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Learn from the last step, and write the next action of every env."""
        state = self._states(tensordict.get(self.observation_key))
        is_init = tensordict.get("is_init").reshape(-1).bool()
        memory = self._memory
        if memory is None or memory["state"].shape != state.shape:
            memory = self._new_memory(state)
            is_init = torch.ones_like(is_init)
        table = memory["table"]
        table[is_init] = self.initial_value

        # The Q-learning target. A trial starts in a state to which the last step did not lead, so
        # nothing is bootstrapped there.
        envs = torch.arange(len(state), device=state.device)
        value = table[envs, state].amax(-1)
        is_continued = ~tensordict.get("trial_start").reshape(-1).bool()
        target = tensordict.get("prev_reward").reshape(-1) + self.gamma * is_continued * value
        last = table[envs, memory["state"], memory["action"]]
        updated = last + self.learning_rate * (target - last) * ~is_init
        table[envs, memory["state"], memory["action"]] = updated

        action = self._choose(table[envs, state])
        self._memory = {"table": table, "state": state, "action": action}
        encoded = torch.nn.functional.one_hot(action, self.action_space.encoded_size).float()
        return tensordict.set("action", self.action_space.decode(encoded))

    def _new_memory(self, state: Tensor) -> dict[str, Tensor]:
        num_states = (self.num_bins + 1) ** len(self.dims)
        shape = (len(state), num_states, self.action_space.encoded_size)
        table = torch.full(shape, float(self.initial_value), device=state.device)
        return {"table": table, "state": torch.zeros_like(state), "action": torch.zeros_like(state)}

    def _states(self, observation: Tensor) -> Tensor:
        """Return the number of each env's state: ``[N, F]`` to int64 ``[N]``."""
        size = observation.shape[-1]
        is_within = max(self.dims, default=0) < size
        require(type(self).__name__, "dims", list(self.dims), is_within, f"be below {size}")
        state = torch.zeros(observation.shape[0], dtype=torch.int64, device=observation.device)
        for dim in self.dims:
            level = (observation[:, dim].clamp(0, 1) * self.num_bins).round().long()
            state = state * (self.num_bins + 1) + level
        return state

    def _choose(self, value: Tensor) -> Tensor:
        """Choose a best action ``[N]`` of values ``[N, A]``, or a random one."""
        tie_break = torch.rand_like(value)
        is_best = value >= value.amax(-1, keepdim=True)
        best = (tie_break + is_best).argmax(-1)
        explores = torch.rand(len(value), device=value.device) < self.epsilon
        return torch.where(explores, torch.rand_like(value).argmax(-1), best)
