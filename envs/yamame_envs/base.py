"""The machinery that all natively batched environments share.

A `BatchedEnv` plays ``num_envs`` independent episodes in tensor code. All randomness of an episode comes from
its task seed (`yamame_envs.random`). What is written at a timestep is told in `yamame_envs.context`.

The horizon is finite and visible (``time``): an episode that reaches it is terminated, never truncated.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data.tensor_specs import TensorSpec

from yamame_envs.actions import Actions
from yamame_envs.context import ContextEnv
from yamame_envs.memory import Memory, restore
from yamame_envs.tasks import TaskQueue, Tensors


class BatchedEnv(ContextEnv):
    """Base class of natively batched environments.

    A subclass says how a task is drawn, how an episode begins, how a step changes its state and what is seen,
    each for many rows at once: `_draw_tasks`, `_begin`, `_transition`, `_observe`. The state always holds
    ``step_index`` ``[N, 1]``, which this class counts. Where an episode has several attempts at its task, the
    state also holds ``trial_start`` ``[N, 1]`` bool (an attempt begins here), and where it can end before the
    time limit and without success, ``ended`` ``[N, 1]`` bool.

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
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            actions=actions,
            observations=observations,
            seed=seed,
            device=device,
        )

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

    @property
    def _present(self) -> Tensors:
        return self._memory.shown

    def _restart(self, streams: Tensor) -> None:
        if "_memory" not in self.__dict__:
            self._memory = Memory(streams, torch.zeros_like(streams), {}, {}, {})
            self._queue = TaskQueue(len(streams))
            return
        self._memory.streams = streams
        self._memory.episodes = torch.zeros_like(streams)
        self._queue.clear()

    def _begin_episodes(self, rows: Tensor, tensordict: TensorDictBase | None) -> None:
        self._begin_tasks(rows, self._tasks_for(rows, tensordict))

    def _begin_again(self, rows: Tensor, task_seed: Tensor) -> None:
        # Not drawn again: that costs far more, and a chosen instruction would be lost.
        task = {name: value.index_select(0, rows) for name, value in self._memory.task.items()}
        self._begin_tasks(rows, task)

    def _begin_tasks(self, rows: Tensor, task: Tensors) -> None:
        memory = self._memory
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
        chosen = self._chosen_tasks(rows, tensordict)
        if chosen is None:
            task = self._queue.take(rows, memory.streams, memory.episodes, self._draw_tasks)
            memory.episodes = memory.episodes.index_add(0, rows, torch.ones_like(rows))
        else:
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
        is_init = torch.full_like(success, starts)
        trial_start = state.get("trial_start", is_init)
        return {
            **self._observe(task, state),
            **self._context(
                state["step_index"].clone(), prev_action, prev_reward, is_init, trial_start.clone()
            ),
            "success": success.clone(),
            "done": terminated.clone(),
            "terminated": terminated,
            "truncated": torch.zeros_like(terminated),
        }

    def _advance(self, action: Tensor) -> tuple[Tensors, Tensor]:
        memory = self._memory
        self._actions.check(type(self).__name__, action, memory.state["step_index"])
        state, reward, success = self._transition(memory.task, memory.state, action)
        state["step_index"] = memory.state["step_index"] + 1
        terminated = success | (state["step_index"] >= self._horizon)
        if "ended" in state:
            terminated = terminated | state["ended"]
        memory.state = state
        memory.shown = self._timestep(
            memory.task, state, self._actions.encode(action), reward, success, terminated, starts=False
        )
        return memory.shown, reward.clone()

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
