"""The machinery that all natively batched environments share.

A `BatchedEnv` plays ``num_envs`` independent episodes in tensor code. Row ``i``'s ``e``-th episode plays the
task of seed ``fold(seed, i, e)``: the same seed replays the same tasks, and a row's tasks do not depend on
how many other rows there are. All randomness of an episode comes from its task seed (`yamame_envs.random`).

Entries written at every timestep, besides the environment's own observation (N rows):

=================  ==================  ===========================================================
``prev_action``    ``[N, A]`` float32  action executed on the way here, one-hot or in [-1, 1]; 0 at the start
``prev_reward``    ``[N, 1]`` float32  reward received on arrival; 0 at the start
``time``           ``[N, 1]`` float32  steps taken / time limit, in [0, 1]
``trial_start``    ``[N, 1]`` bool     an attempt at the task begins here
``step_index``     ``[N, 1]`` int64    steps taken in the episode
``is_init``        ``[N, 1]`` bool     the episode begins here: memories must be cleared
``success``        ``[N, 1]`` bool     the whole task is done
=================  ==================  ===========================================================

The horizon is finite and visible (``time``): an episode that reaches it is terminated, never truncated.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from torchrl.data.tensor_specs import TensorSpec
from torchrl.envs import EnvBase

from yamame_envs.actions import Actions
from yamame_envs.memory import Memory, restore
from yamame_envs.random import fold
from yamame_envs.tasks import TaskQueue, Tensors


class BatchedEnv(EnvBase):
    """Base class of natively batched environments.

    A subclass says how a task is drawn, how an episode begins, how a step changes its state and what is seen,
    each for many rows at once: `_draw_tasks`, `_begin`, `_transition`, `_observe`. The state always holds
    ``step_index`` ``[N, 1]``, which this class counts.

    ``reset`` takes, besides ``_reset``, an optional entry ``task_seed`` ``[N, 1]`` int64: the rows that reset
    play exactly these tasks, and their numbered episodes wait. ``step_and_maybe_reset`` is fused: it does in
    one pass what `EnvBase` does in several, but does not carry the executed action to the next timestep.

    Args:
        num_envs: Rows, at least 1.
        time_limit: Steps after which an episode is terminated, at least 1.
        actions: What an action is.
        observations: Spec of one row of every entry that `_observe` returns.
        seed: Names the tasks of all episodes.
        device: Where all tensors live.

    Raises:
        ValueError: If a number is out of its range.
    """

    _overrides: tuple[str, ...] = ()
    """Entries of the task that a reset may set otherwise than their task seed says."""

    def __init__(
        self,
        *,
        num_envs: int,
        time_limit: int,
        actions: Actions,
        observations: Mapping[str, TensorSpec],
        seed: int,
        device: str | torch.device,
    ) -> None:
        self._require("num_envs", num_envs, num_envs >= 1, "be at least 1")
        self._require("time_limit", time_limit, time_limit >= 1, "be at least 1")
        super().__init__(device=device, batch_size=torch.Size([num_envs]))
        self._actions = actions.to(self.device)  # type: ignore[attr-defined]
        self._time_limit = time_limit
        self._set_specs(observations)
        self._known = {"action", "next", "_reset", "task_seed", *self._overrides}
        self._known |= {*self.observation_spec.keys(), *self.full_done_spec.keys(), "reward"}
        horizon = torch.tensor(float(time_limit), device=self.device)
        self.register_buffer("_horizon", horizon, persistent=False)
        self._queue = TaskQueue(num_envs)
        rows = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._memory = Memory(rows, rows, {}, {}, {})
        self.set_seed(seed)

    @classmethod
    def _require(cls, name: str, value: object, holds: bool, condition: str) -> None:
        if not holds:
            raise ValueError(f"{cls.__name__}: {name} must {condition}, got {value}")

    def _set_specs(self, observations: Mapping[str, TensorSpec]) -> None:
        rows = self.batch_size[0]
        column: dict[str, Any] = {"shape": (rows, 1), "device": self.device}
        encoded = (rows, self._actions.encoded_size)
        entries = {name: spec.expand(rows, *spec.shape) for name, spec in observations.items()}
        entries["prev_action"] = Bounded(-1.0, 1.0, shape=encoded, dtype=torch.float32, device=self.device)
        entries["prev_reward"] = Unbounded(dtype=torch.float32, **column)
        entries["time"] = Bounded(0.0, 1.0, dtype=torch.float32, **column)
        entries["step_index"] = Bounded(0, self._time_limit, dtype=torch.int64, **column)
        for name in ("trial_start", "is_init", "success"):
            entries[name] = Binary(n=1, dtype=torch.bool, **column)
        self.observation_spec = Composite(entries, shape=self.batch_size, device=self.device)
        self.action_spec = self._actions.spec(rows, self.device)
        self.reward_spec = Unbounded(dtype=torch.float32, **column)
        flag = Categorical(2, dtype=torch.bool, **column)
        done = {name: flag.clone() for name in ("done", "terminated", "truncated")}
        self.full_done_spec = Composite(done, shape=self.batch_size, device=self.device)

    @abstractmethod
    def _draw_tasks(self, task_seed: Tensor) -> Tensors:
        """Draws the tasks of seeds ``[R]``: new tensors ``[R, ...]``, constant during an episode."""

    @abstractmethod
    def _begin(self, task: Tensors) -> Tensors:
        """The state ``[R, ...]`` at the start of these tasks."""

    @abstractmethod
    def _transition(self, task: Tensors, state: Tensors, action: Tensor) -> tuple[Tensors, Tensor, Tensor]:
        """One step of all rows, out of place.

        Returns:
            The new state without ``step_index``, the reward ``[N, 1]`` float32 and the success ``[N, 1]``
            bool.
        """

    @abstractmethod
    def _observe(self, task: Tensors, state: Tensors) -> Tensors:
        """What is seen: new tensors ``[R, ...]``, one for every entry of ``observations``."""

    def render(self, row: int = 0) -> npt.NDArray[np.uint8]:
        """Draws one row: ``[H, W, 3]`` uint8 RGB."""
        raise NotImplementedError(f"{type(self).__name__}: there is no picture of this environment")

    def _override(self, task: Tensors, tensordict: TensorDictBase, rows: Tensor) -> None:
        """Replaces entries of newly drawn tasks ``[R, ...]`` by what the reset of ``rows`` asks for."""

    def _set_seed(self, seed: int | None) -> None:
        if seed is None:
            return
        rows = torch.arange(self.batch_size[0], device=self.device)
        self._memory.streams = fold(torch.full_like(rows, seed), rows)
        self._memory.episodes = torch.zeros_like(rows)
        self._queue.clear()

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        self._begin_episodes(self._resetting(tensordict), tensordict)
        return self._wrap(dict(self._memory.shown))

    def _resetting(self, tensordict: TensorDictBase | None) -> Tensor:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            return torch.arange(self.batch_size[0], device=self.device)
        rows = mask.view(self.batch_size).nonzero().squeeze(-1)
        if not self._memory.task:
            self._require("_reset", f"{len(rows)} rows", len(rows) == mask.numel(), "cover all rows at first")
        return rows

    def _begin_episodes(self, rows: Tensor, tensordict: TensorDictBase | None) -> None:
        if rows.shape[0] == 0:
            return
        memory = self._memory
        task = self._tasks_for(rows, tensordict)
        state = {"step_index": torch.zeros_like(rows).unsqueeze(-1), **self._begin(task)}
        shown = self._first_timestep(task, state)
        if rows.shape[0] == self.batch_size[0]:
            memory.task, memory.state, memory.shown = task, state, shown
            return
        for name, value in task.items():  # large and never shown: replaced in place
            memory.task[name].index_copy_(0, rows, value)
        memory.state = {k: v.index_copy(0, rows, state[k]) for k, v in memory.state.items()}
        memory.shown = {k: v.index_copy(0, rows, shown[k]) for k, v in memory.shown.items()}

    def _tasks_for(self, rows: Tensor, tensordict: TensorDictBase | None) -> Tensors:
        memory = self._memory
        seeds = None if tensordict is None else tensordict.get("task_seed", None)
        if seeds is None:
            task = self._queue.take(rows, memory.streams, memory.episodes, self._draw_tasks)
            memory.episodes = memory.episodes.index_add(0, rows, torch.ones_like(rows))
        else:
            shape = (self.batch_size[0], 1)
            good = seeds.shape == shape and seeds.dtype == torch.int64
            self._require("task_seed", f"{seeds.dtype} {tuple(seeds.shape)}", good, f"be int64 {shape}")
            chosen = seeds[rows, 0]
            task = {"task_seed": chosen, **self._draw_tasks(chosen)}
        if tensordict is not None:
            self._override(task, tensordict, rows)
        return task

    def _first_timestep(self, task: Tensors, state: Tensors) -> Tensors:
        rows = state["step_index"].shape[0]
        action = torch.zeros(rows, self._actions.encoded_size, device=self.device)
        reward = torch.zeros(rows, 1, device=self.device)
        false = torch.zeros(rows, 1, dtype=torch.bool, device=self.device)
        return self._timestep(task, state, action, reward, false, false, starts=True)

    def _timestep(
        self,
        task: Tensors,
        state: Tensors,
        prev_action: Tensor,
        prev_reward: Tensor,
        success: Tensor,
        terminated: Tensor,
        *,
        starts: bool,
    ) -> Tensors:
        """All that is shown of a timestep, in tensors that no later step reads."""
        step_index = state["step_index"]
        return {
            **self._observe(task, state),
            "prev_action": prev_action,
            "prev_reward": prev_reward,
            "time": step_index / self._horizon,
            "trial_start": torch.full_like(success, starts),
            "step_index": step_index.clone(),
            "is_init": torch.full_like(success, starts),
            "success": success.clone(),
            "done": terminated.clone(),
            "terminated": terminated,
            "truncated": torch.zeros_like(terminated),
        }

    def _advance(self, action: Tensor) -> tuple[Tensors, Tensor]:
        """Steps all rows; returns what is shown and the reward."""
        memory = self._memory
        if not memory.task:
            raise RuntimeError(f"{type(self).__name__}: reset must be called before step")
        self._actions.check(type(self).__name__, action)
        state, reward, success = self._transition(memory.task, memory.state, action)
        state["step_index"] = memory.state["step_index"] + 1
        terminated = success | (state["step_index"] >= self._time_limit)
        memory.state = state
        memory.shown = self._timestep(
            memory.task, state, self._actions.encode(action), reward, success, terminated, starts=False
        )
        return memory.shown, reward.clone()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        shown, reward = self._advance(tensordict.get("action"))
        return self._wrap({**shown, "reward": reward})

    def _wrap(self, entries: Mapping[str, Any]) -> TensorDict:
        return TensorDict._new_unsafe(entries, batch_size=self.batch_size, device=self.device)

    def _step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        keys = set(tensordict.keys())
        if self.run_type_checks or "next" in keys or "_step" in keys:
            return super()._step_and_maybe_reset(tensordict)
        self._assert_tensordict_shape(tensordict)
        if tensordict.device != self.device:
            tensordict = tensordict.to(self.device)
        shown, reward = self._advance(tensordict.get("action"))
        tensordict.set("next", self._wrap({**shown, "reward": reward}))
        rows = shown["done"].view(self.batch_size).nonzero().squeeze(-1)
        self._begin_episodes(rows, None)
        root = self._wrap(dict(self._memory.shown))
        foreign = keys - self._known
        if foreign:  # a policy's own entries stay; as in `EnvBase`, they are cleared if only some rows begin
            carried = tensordict.select(*foreign)
            if 0 < rows.shape[0] < self.batch_size[0]:
                ongoing = ~shown["done"].view(self.batch_size)
                carried = carried.where(ongoing, other=carried.empty(), pad=0)
            root.update(carried)
        return tensordict, root

    def present(self) -> TensorDict:
        """The timestep that all rows are at: what `reset` or the last step showed."""
        return self._wrap({name: value.clone() for name, value in self._memory.shown.items()})

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of everything that decides how all rows go on, in the middle of episodes too."""
        return self._memory.snapshot(self._overrides)

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken, in an environment built with the same settings.

        The timestep to go on from is `present`.

        Raises:
            ValueError: If an entry is missing or has another number of rows.
        """
        self._memory = restore(state_dict, self._memory.streams, self._draw_tasks)
        self._queue.clear()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "BatchedEnv":
        super()._apply(fn, recurse)
        self._memory.apply(fn)
        self._queue.clear()
        return self
