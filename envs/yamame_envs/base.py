"""The machinery that all natively batched environments share.

A `BatchedEnv` plays ``num_envs`` independent episodes in tensor code. All randomness of an episode
comes from its task seed (`yamame_envs.streams`). What is written at a timestep is described in
`yamame_envs.context`.

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

_LOOKED_AT = 64  # tasks that are drawn to see whether there are enough for a split
_FAR = 16
"""Steps of which a look at the device tells that there are tasks."""


class BatchedEnv(ContextEnv):
    """Base class of natively batched environments.

    A subclass says how a task is drawn, how an episode begins, how a step changes its state and
    what is seen, each for many envs at once: `_draw_tasks`, `_begin`, `_transition`, `_observe`.
    The state always holds ``step_index`` ``[N, 1]``, which this class counts. Where an episode has
    several attempts at its task, the state also holds ``trial_start`` ``[N, 1]`` bool (an attempt
    begins here), and where it can end before the time limit and without success, ``ended``
    ``[N, 1]`` bool.

    Steps can be captured: nothing but `_draw_tasks` decides by the data, or `capture_obstacle` says
    what does. Tasks are drawn on the CPU, so what `_draw_tasks` reads must be there.

    Args:
        observations: Spec of one env of every entry that `_observe` returns.
        hidden: How many numbers `_hidden` gives, which are shown as ``hidden`` ``[N, hidden]``
            float32; 0 where what is hidden stays so.
        arguments: Those of `ContextEnv`; there is a time limit, after which an episode is
            terminated.
    """

    def __init__(
        self, *, observations: Mapping[str, TensorSpec], hidden: int = 0, **arguments: Any
    ) -> None:
        self._shows_hidden = hidden > 0
        shown = {"hidden": Unbounded(hidden, device=arguments["device"])} if hidden else {}
        super().__init__(observations={**observations, **shown}, **arguments)

    @property
    def capture_obstacle(self) -> str | None:
        """None, unless a subclass decides by the data."""
        return None

    _split: Split = "all"
    """Side of the split that episodes play; a subclass with such a setting sets it first, see
    `_hold_out`.
    """
    _identity: tuple[str, ...] = ()
    """Entries of a task that are hashed for the split; empty for all of them. A task may lack
    some.
    """
    _identities: ClassVar[Mapping[str, Identity]] = {}
    """Identities to choose from, by the value of the setting ``split_by``."""
    _novelty: str = "new tasks"
    _is_split = False  # whether `_check_split` has found enough tasks

    @classmethod
    def _choose(cls, split: Split) -> Split:
        require_choice(cls.__name__, "split", split, get_args(Split))
        return split

    def _hold_out(self, split: Split, split_by: str) -> None:
        """Sets the side of the split and the identity of tasks, before the base is built.

        A subclass sets ``_novelty`` afterwards where its settings change which entries tasks have.
        """
        self._split = self._choose(split)
        require_choice(self.label, "split_by", split_by, tuple(self._identities))
        self._identity, self._novelty = self._identities[split_by]

    def _check_split(self) -> None:
        """Refuses to split very few tasks; a subclass may call this at the end of its constructor
        to refuse early.
        """
        if self._split == "all" or self._is_split:
            return
        drawn = self._draw_tasks(fold(torch.arange(_LOOKED_AT), 0))
        count = len(self.task_hash(drawn).unique())
        remedy = ["be all"]
        for name, (entries, _) in self._identities.items():
            others = hash_of({entry: drawn[entry] for entry in entries if entry in drawn})
            if len(others.unique()) >= FEWEST:
                remedy.append(f"have split_by={name}")
        condition = f"{' or '.join(remedy)}, as there are too few different tasks ({count}) to hold some out"
        require(self.label, "split", self._split, count >= FEWEST, condition)
        self._is_split = True

    @property
    def novelty(self) -> str | None:
        """See `ContextEnv.novelty`."""
        return None if self._split == "all" else self._novelty

    def tasks_of(self, task_seed: Tensor) -> Tensors:
        """The tasks ``[R, ...]`` of seeds ``[R]`` on the CPU, on the side that episodes play
        (`yamame_envs.split`).
        """
        self._check_split()
        return draw_side(self._draw_tasks, self.task_hash, task_seed, self._split, self.label)

    def task_hash(self, task: Tensors) -> Tensor:
        """Hashes ``[R]`` int64 of tasks ``[R, ...]``; equal tasks have equal ones, whatever their
        seeds.
        """
        return hash_of({name: task[name] for name in self._identity_of(task)})

    def task_hashes(self) -> Tensor:
        """Hashes ``[N]`` int64 of the tasks that the envs play, after a reset; evaluations count
        them.
        """
        return self.task_hash(self._env_state.task)

    @property
    def plays_all_tasks(self) -> bool:
        """Whether there are too few tasks for a split, so that an evaluation plays all of them."""
        if self._split != "all":
            return False
        drawn = self._draw_tasks(fold(torch.arange(_LOOKED_AT), 0))
        return len(self.task_hash(drawn).unique()) < FEWEST

    def _identity_of(self, task: Tensors) -> list[str]:
        """Names of the entries of a task that are hashed, sorted."""
        names = self._identity or task.keys() - {"task_seed", "number", "world_hash"}
        return sorted(name for name in names if name in task)

    @abstractmethod
    def _draw_tasks(self, task_seed: Tensor) -> Tensors:
        """Draws the tasks of seeds ``[R]`` on the CPU: new tensors ``[R, ...]``, constant during an
        episode.
        """

    @abstractmethod
    def _begin(self, task: Tensors) -> Tensors:
        """The state ``[N, ...]`` at the start of these tasks."""

    @abstractmethod
    def _transition(
        self, task: Tensors, state: Tensors, action: Tensor
    ) -> tuple[Tensors, Tensor, Tensor]:
        """One step of all envs, out of place.

        Returns:
            The new state without ``step_index``, the reward ``[N, 1]`` float32 and the success
            ``[N, 1]`` bool.
        """

    @abstractmethod
    def _observe(self, task: Tensors, state: Tensors) -> Tensors:
        """What is seen: new tensors ``[N, ...]``, one for every entry of ``observations``."""

    def _hidden(self, task: Tensors, state: Tensors) -> Tensor:
        """What decides how an episode goes and is not seen: a new tensor ``[N, H]`` float32 of
        numbers about 1.
        """
        raise NotImplementedError(f"{self.label}: nothing is known to be hidden")

    def _limit(self, task: Tensors) -> Tensor:
        """The time limit of these tasks, a scalar or ``[N, 1]`` float32: that of all, unless a task
        has its own.
        """
        return self._horizon

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

    def _override(self, task: Tensors, tensordict: TensorDictBase, begins: Tensor) -> None:
        """Replaces entries of newly drawn tasks ``[N, ...]`` by what the reset of a mask ``[N]``
        asks for.
        """

    @property
    def _present(self) -> Tensors:
        return self._env_state.timestep

    def _restart(self, streams: Tensor) -> None:
        if "_env_state" not in self.__dict__:
            self._env_state = EnvState(streams, torch.zeros_like(streams), {}, {}, {})
            self._queue = TaskQueue(len(streams))
            self._room = 0  # steps for which there are tasks, as far as is known
            # Whether, since the last look, an action was out of bounds, and an episode began
            # without a task.
            faults = torch.zeros(2, dtype=torch.int64, device=streams.device)
            self.register_buffer("_faults", faults, persistent=False)
        self._number(streams, torch.zeros_like(streams))

    def _number(self, streams: Tensor, episodes: Tensor) -> None:
        """Lets the episodes to come be those of these numbers ``[N]``."""
        self._env_state.streams, self._env_state.episodes = streams, episodes
        self._queue.clear()
        self._room = 0

    def reserve(self, num_steps: int) -> bool:
        """Draws tasks ahead; see `ContextEnv.reserve`."""
        env_state, num_envs = self._env_state, self.batch_size[0]
        seen = torch.cat([self._faults, env_state.streams, env_state.episodes]).cpu()
        faults, streams, episodes = seen.split([2, num_envs, num_envs])
        out_of_bounds, without_task = faults.bool().tolist()
        if out_of_bounds or without_task:
            self._faults.zero_()
            bounds = f"{self._encoding.low.tolist()}..{self._encoding.high.tolist()}"
            got = "one of an earlier step was not"
            require(self.label, "action", got, not out_of_bounds, f"be in {bounds}")
            raise RuntimeError(
                f"{self.label}: reserve must be called before steps that are captured"
            )
        self._room = self._queue.reserve(num_steps, streams, episodes, self.tasks_of, self.device)
        return super().reserve(num_steps)

    def _begin_episodes(self, begins: Tensor, tensordict: TensorDictBase | None) -> None:
        self._begin_tasks(begins, self._tasks_for(begins, tensordict))

    def _begin_again(self, begins: Tensor, task_seed: Tensor) -> None:
        self._begin_tasks(
            begins, self._env_state.task
        )  # not drawn again: a chosen instruction would be lost

    def _begin_tasks(self, begins: Tensor, task: Tensors) -> None:
        env_state = self._env_state
        state = {
            "step_index": torch.zeros_like(begins, dtype=torch.int64).unsqueeze(-1),
            **self._begin(task),
        }
        timestep = self._first_timestep(task, state)
        if env_state.task:
            if task is not env_state.task:
                task = _chosen(begins, task, env_state.task)
            state = _chosen(begins, state, env_state.state)
            timestep = _chosen(begins, timestep, env_state.timestep)
        env_state.task, env_state.state, env_state.timestep = task, state, timestep

    def _tasks_for(self, begins: Tensor, tensordict: TensorDictBase | None) -> Tensors:
        """New tasks ``[N, ...]``, of which those of a mask ``[N]`` are to be played."""
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
        env_state, queue = self._env_state, self._queue
        if capturing():
            self._room = 0  # nobody counts these steps
        elif begins.is_cpu:
            if queue.lacks(begins, env_state.episodes):
                queue.reserve(1, env_state.streams, env_state.episodes, self.tasks_of)
        else:
            if self._room < 1:
                self.reserve(_FAR)
            self._room -= 1
        task = queue.take(env_state.episodes)
        number = task.pop("number")
        if capturing():
            self._faults[1].logical_or_(((number != env_state.episodes) & begins).any())
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
        """All that is shown of a timestep, in tensors that no later step reads."""
        is_init = torch.full_like(success, starts)
        hidden = {"hidden": self._hidden(task, state)} if self._shows_hidden else {}
        return {
            **self._observe(task, state),
            **hidden,
            **context_values(
                state["step_index"].clone(),
                prev_action=prev_action,
                prev_reward=prev_reward,
                is_init=is_init,
                trial_start=state.get("trial_start", is_init).clone(),
                horizon=self._limit(task),
            ),
            "success": success.clone(),
            "done": terminated.clone(),
            "terminated": terminated,
            "truncated": torch.zeros_like(terminated),
        }

    def _advance(self, action: Tensor) -> tuple[Tensors, Tensor]:
        env_state = self._env_state
        if action.is_cpu and not capturing():
            self._check_action(action, env_state.state["step_index"])
        else:
            low, high = self._encoding.bounds(action.device)
            good = (action >= low) & (action <= high)
            self._faults[0].logical_or_(~good.all())
            action = torch.where(
                good, action, low.to(action.dtype)
            )  # a device ends the process over a wrong index
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
        """Copies of everything that decides how all envs go on, in the middle of episodes too."""
        if self.device.type != "cpu":
            self.reserve(1)  # which refuses actions of earlier steps
        return self._env_state.snapshot(self._overrides)

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken, in an environment built with the same settings.

        The timestep to go on from is `present`.

        Raises:
            ValueError: If an entry is missing or has another number of envs.
        """
        self._env_state = restore(state_dict, self._env_state.streams, self.tasks_of)
        self._number(self._env_state.streams, self._env_state.episodes)

    def static_buffers(self) -> Tensors:
        """The tensors that a step reads and puts others in the place of, by names."""
        return {
            **self._env_state.tensors(),
            **{f"queue.{k}": v for k, v in self._queue.tasks.items()},
        }

    def set_static_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on with tensors like those of `static_buffers`; it does not copy them."""
        queued, kept = {}, {}
        for name, value in tensors.items():
            part, _, entry = name.partition(".")
            if part == "queue":
                queued[entry] = value
            else:
                kept[name] = value
        self._env_state, self._queue.tasks = EnvState.of(kept), queued
        self._room = 0

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "BatchedEnv":
        super()._apply(fn, recurse)
        self._env_state.apply(fn)
        self._number(self._env_state.streams, self._env_state.episodes)
        return self


def _chosen(mask: Tensor, new: Tensors, old: Tensors) -> Tensors:
    """Entries ``[N, ...]`` of ``new`` in the envs of a mask ``[N]``, and those of ``old`` in the
    others.
    """
    return {
        name: torch.where(mask.view(-1, *[1] * (value.ndim - 1)), new[name], value)
        for name, value in old.items()
    }
