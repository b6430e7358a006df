"""MazeRunner: find goals in an unknown maze, in the order given.

Source: AMAGO, arXiv 2310.09971, section 5 and appendix (Maze Runner).
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical
from yamame.checks import ArgumentError, Bounds, PositiveInt, check_bounds, require
from yamame.goals import GOAL_PAD

from yamame_envs.goal_env import GoalEnv
from yamame_envs.maze import DIRECTIONS, clear_spawn, grow_walls, sight
from yamame_envs.rendering import Palette, disc, frame, goal
from yamame_envs.split import Identity, Split
from yamame_envs.streams import fold, integers, permutation, subset
from yamame_envs.tasks import Tensors, one_hots

_COMPLEXITY = 0.75
_DENSITY = 0.75


class MazeRunner(GoalEnv):
    """Maze with goals to reach in order, both new in every episode.

    The agent sees as far as the walls in four directions.

    Actions: 0 west, 1 north, 2 east, 3 south, 4 stay; a wall stops a move. Observation ``[N, 6]``
    float32: row and column of the agent, then the numbers of free cells in sight to the west,
    north, east and south, all divided by ``size``; ``[N, 4]`` without ``position``. The agent
    starts at the bottom. Goals are cells (row, column), not divided, drawn without replacement from
    the free cells; each pays 1 when it is reached in its turn. The episode ends with the last goal
    or at the time limit.

    Args:
        num_envs: Number of mazes, played at the same time.
        size: Cells along a side with the border; odd, at least 5.
        num_goals: Largest number K of goals of an instruction.
        min_goals: Smallest number of goals. Every number up to ``num_goals`` is equally likely.
            ``None``: always ``num_goals``.
        time_limit: Largest number of steps of an episode.
        randomize_actions: Permute the effects of the five actions anew in every episode.
        split: Mazes that episodes play: ``all``; ``train``, all but a share that is held out;
            ``test``, that share (`yamame_envs.split`).
        split_by: Held-out entries: ``walls``, mazes, whatever their goals and actions;
            ``walls_and_goals``, pairs of a maze and an instruction, so that evaluation asks for new
            goals in mazes that training may know. With permuted actions these are triples, and
            training may meet the same goals in the same maze with other actions. Relabelling must
            then reject held-out instructions (`held_out_instructions`).
        position: Observe row and column of the agent.
        observable: Write the map, 1 for a wall, to ``hidden`` ``[N, size * size]``, followed by
            permuted actions as one-hots, 25 more, and without ``position`` by row and column
            divided by ``size``, 2 more.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.

    Raises:
        ValueError: A number is out of its range, or the smallest room of such a maze holds fewer
            goals.

    >>> env = MazeRunner(num_envs=2, size=9, num_goals=2)
    >>> env.rollout(3)["goal"].shape
    torch.Size([2, 3, 2, 2])
    """

    identities: ClassVar = {
        "walls": Identity(("walls",), "new mazes"),
        "walls_and_goals": Identity(
            ("walls", "instruction", "actions"), "new goals in known mazes"
        ),
    }
    _side: Tensor
    _offsets: Tensor
    _cells: Tensor
    _env_offsets: Tensor

    @check_bounds
    def __init__(
        self,
        *,
        num_envs: PositiveInt = 1,
        size: Annotated[int, Bounds(least=5)] = 9,
        num_goals: PositiveInt = 2,
        min_goals: PositiveInt | None = None,
        time_limit: PositiveInt = 100,
        randomize_actions: bool = False,
        split: Split = "all",
        split_by: Literal["walls", "walls_and_goals"] = "walls",
        position: bool = True,
        observable: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self._check_settings(size, num_goals, min_goals)
        self._goals = (num_goals if min_goals is None else min_goals, num_goals)
        self._randomize = randomize_actions
        self.hold_out(split, split_by)
        if randomize_actions and split_by == "walls_and_goals":
            self.split_novelty = "new combinations of maze, goals and actions"
        self._size = size
        self._shows_position = position
        num_seen = 6 if position else 4
        num_hidden = size * size
        if randomize_actions:
            num_hidden += 25
        if not position:
            num_hidden += 2
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            action=Categorical(5),
            observations={
                "observation": Bounded(
                    0.0, 1.0, shape=(num_seen,), dtype=torch.float32, device=device
                )
            },
            instruction=(num_goals, 2),
            achieved_slots=1,
            goal_high=size - 1,
            hidden=num_hidden if observable else 0,
            seed=seed,
            device=device,
        )
        self._add_tables()
        self.check_split()

    @classmethod
    def _check_settings(cls, size: int, num_goals: int, min_goals: int | None) -> None:
        owner = cls.__name__
        require(owner, "size", size, size % 2 == 1, "be odd and at least 5")
        # Free cells around every start, the start left out.
        room = 2 if size == 5 else 4 * (size - 2) - 7
        require(owner, "num_goals", num_goals, num_goals <= room, f"be in 1..{room} at size {size}")
        if min_goals is not None:
            is_below = min_goals <= num_goals
            require(owner, "min_goals", min_goals, is_below, f"be in 1..{num_goals}")

    def _add_tables(self) -> None:
        size, device = self._size, self.device
        offsets = [row * size + column for row, column in DIRECTIONS] + [0]
        index = torch.arange(size * size)
        cells = torch.stack([index // size, index % size], -1).to(torch.float32)
        offset = torch.arange(self.batch_size[0]) * size * size
        # Devices round a division by a tensor alike, but not one by a number.
        self.register_buffer("_side", torch.tensor(float(size), device=device), persistent=False)
        self.register_buffer("_offsets", torch.tensor(offsets, device=device), persistent=False)
        self.register_buffer("_cells", cells.to(device), persistent=False)
        self.register_buffer("_env_offsets", offset.to(device), persistent=False)

    @property
    def _spawn(self) -> int:
        return (self._size - 2) * self._size + self._size // 2

    def draw_tasks(self, task_seed: Tensor) -> Tensors:
        size = self._size
        walls = grow_walls(
            fold(task_seed, 0),
            size,
            num_walks=int(_DENSITY * (size // 2) ** 2),
            num_tries=int(_COMPLEXITY * 5 * 2 * size),
        )
        walls = clear_spawn(walls)
        task = {
            "walls": walls.flatten(1),
            "sight": sight(walls).flatten(1, 2),
            "instruction": self._draw_goals(task_seed, walls.flatten(1)),
        }
        if self._randomize:
            task["actions"] = permutation(fold(task_seed, 3), 5)
        return task

    def _draw_goals(self, task_seed: Tensor, walls: Tensor) -> Tensor:
        least, most = self._goals
        allowed = ~walls
        # A goal at the start would be reached without a move.
        allowed[:, self._spawn] = False
        index = subset(fold(task_seed, 1), allowed, most)
        goals = torch.stack([index // self._size, index % self._size], -1).to(torch.float32)
        count = least + integers(fold(task_seed, 2), most - least + 1)
        unused = torch.arange(most, device=walls.device) >= count.unsqueeze(-1)
        return goals.masked_fill(unused.unsqueeze(-1), GOAL_PAD)

    def check_instruction(self, task: Tensors, begins: Tensor) -> None:
        cells = task["instruction"]
        index = (cells[..., 0] * self._size + cells[..., 1]).long().clamp(min=0)
        blocked = task["walls"].gather(1, index) & (cells[..., 0] != GOAL_PAD)
        blocked &= begins.unsqueeze(-1)
        if bool(blocked.any()):
            env_id, slot = blocked.nonzero()[0].tolist()
            free = self._cells[~task["walls"][env_id]]
            near = free[(free - cells[env_id, slot]).abs().sum(-1).argsort(stable=True)[:3]]
            others = " ".join(f"{int(i)},{int(j)}" for i, j in near.tolist())
            row, column = cells[env_id, slot].tolist()
            wall = f"{int(row)},{int(column)}"
            condition = f"name cells without a wall in this maze (near it {others})"
            raise ArgumentError(self.label, "instruction", wall, condition)

    def begin_world(self, task: Tensors) -> Tensors:
        return {"cell": torch.full_like(task["task_seed"], self._spawn)}

    def move(self, task: Tensors, state: Tensors, action: Tensor) -> Tensors:
        if self._randomize:
            action = task["actions"].gather(1, action.unsqueeze(-1)).squeeze(-1)
        cell = state["cell"]
        target = cell + self._offsets.index_select(0, action)
        blocked = task["walls"].gather(1, target.unsqueeze(-1)).squeeze(-1)
        return {"cell": torch.where(blocked, cell, target)}

    def look(self, task: Tensors, state: Tensors) -> Tensors:
        cell = state["cell"]
        # The tables of all envs as one, in which every env reads one row of four numbers.
        index = cell + self._env_offsets[: cell.shape[0]]
        seen = task["sight"].flatten(0, 1).index_select(0, index)
        if self._shows_position:
            seen = torch.cat([state["achieved"].flatten(1), seen], 1)
        return {"observation": seen / self._side}

    def achieved_goals(self, task: Tensors, state: Tensors) -> tuple[Tensor, Tensor]:
        cell = state["cell"]
        mask = torch.ones(cell.shape[0], 1, dtype=torch.bool, device=cell.device)
        return self._cells.index_select(0, cell).unsqueeze(1), mask

    def hidden_values(self, task: Tensors, state: Tensors) -> Tensor:
        hidden = [task["walls"].to(torch.float32)]
        if self._randomize:
            hidden.append(one_hots(task["actions"], 5))
        if not self._shows_position:
            hidden.append(state["achieved"].flatten(1) / self._side)
        return torch.cat(hidden, 1)

    def draw_picture(self, env_id: int) -> npt.NDArray[np.uint8]:
        """Draw one env: ``[H, W, 3]`` uint8 RGB.

        The agent is a disc, the active goal a bright disc within a ring, future goals are rings
        that fade with their rank, completed goals are small dots.
        """
        env_state = self.env_state
        walls = env_state.task["walls"][env_id].view(self._size, self._size).cpu().numpy()
        picture = frame(walls)
        active = int(env_state.state["active"][env_id])
        for rank, place in enumerate(env_state.task["instruction"][env_id].tolist()):
            if place[0] != GOAL_PAD:
                goal(picture, (int(place[0]), int(place[1])), rank - active)
        agent = divmod(int(env_state.state["cell"][env_id]), self._size)
        disc(picture, agent, Palette.AGENT, 0.34)
        return picture
