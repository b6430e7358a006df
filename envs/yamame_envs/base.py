"""The machinery that all natively batched environments share.

A `BatchedEnv` plays ``num_envs`` independent episodes in tensor code. All randomness of an episode comes from
its task seed (`yamame_envs.streams`). What is written at a timestep is described in `yamame_envs.context`.

The horizon is finite and visible (``time``): an episode that reaches it is terminated, never truncated.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase
from torch import Tensor
from yamame.checks import require
from yamame.transforms import context_values

from yamame_envs.context import ContextEnv
from yamame_envs.env_state import EnvState, restore
from yamame_envs.tasks import TaskQueue, Tensors


class BatchedEnv(ContextEnv):
    """Base class of natively batched environments.

    A subclass says how a task is drawn, how an episode begins, how a step changes its state and what is seen,
    each for many envs at once: `_draw_tasks`, `_begin`, `_transition`, `_observe`. The state always holds
    ``step_index`` ``[N, 1]``, which this class counts. Where an episode has several attempts at its task, the
    state also holds ``trial_start`` ``[N, 1]`` bool (an attempt begins here), and where it can end before the
    time limit and without success, ``ended`` ``[N, 1]`` bool.

    Its arguments are those of `ContextEnv`; there is a time limit, after which an episode is terminated.
    """

    @abstractmethod
    def _draw_tasks(self, task_seed: Tensor) -> Tensors:
        """Draws the tasks of seeds ``[R]``: new tensors ``[R, ...]``, constant during an episode."""

    @abstractmethod
    def _begin(self, task: Tensors) -> Tensors:
        """The state ``[R, ...]`` at the start of these tasks."""

    @abstractmethod
    def _transition(self, task: Tensors, state: Tensors, action: Tensor) -> tuple[Tensors, Tensor, Tensor]:
        """One step of all envs, out of place.

        Returns:
            The new state without ``step_index``, the reward ``[N, 1]`` float32 and the success ``[N, 1]``
            bool.
        """

    @abstractmethod
    def _observe(self, task: Tensors, state: Tensors) -> Tensors:
        """What is seen: new tensors ``[R, ...]``, one for every entry of ``observations``."""

    def render(self, env_id: int = 0) -> npt.NDArray[np.uint8]:
        """Draws one env: ``[H, W, 3]`` uint8 RGB.

        Raises:
            ValueError: If there is no such env, or it was not reset.
            NotImplementedError: If there is no picture of this environment.
        """
        is_reset = bool(self._env_state.task) and 0 <= env_id < self.batch_size[0]
        require(self.label, "env_id", env_id, is_reset, "be an env that was reset")
        return self._draw(env_id)

    def _draw(self, env_id: int) -> npt.NDArray[np.uint8]:
        """The picture of an env that was reset."""
        raise NotImplementedError(f"{self.label}: there is no picture of this environment")

    def _override(self, task: Tensors, tensordict: TensorDictBase, env_ids: Tensor) -> None:
        """Replaces entries of newly drawn tasks ``[R, ...]`` by what the reset of ``env_ids`` asks for."""

    @property
    def _present(self) -> Tensors:
        return self._env_state.timestep

    def _restart(self, streams: Tensor) -> None:
        if "_env_state" not in self.__dict__:
            self._env_state = EnvState(streams, torch.zeros_like(streams), {}, {}, {})
            self._queue = TaskQueue(len(streams))
            return
        self._env_state.streams = streams
        self._env_state.episodes = torch.zeros_like(streams)
        self._queue.clear()

    def _begin_episodes(self, env_ids: Tensor, tensordict: TensorDictBase | None) -> None:
        self._begin_tasks(env_ids, self._tasks_for(env_ids, tensordict))

    def _begin_again(self, env_ids: Tensor, task_seed: Tensor) -> None:
        # Not drawn again: that costs far more, and a chosen instruction would be lost.
        task = {name: value.index_select(0, env_ids) for name, value in self._env_state.task.items()}
        self._begin_tasks(env_ids, task)

    def _begin_tasks(self, env_ids: Tensor, task: Tensors) -> None:
        env_state = self._env_state
        state = {"step_index": torch.zeros_like(env_ids).unsqueeze(-1), **self._begin(task)}
        timestep = self._first_timestep(task, state)
        if env_ids.shape[0] == self.batch_size[0]:
            env_state.task, env_state.state, env_state.timestep = task, state, timestep
            return
        for name, value in task.items():  # large and never shown: replaced in place
            env_state.task[name].index_copy_(0, env_ids, value)
        env_state.state = {k: v.index_copy(0, env_ids, state[k]) for k, v in env_state.state.items()}
        env_state.timestep = {k: v.index_copy(0, env_ids, timestep[k]) for k, v in env_state.timestep.items()}

    def _tasks_for(self, env_ids: Tensor, tensordict: TensorDictBase | None) -> Tensors:
        env_state = self._env_state
        chosen = self._chosen_tasks(env_ids, tensordict)
        if chosen is None:
            task = self._queue.take(env_ids, env_state.streams, env_state.episodes, self._draw_tasks)
            env_state.episodes = env_state.episodes.index_add(0, env_ids, torch.ones_like(env_ids))
        else:
            task = {"task_seed": chosen, **self._draw_tasks(chosen)}
        if tensordict is not None:
            self._override(task, tensordict, env_ids)
        return task

    def _first_timestep(self, task: Tensors, state: Tensors) -> Tensors:
        num_envs = state["step_index"].shape[0]
        action = torch.zeros(num_envs, self._encoding.encoded_size, device=self.device)
        reward = torch.zeros(num_envs, 1, device=self.device)
        false = torch.zeros(num_envs, 1, dtype=torch.bool, device=self.device)
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
        return {
            **self._observe(task, state),
            **context_values(
                state["step_index"].clone(),
                prev_action=prev_action,
                prev_reward=prev_reward,
                is_init=is_init,
                trial_start=state.get("trial_start", is_init).clone(),
                horizon=self._horizon,
            ),
            "success": success.clone(),
            "done": terminated.clone(),
            "terminated": terminated,
            "truncated": torch.zeros_like(terminated),
        }

    def _advance(self, action: Tensor) -> tuple[Tensors, Tensor]:
        env_state = self._env_state
        self._check_action(action, env_state.state["step_index"])
        state, reward, success = self._transition(env_state.task, env_state.state, action)
        state["step_index"] = env_state.state["step_index"] + 1
        terminated = success | (state["step_index"] >= self._horizon)
        if "ended" in state:
            terminated = terminated | state["ended"]
        env_state.state = state
        env_state.timestep = self._timestep(
            env_state.task, state, self._encoding.encode(action), reward, success, terminated, starts=False
        )
        return env_state.timestep, reward.clone()

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of everything that decides how all envs go on, in the middle of episodes too."""
        return self._env_state.snapshot(self._overrides)

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken, in an environment built with the same settings.

        The timestep to go on from is `present`.

        Raises:
            ValueError: If an entry is missing or has another number of envs.
        """
        self._env_state = restore(state_dict, self._env_state.streams, self._draw_tasks)
        self._queue.clear()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "BatchedEnv":
        super()._apply(fn, recurse)
        self._env_state.apply(fn)
        self._queue.clear()
        return self
