"""Environments whose task is an instruction: an ordered list of goals.

Goals, their completion and their reward are those of `yamame.goals`. Entries written besides those
of `BatchedEnv`:

=================  ==================  ====================================================================
``goal``           ``[N, K, d]``       the instruction as seen now: completed and unused slots are marked
``achieved``       ``[N, M, d]``       goals that hold now; for relabelling, never an input of a policy
``achieved_mask``  ``[N, M]`` bool     which of the M slots hold an achieved goal
``world_hash``     ``[N, 1]`` int64    hash of the task without its instruction, see below; for relabelling
=================  ==================  ====================================================================

``world_hash`` is written only where instructions are held out, i.e. where they are part of the
identity of tasks and ``split`` is not ``all`` (`yamame_envs.split`).
"""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Unbounded
from torchrl.data.tensor_specs import TensorSpec
from yamame.checks import require
from yamame.goals import GOAL_COMPLETED, GOAL_PAD, advance, num_goals, show

from yamame_envs.base import BatchedEnv
from yamame_envs.split import HeldOutInstructions, entry_hash
from yamame_envs.tasks import Tensors


class GoalEnv(BatchedEnv):
    """Base class of environments with instructions: 1 per goal completed in order, success after
    the last.

    A subclass implements `_draw_tasks` (with an entry ``instruction`` ``[R, K, d]``),
    `_begin_world`, `_move`, `_look` and `_achieved`. ``reset`` takes an optional entry
    ``instruction`` ``[N, K, d]`` that replaces the drawn goals of the envs that reset;
    `set_instruction` does so for all episodes to come.

    Args:
        num_envs: N, at least 1.
        time_limit: Steps after which an episode is terminated, at least 1.
        action: Spec of one env's action.
        observations: Spec of one env of every entry that `_look` returns.
        instruction: Size (K, d) of an instruction.
        achieved_slots: Goals that can hold at the same time (M).
        goal_high: Upper bound of a goal's coordinates; their lower bound is 0.
        hidden: As for `BatchedEnv`.
        seed: Names the tasks of all episodes.
        device: Where all tensors live.
    """

    _overrides = ("instruction",)

    def __init__(
        self,
        *,
        num_envs: int,
        time_limit: int,
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
        """An instruction that is asked for: tasks that exclude it are refused as they begin."""
        return None if self._asked is None else "set_instruction"

    @property
    def _holds_instructions_out(self) -> bool:
        return self._split != "all" and (not self._identity or "instruction" in self._identity)

    @property
    def held_out_instructions(self) -> HeldOutInstructions | None:
        """Tells which instructions are held out from training here; None where the split ignores
        instructions.
        """
        if not self._holds_instructions_out:
            return None
        names = self._identity_of(self._draw_tasks(torch.zeros(1, dtype=torch.int64)))
        return HeldOutInstructions(names.index("instruction"), self._split)

    def tasks_of(self, task_seed: Tensor) -> Tensors:
        """As `BatchedEnv.tasks_of`; with their ``world_hash`` where instructions are held out."""
        task = super().tasks_of(task_seed)
        if self._holds_instructions_out:
            names = enumerate(self._identity_of(task))
            world = [
                entry_hash(task[name], number) for number, name in names if name != "instruction"
            ]
            task["world_hash"] = sum(world, torch.zeros_like(task_seed))
        return task

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """As `BatchedEnv.load_state_dict`; a state of an earlier version, without ``world_hash``,
        is completed.
        """
        super().load_state_dict(state_dict)
        env_state = self._env_state
        if self._holds_instructions_out and env_state.task:
            env_state.timestep["world_hash"] = env_state.task["world_hash"].unsqueeze(-1)

    @abstractmethod
    def _begin_world(self, task: Tensors) -> Tensors:
        """The state ``[R, ...]`` of the world at the start of these tasks."""

    @abstractmethod
    def _move(self, task: Tensors, state: Tensors, action: Tensor) -> Tensors:
        """The state of the world after one step of all envs, out of place."""

    @abstractmethod
    def _look(self, task: Tensors, state: Tensors) -> Tensors:
        """What is seen of the world, whose ``state`` holds ``achieved`` too: new tensors
        ``[R, ...]``.
        """

    @abstractmethod
    def _achieved(self, task: Tensors, state: Tensors) -> tuple[Tensor, Tensor]:
        """Goals that hold, ``[R, M, d]`` float32, and which slots hold one, ``[R, M]`` bool; new
        tensors.
        """

    def _check_instruction(self, task: Tensors, begins: Tensor) -> None:
        """Refuses the instruction of `set_instruction` where a task of a mask ``[N]`` excludes
        it.
        """

    def set_instruction(self, text: str | None) -> None:
        """Asks for the same goals in every episode that begins from now on.

        Args:
            text: Goals in their order, separated by spaces; the numbers of a goal are separated by
                commas, as in ``"3,5 7,1"``. None: goals are drawn again.

        Raises:
            ValueError: If this is no instruction of the environment; a goal that only some tasks
                exclude is refused by the reset that draws such a task.
        """
        self._asked = None if text is None else self._parse(text)

    def _parse(self, text: str) -> Tensor:
        """``[K, d]``."""
        slots, size = self._instruction_size
        goals = [goal.split(",") for goal in text.replace(", ", ",").split()]
        several = 1 <= len(goals) <= slots
        require(
            self.label, "instruction", text, several, f"hold 1..{slots} goals separated by spaces"
        )
        asked = torch.full((slots, size), GOAL_PAD)
        last = int(self._goal_high)
        for slot, goal in enumerate(goals):
            good = len(goal) == size and all(
                part.isdecimal() and int(part) <= last for part in goal
            )
            form = ",".join("ABCDEFGH"[:size])
            require(
                self.label,
                "instruction",
                ",".join(goal),
                good,
                f"hold goals {form} with numbers in 0..{last}",
            )
            asked[slot] = torch.tensor([float(part) for part in goal])
        return asked

    def _tasks_for(self, begins: Tensor, tensordict: TensorDictBase | None) -> Tensors:
        task = super()._tasks_for(begins, tensordict)
        given = tensordict is not None and tensordict.get("instruction", None) is not None
        if self._asked is not None and not given:
            task["instruction"] = self._asked.to(self.device).repeat(len(begins), 1, 1)
            self._check_instruction(task, begins)
        return task

    def _begin(self, task: Tensors) -> Tensors:
        world = self._begin_world(task)
        achieved, mask = self._achieved(task, world)
        total = num_goals(task["instruction"])
        progress = {"active": torch.zeros_like(total), "total": total}
        return {**world, **progress, "achieved": achieved, "achieved_mask": mask}

    def _transition(
        self, task: Tensors, state: Tensors, action: Tensor
    ) -> tuple[Tensors, Tensor, Tensor]:
        world = self._move(task, state, action)
        achieved, mask = self._achieved(task, world)
        active, reward = advance(task["instruction"], state["active"], achieved, mask)
        success = (active >= state["total"]).unsqueeze(-1)
        progress = {"active": active, "total": state["total"]}
        return (
            {**world, **progress, "achieved": achieved, "achieved_mask": mask},
            reward.unsqueeze(-1),
            success,
        )

    def _observe(self, task: Tensors, state: Tensors) -> Tensors:
        seen = {
            **self._look(task, state),
            "goal": show(task["instruction"], state["active"]),
            "achieved": state["achieved"],
            "achieved_mask": state["achieved_mask"],
        }
        if self._holds_instructions_out:
            seen["world_hash"] = task["world_hash"].unsqueeze(-1).clone()
        return seen

    def _override(self, task: Tensors, tensordict: TensorDictBase, begins: Tensor) -> None:
        instruction = tensordict.get("instruction", None)
        if instruction is None:
            return
        shape = (self.batch_size[0], *self._instruction_size)
        good = instruction.shape == shape and instruction.dtype == torch.float32
        got = f"{instruction.dtype} {tuple(instruction.shape)}"
        require(self.label, "instruction", got, good, f"be float32 {shape}")
        empty = ((num_goals(instruction) == 0) & begins).nonzero().flatten().tolist()
        require(
            self.label, "instruction", f"none in envs {empty}", not empty, "hold at least one goal"
        )
        task["instruction"] = instruction.clone()
