"""Environments whose task is an instruction: an ordered list of goals.

Goals, their completion and their reward are those of `yamame.goals`. Entries written besides those
of `BatchedEnv`:

* ``goal`` ``[N, K, d]``: the instruction, with completed and unused slots marked.
* ``achieved`` ``[N, M, d]``: goals that hold now; for relabelling, never an input of a policy.
* ``achieved_mask`` ``[N, M]`` bool: slots that hold an achieved goal.
* ``world_hash`` ``[N, 1]`` int64: hash of the task without its instruction; for relabelling.

``world_hash`` is written only if instructions are held out: they are part of the identity of tasks
and ``split`` is not ``all`` (`yamame_envs.split`).
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Unbounded
from torchrl.data.tensor_specs import TensorSpec
from yamame.checks import PositiveInt, require
from yamame.goals import GOAL_COMPLETED, GOAL_PAD, advance, num_goals, show

from yamame_envs.base import BatchedEnv
from yamame_envs.former_hooks import GOAL_HOOKS, link_former_names
from yamame_envs.split import HeldOutInstructions, entry_hash
from yamame_envs.tasks import Tensors


class GoalEnv(BatchedEnv):
    """Base class of environments with instructions.

    Every goal that is completed in its turn pays 1; the last one is success.

    A subclass implements `draw_tasks` (with an entry ``instruction`` ``[R, K, d]``),
    `begin_world`, `move`, `look` and `achieved_goals`. ``reset`` takes an optional entry
    ``instruction`` ``[N, K, d]`` that replaces the drawn goals of the envs that reset;
    `set_instruction` does so for all episodes to come.

    Args:
        num_envs: Number of envs N.
        time_limit: Steps after which an episode is terminated.
        action: Spec of one env's action.
        observations: Spec of one env for every entry that `look` returns.
        instruction: Size (K, d) of an instruction.
        achieved_slots: Number M of goals that can hold at the same time.
        goal_high: Upper bound of the coordinates of a goal; their lower bound is 0.
        hidden: As for `BatchedEnv`.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.
    """

    goal_radius: float | None = None
    """Largest distance at which a goal is reached, also by relabelling; None: goals are equal."""
    overrides = ("instruction",)
    _former_names: ClassVar[Mapping[str, str]] = GOAL_HOOKS

    def __init__(
        self,
        *,
        num_envs: PositiveInt,
        time_limit: PositiveInt,
        action: TensorSpec,
        observations: Mapping[str, TensorSpec],
        instruction: tuple[int, int],
        achieved_slots: int,
        goal_high: float,
        hidden: int = 0,
        seed: int,
        device: str | torch.device,
    ) -> None:
        self._instruction_size = instruction
        self._goal_high = goal_high
        self._asked: Tensor | None = None
        achieved = (achieved_slots, instruction[1])
        entries = {
            **observations,
            "goal": Bounded(
                GOAL_COMPLETED, goal_high, shape=instruction, dtype=torch.float32, device=device
            ),
            "achieved": Bounded(0.0, goal_high, shape=achieved, dtype=torch.float32, device=device),
            "achieved_mask": Binary(n=achieved_slots, dtype=torch.bool, device=device),
        }
        if self._holds_instructions_out:
            entries["world_hash"] = Unbounded(1, dtype=torch.int64, device=device)
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            action=action,
            observations=entries,
            hidden=hidden,
            seed=seed,
            device=device,
        )

    @property
    def capture_obstacle(self) -> str | None:
        """See `ContextEnv.capture_obstacle`: the instruction of `set_instruction`, if any."""
        # A task that excludes it raises as it begins, which reads the task on the host.
        return None if self._asked is None else "set_instruction"

    @property
    def _holds_instructions_out(self) -> bool:
        if self.split == "all":
            return False
        # An empty identity covers all entries of a task.
        return not self.identity or "instruction" in self.identity

    @property
    def held_out_instructions(self) -> HeldOutInstructions | None:
        """Function that finds held-out instructions; None if the split ignores instructions."""
        if not self._holds_instructions_out:
            return None
        names = self._identity_of(self.draw_tasks(torch.zeros(1, dtype=torch.int64)))
        return HeldOutInstructions(names.index("instruction"), self.split)

    def tasks_of(self, task_seed: Tensor) -> Tensors:
        """Return the tasks of seeds, with ``world_hash`` if instructions are held out.

        See `BatchedEnv.tasks_of`.
        """
        task = super().tasks_of(task_seed)
        if self._holds_instructions_out:
            world_hash = torch.zeros_like(task_seed)
            for number, name in enumerate(self._identity_of(task)):
                if name != "instruction":
                    world_hash = world_hash + entry_hash(task[name], number)
            task["world_hash"] = world_hash
        return task

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Restore a `state_dict`, see `BatchedEnv.load_state_dict`."""
        super().load_state_dict(state_dict)
        env_state = self.env_state
        # States of earlier versions have no ``world_hash``.
        if self._holds_instructions_out and env_state.task:
            env_state.timestep["world_hash"] = env_state.task["world_hash"].unsqueeze(-1)

    @abstractmethod
    def begin_world(self, task: Tensors) -> Tensors:
        """Return the state ``[R, ...]`` of the world at the start of these tasks."""

    @abstractmethod
    def move(self, task: Tensors, state: Tensors, action: Tensor) -> Tensors:
        """Return the state of the world after one step of all envs, out of place."""

    @abstractmethod
    def look(self, task: Tensors, state: Tensors) -> Tensors:
        """Return the observation of the world as new tensors ``[R, ...]``.

        ``state`` also holds ``achieved``.
        """

    @abstractmethod
    def achieved_goals(self, task: Tensors, state: Tensors) -> tuple[Tensor, Tensor]:
        """Return the goals that hold, as new tensors.

        Returns:
            Goals ``[R, M, d]`` float32, and the mask ``[R, M]`` bool of slots that hold one.
        """

    def check_instruction(self, task: Tensors, begins: Tensor) -> None:
        """Raise if a task of a mask ``[N]`` excludes the instruction of `set_instruction`.

        Args:
            task: ``[N, ...]``, new tasks, with the instruction.
            begins: ``[N]`` bool, the envs that play them.

        Raises:
            ArgumentError: The instruction is impossible in one of these tasks.
        """

    def set_instruction(self, text: str | None) -> None:
        """Set the goals of every episode that begins from now on.

        Args:
            text: Goals in their order, separated by spaces; the numbers of a goal are separated by
                commas, as in ``"3,5 7,1"``. None: goals are drawn again.

        Raises:
            ArgumentError: This is not an instruction of the environment. If only some tasks exclude
                a goal, the reset that draws such a task raises.
        """
        self._asked = None if text is None else self._parse(text)

    def _parse(self, text: str) -> Tensor:
        """Convert a text to an instruction ``[K, d]``."""
        slots, size = self._instruction_size
        goals = text.replace(", ", ",").split()
        condition = f"hold 1..{slots} goals separated by spaces"
        require(self.label, "instruction", text, 1 <= len(goals) <= slots, condition)

        instruction = torch.full((slots, size), GOAL_PAD)
        high = int(self._goal_high)
        form = ",".join("ABCDEFGH"[:size])
        condition = f"hold goals {form} with numbers in 0..{high}"
        for slot, goal in enumerate(goals):
            parts = goal.split(",")
            is_goal = len(parts) == size
            for part in parts:
                is_goal = is_goal and part.isdecimal() and int(part) <= high
            require(self.label, "instruction", goal, is_goal, condition)
            instruction[slot] = torch.tensor([float(part) for part in parts])
        return instruction

    def _tasks_for(self, begins: Tensor, tensordict: TensorDictBase | None) -> Tensors:
        task = super()._tasks_for(begins, tensordict)
        is_given = tensordict is not None and tensordict.get("instruction", None) is not None
        # The argument of this reset precedes the instruction of all resets.
        if self._asked is not None and not is_given:
            task["instruction"] = self._asked.to(self.device).repeat(len(begins), 1, 1)
            self.check_instruction(task, begins)
        return task

    def begin(self, task: Tensors) -> Tensors:
        """See `BatchedEnv.begin`."""
        world = self.begin_world(task)
        achieved, mask = self.achieved_goals(task, world)
        total = num_goals(task["instruction"])
        active = torch.zeros_like(total)
        return self._with_progress(world, active, total, achieved, mask)

    def _with_progress(
        self, world: Tensors, active: Tensor, total: Tensor, achieved: Tensor, mask: Tensor
    ) -> Tensors:
        progress = {"active": active, "total": total, "achieved": achieved, "achieved_mask": mask}
        return {**world, **progress}

    def transition(
        self, task: Tensors, state: Tensors, action: Tensor
    ) -> tuple[Tensors, Tensor, Tensor]:
        """See `BatchedEnv.transition`."""
        world = self.move(task, state, action)
        achieved, mask = self.achieved_goals(task, world)
        active, reward = advance(
            task["instruction"], state["active"], achieved, mask, radius=self.goal_radius
        )
        success = active >= state["total"]
        state = self._with_progress(world, active, state["total"], achieved, mask)
        return state, reward.unsqueeze(-1), success.unsqueeze(-1)

    def observe(self, task: Tensors, state: Tensors) -> Tensors:
        """See `BatchedEnv.observe`."""
        entries = dict(self.look(task, state))
        entries["goal"] = show(task["instruction"], state["active"])
        entries["achieved"] = state["achieved"]
        entries["achieved_mask"] = state["achieved_mask"]
        if self._holds_instructions_out:
            entries["world_hash"] = task["world_hash"].unsqueeze(-1).clone()
        return entries

    def override(self, task: Tensors, tensordict: TensorDictBase, begins: Tensor) -> None:
        """See `BatchedEnv.override`."""
        instruction = tensordict.get("instruction", None)
        if instruction is None:
            return
        shape = (self.batch_size[0], *self._instruction_size)
        fits = instruction.shape == shape and instruction.dtype == torch.float32
        got = f"{instruction.dtype} {tuple(instruction.shape)}"
        require(self.label, "instruction", got, fits, f"be float32 {shape}")
        is_empty = (num_goals(instruction) == 0) & begins
        empty = is_empty.nonzero().flatten().tolist()
        got = f"no goal in envs {empty}"
        require(self.label, "instruction", got, not empty, "hold at least one goal")
        task["instruction"] = instruction.clone()


link_former_names(GoalEnv, GOAL_HOOKS)
