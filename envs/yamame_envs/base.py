"""Base class of natively batched environments.

A `BatchedEnv` plays ``num_envs`` independent episodes in tensor code. All randomness of an episode
comes from its task seed (`yamame_envs.streams`). `yamame_envs.context` describes the entries of a
timestep.

The horizon is finite and visible (``time``): an episode that reaches it is terminated, never
truncated.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, get_args

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Unbounded
from torchrl.data.tensor_specs import TensorSpec
from yamame.checks import require, require_choice
from yamame.execution.capturing import capturing
from yamame.transforms import context_values

from yamame_envs.context import ContextEnv
from yamame_envs.env_state import EnvState, restore
from yamame_envs.split import FEWEST, Identity, Split, draw_side, hash_of
from yamame_envs.streams import fold
from yamame_envs.tasks import TaskQueue, Tensors, sent

# Tasks that are drawn to find out whether there are enough for a split.
_PROBED_TASKS = 64
# Steps for which tasks are reserved on a device at once, because every reservation waits for it.
_RESERVED_STEPS = 16


class BatchedEnv(ContextEnv):
    """Base class of natively batched environments.

    A subclass implements `_draw_tasks`, `_begin`, `_transition` and `_observe`, each for many envs
    at once. The state always holds ``step_index`` ``[N, 1]``, which this class counts. If an
    episode has several attempts at its task, the state also holds ``trial_start`` ``[N, 1]`` bool
    (an attempt begins here), and if it can end before the time limit and without success, ``ended``
    ``[N, 1]`` bool.

    Steps can be captured, so only `_draw_tasks` may branch on the data; if another method does,
    `capture_obstacle` must name it. `_draw_tasks` runs on the CPU and must find its tables there.

    Args:
        observations: Spec of one env for every entry that `_observe` returns.
        hidden: Number of values of `_hidden`, which are written to ``hidden`` ``[N, hidden]``
            float32. With 0, they stay hidden.
        arguments: Arguments of `ContextEnv`. After the time limit an episode is terminated.
    """

    def __init__(
        self, *, observations: Mapping[str, TensorSpec], hidden: int = 0, **arguments: Any
    ) -> None:
        self._shows_hidden = hidden > 0
        entries = dict(observations)
        if hidden:
            entries["hidden"] = Unbounded(hidden, device=arguments["device"])
        super().__init__(observations=entries, **arguments)

    @property
    def capture_obstacle(self) -> str | None:
        """None, unless a subclass branches on the data."""
        return None

    _split: Split = "all"
    """Side of the split that episodes play; set by `_hold_out`."""
    _identity: tuple[str, ...] = ()
    """Entries of a task that are hashed for the split; empty for all. A task may lack some."""
    _identities: ClassVar[Mapping[str, Identity]] = {}
    """Identities by value of the setting ``split_by``."""
    _novelty: str = "new tasks"
    # Set when `_check_split` has found enough tasks.
    _is_split = False

    @classmethod
    def _choose(cls, split: Split) -> Split:
        require_choice(cls.__name__, "split", split, get_args(Split))
        return split

    def _hold_out(self, split: Split, split_by: str) -> None:
        """Set the side of the split and the identity of tasks, before the base constructor runs.

        A subclass sets ``_novelty`` afterwards where its settings change which entries tasks have.
        """
        self._split = self._choose(split)
        require_choice(self.label, "split_by", split_by, tuple(self._identities))
        identity = self._identities[split_by]
        self._identity = identity.entries
        self._novelty = identity.novelty

    def _check_split(self) -> None:
        """Raise if there are too few tasks for a split.

        A subclass may call this at the end of its constructor to raise early.
        """
        if self._split == "all" or self._is_split:
            return
        drawn = self._draw_tasks(fold(torch.arange(_PROBED_TASKS), 0))
        count = len(self.task_hash(drawn).unique())
        conditions = ["be all"]
        for name, identity in self._identities.items():
            entries = {entry: drawn[entry] for entry in identity.entries if entry in drawn}
            if len(hash_of(entries).unique()) >= FEWEST:
                conditions.append(f"have split_by={name}")
        condition = (
            f"{' or '.join(conditions)}, as there are too few different tasks ({count}) "
            "to hold some out"
        )
        require(self.label, "split", self._split, count >= FEWEST, condition)
        self._is_split = True

    @property
    def novelty(self) -> str | None:
        """See `ContextEnv.novelty`."""
        return None if self._split == "all" else self._novelty

    def tasks_of(self, task_seed: Tensor) -> Tensors:
        """Return the tasks ``[R, ...]`` of seeds ``[R]`` on the CPU.

        They are on the side of the split that episodes play (`yamame_envs.split`).
        """
        self._check_split()
        return draw_side(self._draw_tasks, self.task_hash, task_seed, self._split, self.label)

    def task_hash(self, task: Tensors) -> Tensor:
        """Return the hashes ``[R]`` int64 of tasks ``[R, ...]``.

        Equal tasks have equal hashes, whatever their seeds.
        """
        return hash_of({name: task[name] for name in self._identity_of(task)})

    def task_hashes(self) -> Tensor:
        """Return the hashes ``[N]`` int64 of the current tasks, after a reset."""
        return self.task_hash(self._env_state.task)

    @property
    def plays_all_tasks(self) -> bool:
        """True if there are too few tasks for a split, so that an evaluation plays all of them."""
        if self._split != "all":
            return False
        drawn = self._draw_tasks(fold(torch.arange(_PROBED_TASKS), 0))
        return len(self.task_hash(drawn).unique()) < FEWEST

    def _identity_of(self, task: Tensors) -> list[str]:
        """Return the sorted names of the hashed entries of a task."""
        # The seed and the episode's number do not distinguish tasks.
        names = self._identity or task.keys() - {"task_seed", "number", "world_hash"}
        return sorted(name for name in names if name in task)

    @abstractmethod
    def _draw_tasks(self, task_seed: Tensor) -> Tensors:
        """Draw the tasks of seeds ``[R]`` on the CPU: new tensors ``[R, ...]``.

        A task is constant during an episode.
        """

    @abstractmethod
    def _begin(self, task: Tensors) -> Tensors:
        """Return the state ``[N, ...]`` at the start of these tasks."""

    @abstractmethod
    def _transition(
        self, task: Tensors, state: Tensors, action: Tensor
    ) -> tuple[Tensors, Tensor, Tensor]:
        """Step all envs, out of place.

        Returns:
            The new state without ``step_index``, the reward ``[N, 1]`` float32 and the success
            ``[N, 1]`` bool.
        """

    @abstractmethod
    def _observe(self, task: Tensors, state: Tensors) -> Tensors:
        """Return new tensors ``[N, ...]`` for all entries of ``observations``."""

    def _hidden(self, task: Tensors, state: Tensors) -> Tensor:
        """Return the hidden part of task and state: a new tensor ``[N, H]`` float32 of order 1."""
        raise NotImplementedError(f"{self.label}: it has no hidden values")

    def _limit(self, task: Tensors) -> Tensor:
        """Return the time limit of these tasks, a scalar or ``[N, 1]`` float32."""
        return self._horizon

    def render(self, env_id: int = 0) -> npt.NDArray[np.uint8]:
        """Draw one env: ``[H, W, 3]`` uint8 RGB.

        Raises:
            ArgumentError: There is no such env, or it was not reset.
            NotImplementedError: This environment cannot be drawn.
        """
        is_reset = bool(self._env_state.task) and 0 <= env_id < self.batch_size[0]
        require(self.label, "env_id", env_id, is_reset, "be an env that was reset")
        return self._draw(env_id)

    def _draw(self, env_id: int) -> npt.NDArray[np.uint8]:
        """Draw an env that was reset."""
        raise NotImplementedError(f"{self.label}: it cannot be drawn")

    def _override(self, task: Tensors, tensordict: TensorDictBase, begins: Tensor) -> None:
        """Replace entries of new tasks by those in the argument of a reset.

        Args:
            task: ``[N, ...]``, drawn tasks; changed in place.
            tensordict: Argument of `reset`.
            begins: ``[N]`` bool, the envs that reset.
        """

    @property
    def _present(self) -> Tensors:
        return self._env_state.timestep

    def _restart(self, streams: Tensor) -> None:
        if "_env_state" not in self.__dict__:
            self._env_state = EnvState(streams, torch.zeros_like(streams), {}, {}, {})
            self._queue = TaskQueue(len(streams))
            # Steps for which tasks are certainly drawn.
            self._room = 0
            # Flags since the last `reserve`: an action was out of bounds; an episode began without
            # a task. Steps on a device set them there, because raising would wait for it.
            faults = torch.zeros(2, dtype=torch.int64, device=streams.device)
            self.register_buffer("_faults", faults, persistent=False)
        self._number(streams, torch.zeros_like(streams))

    def _number(self, streams: Tensor, episodes: Tensor) -> None:
        """Set the streams and the number ``[N]`` of the next episode of each env."""
        self._env_state.streams = streams
        self._env_state.episodes = episodes
        self._queue.clear()
        self._room = 0

    def reserve(self, num_steps: int) -> bool:
        """Draw tasks in advance; see `ContextEnv.reserve`."""
        env_state = self._env_state
        num_envs = self.batch_size[0]
        # One copy: each would wait for the device.
        copied = torch.cat([self._faults, env_state.streams, env_state.episodes]).cpu()
        faults, streams, episodes = copied.split([2, num_envs, num_envs])
        out_of_bounds, without_task = faults.bool().tolist()
        if out_of_bounds or without_task:
            self._faults.zero_()
            bounds = f"{self._encoding.low.tolist()}..{self._encoding.high.tolist()}"
            got = "an action of an earlier step that was not"
            require(self.label, "action", got, not out_of_bounds, f"be in {bounds}")
            raise RuntimeError(
                f"{self.label}: reserve must be called before steps that are captured"
            )
        self._room = self._queue.reserve(num_steps, streams, episodes, self.tasks_of, self.device)
        return super().reserve(num_steps)

    def _begin_episodes(self, begins: Tensor, tensordict: TensorDictBase | None) -> None:
        self._begin_tasks(begins, self._tasks_for(begins, tensordict))

    def _begin_again(self, begins: Tensor, task_seed: Tensor) -> None:
        # The task is not drawn again: an instruction given to `reset` would be lost.
        self._begin_tasks(begins, self._env_state.task)

    def _begin_tasks(self, begins: Tensor, task: Tensors) -> None:
        env_state = self._env_state
        step_index = torch.zeros_like(begins, dtype=torch.int64).unsqueeze(-1)
        state = {"step_index": step_index, **self._begin(task)}
        timestep = self._first_timestep(task, state)
        if env_state.task:
            if task is not env_state.task:
                task = _chosen(begins, task, env_state.task)
            state = _chosen(begins, state, env_state.state)
            timestep = _chosen(begins, timestep, env_state.timestep)
        env_state.task = task
        env_state.state = state
        env_state.timestep = timestep

    def _tasks_for(self, begins: Tensor, tensordict: TensorDictBase | None) -> Tensors:
        """Return new tasks ``[N, ...]``, of which those of a mask ``[N]`` will be played."""
        chosen = self._chosen_tasks(tensordict)
        if chosen is None:
            task = self._numbered_tasks(begins)
        else:
            drawn = {"task_seed": chosen, **self.tasks_of(chosen.cpu())}
            task = {name: sent(value, self.device) for name, value in drawn.items()}
        if tensordict is not None:
            self._override(task, tensordict, begins)
        return task

    def _numbered_tasks(self, begins: Tensor) -> Tensors:
        env_state = self._env_state
        queue = self._queue
        if capturing():
            # Replays of the graph are not counted.
            self._room = 0
        elif begins.is_cpu:
            if queue.lacks(begins, env_state.episodes):
                queue.reserve(1, env_state.streams, env_state.episodes, self.tasks_of)
        else:
            if self._room < 1:
                self.reserve(_RESERVED_STEPS)
            self._room -= 1
        task = queue.take(env_state.episodes)
        number = task.pop("number")
        if capturing():
            is_missing = (number != env_state.episodes) & begins
            self._faults[1].logical_or_(is_missing.any())
        env_state.episodes = env_state.episodes + begins
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
        """Return all entries of a timestep, in tensors that no later step reads."""
        is_init = torch.full_like(success, starts)
        timestep = dict(self._observe(task, state))
        if self._shows_hidden:
            timestep["hidden"] = self._hidden(task, state)
        timestep |= context_values(
            state["step_index"].clone(),
            prev_action=prev_action,
            prev_reward=prev_reward,
            is_init=is_init,
            trial_start=state.get("trial_start", is_init).clone(),
            horizon=self._limit(task),
        )
        timestep["success"] = success.clone()
        timestep["done"] = terminated.clone()
        timestep["terminated"] = terminated
        timestep["truncated"] = torch.zeros_like(terminated)
        return timestep

    def _advance(self, action: Tensor) -> tuple[Tensors, Tensor]:
        env_state = self._env_state
        if action.is_cpu and not capturing():
            self._check_action(action, env_state.state["step_index"])
        else:
            low, high = self._encoding.bounds(action.device)
            in_bounds = (action >= low) & (action <= high)
            self._faults[0].logical_or_(~in_bounds.all())
            # A wrong index on a device would end the process.
            action = torch.where(in_bounds, action, low.to(action.dtype))
        state, reward, success = self._transition(env_state.task, env_state.state, action)
        state["step_index"] = env_state.state["step_index"] + 1
        terminated = success | (state["step_index"] >= self._limit(env_state.task))
        if "ended" in state:
            terminated = terminated | state["ended"]
        env_state.state = state
        env_state.timestep = self._timestep(
            env_state.task,
            state,
            self._encoding.encode(action),
            reward,
            success,
            terminated,
            starts=False,
        )
        return env_state.timestep, reward.clone()

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of everything that decides how all envs continue, also mid-episode."""
        if self.device.type != "cpu":
            # Raises if an action of an earlier step was out of bounds.
            self.reserve(1)
        return self._env_state.snapshot(self._overrides)

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict` of an environment with the same settings.

        `present` returns the restored timestep.

        Raises:
            ValueError: An entry is missing or has another number of envs.
        """
        self._env_state = restore(state_dict, self._env_state.streams, self.tasks_of)
        self._number(self._env_state.streams, self._env_state.episodes)

    def static_buffers(self) -> Tensors:
        """Return the tensors that a step reads and replaces, by name."""
        tensors = self._env_state.tensors()
        for name, value in self._queue.tasks.items():
            tensors[f"queue.{name}"] = value
        return tensors

    def set_static_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        """Use other tensors in the place of those of `static_buffers`, without copying them."""
        queued = {}
        kept = {}
        for name, value in tensors.items():
            part, _, entry = name.partition(".")
            if part == "queue":
                queued[entry] = value
            else:
                kept[name] = value
        self._env_state = EnvState.of(kept)
        self._queue.tasks = queued
        self._room = 0

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "BatchedEnv":
        super()._apply(fn, recurse)
        self._env_state.apply(fn)
        self._number(self._env_state.streams, self._env_state.episodes)
        return self


def _chosen(mask: Tensor, new: Tensors, old: Tensors) -> Tensors:
    """Return entries ``[N, ...]`` of ``new`` where a mask ``[N]`` is set, else of ``old``."""
    chosen = {}
    for name, value in old.items():
        column = mask.view(-1, *[1] * (value.ndim - 1))
        chosen[name] = torch.where(column, new[name], value)
    return chosen
