"""Base class of natively batched environments.

A `BatchedEnv` plays ``num_envs`` independent episodes in tensor code. All randomness of an episode
comes from its task seed (`yamame_envs.streams`). `yamame_envs.context` describes the entries of a
timestep.

The horizon is finite and visible (``time``): an episode that reaches it is terminated, never
truncated.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
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
from yamame_envs.env_state import EnvState, choose, restore
from yamame_envs.former_hooks import BATCHED_HOOKS, former_attribute, link_former_names
from yamame_envs.hooks import begun, check_observed, drawn_tasks, moved
from yamame_envs.split import FEWEST, Identity, Split, draw_side, hash_of
from yamame_envs.streams import fold
from yamame_envs.tasks import TaskQueue, Tensors, sent

# Tasks that are drawn to find out whether there are enough for a split.
_PROBED_TASKS = 64
# Steps for which tasks are reserved on a device at once, because every reservation waits for it.
_RESERVED_STEPS = 16
# Entries of a task that do not distinguish it: its seed, the episode's number, and a hash.
_RESERVED_NAMES = frozenset({"task_seed", "number", "world_hash"})


class BatchedEnv(ContextEnv):
    """Base class of natively batched environments.

    A subclass implements the hooks `draw_tasks`, `begin`, `transition` and `observe`, each for many
    envs at once; an env never reads the entries of others. The state always holds ``step_index``
    ``[N, 1]``, which this class counts. If an episode has several attempts at its task, the state
    also holds ``trial_start`` ``[N, 1]`` bool (an attempt begins here), and if it can end before
    the time limit and without success, ``ended`` ``[N, 1]`` bool.

    Further hooks have defaults: `hidden_values`, `task_limit`, `draw_picture` and `override`.
    Tasks are held out by `hold_out`. `yamame_envs.testing.check_env` checks a subclass.

    Steps can be captured, so only `draw_tasks` may branch on the data; if another hook does,
    `capture_obstacle` must name it. `draw_tasks` runs on the CPU and must find its tables there.

    Args:
        observations: Spec of one env for every entry that `observe` returns.
        hidden: Number of values of `hidden_values`, which are written to ``hidden`` ``[N, hidden]``
            float32. With 0, they stay hidden.
        arguments: Arguments of `ContextEnv`. After the time limit an episode is terminated.

    Attributes:
        env_state: Tasks, state and timestep of all envs (`yamame_envs.env_state.EnvState`).

    Raises:
        ArgumentError: A number is out of its range.
    """

    _former_names: ClassVar[Mapping[str, str]] = BATCHED_HOOKS
    _env_state = former_attribute("env_state")

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

    split: Split = "all"
    """Side of the split that episodes play; set by `hold_out`."""
    identity: tuple[str, ...] = ()
    """Entries of a task that are hashed for the split; empty for all. A task may lack some."""
    identities: ClassVar[Mapping[str, Identity]] = {}
    """Identities by value of the setting ``split_by``. If empty, there is no such setting."""
    split_novelty: str = "new tasks"
    """Description of what is new on the other side of the split; set by `hold_out`."""
    # Set when `check_split` has found enough tasks.
    _is_split = False

    def hold_out(self, split: Split, split_by: str | None = None) -> None:
        """Set the side of the split and the identity of tasks.

        A subclass with a setting ``split`` calls it in its constructor, before the base constructor
        runs. It sets ``split_novelty`` afterwards where its settings change which entries tasks
        have.

        Args:
            split: Side of the split that episodes play.
            split_by: Key of ``identities``. None, where there are none: tasks are the same if all
                entries of ``identity`` agree.

        Raises:
            ArgumentError: There is no such side or identity.
        """
        require_choice(self.label, "split", split, get_args(Split))
        self.split = split
        if not self.identities:
            return
        require_choice(self.label, "split_by", split_by, tuple(self.identities))
        identity = self.identities[str(split_by)]
        self.identity = identity.entries
        self.split_novelty = identity.novelty

    def check_split(self) -> None:
        """Raise if there are too few tasks for a split.

        A subclass may call this at the end of its constructor to raise early.

        Raises:
            ArgumentError: ``split`` is not ``all``, and there are fewer than 8 different tasks.
        """
        if self.split == "all" or self._is_split:
            return
        drawn = drawn_tasks(self, fold(torch.arange(_PROBED_TASKS), 0))
        count = len(self.task_hash(drawn).unique())
        conditions = ["be all"]
        for name, identity in self.identities.items():
            entries = {entry: drawn[entry] for entry in identity.entries if entry in drawn}
            if len(hash_of(entries).unique()) >= FEWEST:
                conditions.append(f"have split_by={name}")
        condition = (
            f"{' or '.join(conditions)}, as there are too few different tasks ({count}) "
            "to hold some out"
        )
        require(self.label, "split", self.split, count >= FEWEST, condition)
        self._is_split = True

    @property
    def novelty(self) -> str | None:
        """See `ContextEnv.novelty`."""
        return None if self.split == "all" else self.split_novelty

    def tasks_of(self, task_seed: Tensor) -> Tensors:
        """Return the tasks ``[R, ...]`` of seeds ``[R]`` on the CPU.

        They are on the side of the split that episodes play (`yamame_envs.split`).
        """
        self.check_split()
        draw = partial(drawn_tasks, self)
        task = draw_side(draw, self.task_hash, task_seed, self.split, self.label)
        names = sorted(task)
        is_free = _RESERVED_NAMES.isdisjoint(names)
        condition = f"return no entry {' or '.join(sorted(_RESERVED_NAMES))}"
        require(self.label, "draw_tasks", names, is_free, condition)
        return task

    def task_hash(self, task: Tensors) -> Tensor:
        """Return the hashes ``[R]`` int64 of tasks ``[R, ...]``.

        Equal tasks have equal hashes, whatever their seeds.
        """
        return hash_of({name: task[name] for name in self._identity_of(task)})

    def task_hashes(self) -> Tensor:
        """Return the hashes ``[N]`` int64 of the current tasks, after a reset."""
        return self.task_hash(self.env_state.task)

    @property
    def plays_all_tasks(self) -> bool:
        """True if there are too few tasks for a split, so that an evaluation plays all of them."""
        if self.split != "all":
            return False
        drawn = drawn_tasks(self, fold(torch.arange(_PROBED_TASKS), 0))
        return len(self.task_hash(drawn).unique()) < FEWEST

    def _identity_of(self, task: Tensors) -> list[str]:
        """Return the sorted names of the hashed entries of a task."""
        names = self.identity or task.keys() - _RESERVED_NAMES
        return sorted(name for name in names if name in task)

    @abstractmethod
    def draw_tasks(self, task_seed: Tensor) -> Tensors:
        """Draw the tasks of seeds on the CPU.

        A task is constant during an episode. It must be a pure function of its seed; draw from the
        functions of `yamame_envs.streams`.

        Args:
            task_seed: ``[R]`` int64, on the CPU. R is any number of tasks.

        Returns:
            New tensors ``[R, ...]`` by name, any but ``task_seed``, ``number`` and ``world_hash``.
        """

    @abstractmethod
    def begin(self, task: Tensors) -> Tensors:
        """Return the state ``[N, ...]`` at the start of these tasks ``[N, ...]``.

        The state holds everything that changes during an episode, besides ``step_index``.
        """

    @abstractmethod
    def transition(
        self, task: Tensors, state: Tensors, action: Tensor
    ) -> tuple[Tensors, Tensor, Tensor]:
        """Step all envs, out of place.

        Noise, too, is a function of the seed: draw a key in `draw_tasks`, and fold the step index
        into it.

        Args:
            task: ``[N, ...]``, entries of `draw_tasks`.
            state: ``[N, ...]``, entries of `begin`, and ``step_index`` ``[N, 1]`` int64.
            action: ``[N, ...]``, in bounds, as in ``action_spec``.

        Returns:
            The new state without ``step_index``, the reward ``[N, 1]`` float32 and the success
            ``[N, 1]`` bool.
        """

    @abstractmethod
    def observe(self, task: Tensors, state: Tensors) -> Tensors:
        """Return new tensors ``[N, ...]`` for all entries of ``observations``.

        Args:
            task: ``[N, ...]``, entries of `draw_tasks`.
            state: ``[N, ...]``, entries of `begin` or `transition`, and ``step_index`` ``[N, 1]``.
        """

    def hidden_values(self, task: Tensors, state: Tensors) -> Tensor:
        """Return the hidden part of task and state: a new tensor ``[N, H]`` float32 of order 1.

        Raises:
            NotImplementedError: This environment has no hidden values.
        """
        raise NotImplementedError(f"{self.label}: it has no hidden values")

    def task_limit(self, task: Tensors) -> Tensor:
        """Return the time limit of these tasks in steps, a scalar or ``[N, 1]`` float32.

        By default, ``horizon``. Limits must not exceed it.
        """
        return self.horizon

    def render(self, env_id: int = 0) -> npt.NDArray[np.uint8]:
        """Draw one env: ``[H, W, 3]`` uint8 RGB.

        Raises:
            ArgumentError: There is no such env, or it was not reset.
            NotImplementedError: This environment cannot be drawn.
        """
        is_reset = bool(self.env_state.task) and 0 <= env_id < self.batch_size[0]
        require(self.label, "env_id", env_id, is_reset, "be an env that was reset")
        return self.draw_picture(env_id)

    def draw_picture(self, env_id: int) -> npt.NDArray[np.uint8]:
        """Draw an env that was reset: ``[H, W, 3]`` uint8 RGB.

        Raises:
            NotImplementedError: This environment cannot be drawn.
        """
        raise NotImplementedError(f"{self.label}: it cannot be drawn")

    def override(self, task: Tensors, tensordict: TensorDictBase, begins: Tensor) -> None:
        """Replace entries of new tasks by those in the argument of a reset.

        Args:
            task: ``[N, ...]``, drawn tasks; changed in place.
            tensordict: Argument of `reset`.
            begins: ``[N]`` bool, the envs that reset.
        """

    @property
    def current_timestep(self) -> Tensors:
        """See `ContextEnv.current_timestep`."""
        return self.env_state.timestep

    def restart(self, streams: Tensor) -> None:
        """See `ContextEnv.restart`."""
        if "env_state" not in self.__dict__:
            self.env_state = EnvState(streams, torch.zeros_like(streams), {}, {}, {})
            self._queue = TaskQueue(len(streams))
            # Steps for which tasks are certainly drawn.
            self._room = 0
            # Flags since the last `reserve`: an action was out of bounds; an episode began without
            # a task. Steps on a device set them there, because raising would wait for it.
            faults = torch.zeros(2, dtype=torch.int64, device=streams.device)
            self.register_buffer("_faults", faults, persistent=False)
        self.number_episodes(streams, torch.zeros_like(streams))

    def number_episodes(self, streams: Tensor, episodes: Tensor) -> None:
        """Set the streams and the number ``[N]`` of the next episode of each env."""
        self.env_state.streams = streams
        self.env_state.episodes = episodes
        self._queue.clear()
        self._room = 0

    def choose_tasks(self, choose: Callable[[Tensor], Tensor] | None) -> None:
        """Play the tasks of chosen seeds from the next episode on, see `TaskQueue.choose`."""
        self._queue.choose = choose
        self.number_episodes(self.env_state.streams, self.env_state.episodes)

    def reserve(self, num_steps: int) -> bool:
        """Draw tasks in advance; see `ContextEnv.reserve`."""
        env_state = self.env_state
        num_envs = self.batch_size[0]
        # One copy: each would wait for the device.
        copied = torch.cat([self._faults, env_state.streams, env_state.episodes]).cpu()
        faults, streams, episodes = copied.split([2, num_envs, num_envs])
        out_of_bounds, without_task = faults.bool().tolist()
        if out_of_bounds or without_task:
            self._faults.zero_()
            bounds = f"{self.action_encoding.low.tolist()}..{self.action_encoding.high.tolist()}"
            got = "an action of an earlier step that was not"
            require(self.label, "action", got, not out_of_bounds, f"be in {bounds}")
            raise RuntimeError(
                f"{self.label}: reserve must be called before steps that are captured"
            )
        self._room = self._queue.reserve(num_steps, streams, episodes, self.tasks_of, self.device)
        return super().reserve(num_steps)

    def begin_episodes(self, begins: Tensor, tensordict: TensorDictBase | None) -> None:
        """See `ContextEnv.begin_episodes`."""
        self._begin_tasks(begins, self._tasks_for(begins, tensordict))

    def begin_again(self, begins: Tensor, task_seed: Tensor) -> None:
        """See `ContextEnv.begin_again`."""
        # The task is not drawn again: an instruction given to `reset` would be lost.
        self._begin_tasks(begins, self.env_state.task)

    def _begin_tasks(self, begins: Tensor, task: Tensors) -> None:
        env_state = self.env_state
        state, timestep = self.started(task)
        if env_state.task:
            if task is not env_state.task:
                task = choose(begins, task, env_state.task)
            state = choose(begins, state, env_state.state)
            timestep = choose(begins, timestep, env_state.timestep)
        else:
            check_observed(self, timestep)
        env_state.task = task
        env_state.state = state
        env_state.timestep = timestep

    def _tasks_for(self, begins: Tensor, tensordict: TensorDictBase | None) -> Tensors:
        """Return new tasks ``[N, ...]``, of which those of a mask ``[N]`` will be played."""
        chosen = self.requested_seeds(tensordict)
        if chosen is None:
            task = self._numbered_tasks(begins)
        else:
            drawn = {"task_seed": chosen, **self.tasks_of(chosen.cpu())}
            task = {name: sent(value, self.device) for name, value in drawn.items()}
        if tensordict is not None:
            self.override(task, tensordict, begins)
        return task

    def _numbered_tasks(self, begins: Tensor) -> Tensors:
        env_state = self.env_state
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

    def started(self, task: Tensors) -> tuple[Tensors, Tensors]:
        """Return the state and the timestep ``[N, ...]`` at the start of tasks ``[N, ...]``."""
        num_envs = self.batch_size[0]
        zero = torch.zeros(num_envs, 1, device=self.device)
        action = zero.expand(-1, self.action_encoding.encoded_size).clone()
        state = {"step_index": zero.long(), **begun(self, task, num_envs)}
        no = zero.bool()
        return state, self._timestep(task, state, action, zero, no, no, starts=True)

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
        timestep = dict(self.observe(task, state))
        if self._shows_hidden:
            timestep["hidden"] = self.hidden_values(task, state)
        timestep |= context_values(
            state["step_index"].clone(),
            prev_action=prev_action,
            prev_reward=prev_reward,
            is_init=is_init,
            trial_start=state.get("trial_start", is_init).clone(),
            horizon=self.task_limit(task),
        )
        timestep["success"] = success.clone()
        timestep["done"] = terminated.clone()
        timestep["terminated"] = terminated
        timestep["truncated"] = torch.zeros_like(terminated)
        return timestep

    def advance(self, action: Tensor) -> tuple[Tensors, Tensor]:
        """See `ContextEnv.advance`."""
        env_state = self.env_state
        if action.is_cpu and not capturing():
            self.check_action(action, env_state.state["step_index"])
        else:
            low, high = self.action_encoding.bounds(action.device)
            in_bounds = (action >= low) & (action <= high)
            self._faults[0].logical_or_(~in_bounds.all())
            # A wrong index on a device would end the process.
            action = torch.where(in_bounds, action, low.to(action.dtype))
        state, reward, success = moved(self, env_state.task, env_state.state, action)
        state["step_index"] = env_state.state["step_index"] + 1
        terminated = success | (state["step_index"] >= self.task_limit(env_state.task))
        if "ended" in state:
            terminated = terminated | state["ended"]
        env_state.state = state
        env_state.timestep = self._timestep(
            env_state.task,
            state,
            self.action_encoding.encode(action),
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
        return self.env_state.snapshot(self.overrides, self.time_limit)

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict`; `present` returns the restored timestep.

        Raises:
            ArgumentError: The state was saved with other settings. The environment is unchanged.
        """
        self.env_state = restore(self, state_dict)
        self.number_episodes(self.env_state.streams, self.env_state.episodes)

    def static_buffers(self) -> Tensors:
        """Return the tensors that a step reads and replaces, by name."""
        tensors = self.env_state.tensors()
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
        self.env_state = EnvState.of(kept)
        self._queue.tasks = queued
        self._room = 0

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "BatchedEnv":
        super()._apply(fn, recurse)
        self.env_state.apply(fn)
        self.number_episodes(self.env_state.streams, self.env_state.episodes)
        return self


link_former_names(BatchedEnv, BATCHED_HOOKS)
