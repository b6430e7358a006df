"""T-Mazes: remember a sign until the end of a corridor.

Source: Ni et al., "When do transformers shine in RL?", arXiv 2307.03864; the rewards as in AMAGO,
arXiv 2310.09971.
"""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical
from yamame.checks import Bounds, PositiveInt, check_bounds, require

from yamame_envs.base import BatchedEnv
from yamame_envs.rendering import Palette, disc, frame, goal, tile
from yamame_envs.streams import fold, integers
from yamame_envs.tasks import Tensors

_COLUMNS_SHOWN = 41


class _TMaze(BatchedEnv):
    """Common part of both mazes: a corridor from the sign to the junction.

    The sign is at x = 0, the start at x = ``_START``, and the junction ``length`` cells behind it.
    Of several lengths every task has one.

    The sign is seen at the first visit of x = 0. There is time to go to it, back and on to the
    junction, and for one step more. The first ``_START`` steps, in which the sign could still be
    fetched in time, cost nothing.
    """

    _START: ClassVar[int]
    _moves: Tensor

    @check_bounds
    def __init__(
        self,
        *,
        num_envs: PositiveInt = 1,
        length: int | list[int] = 32,
        penalty: Annotated[float, Bounds(most=0)] | None = None,
        observable: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        lengths = self._lengths_of(length)
        is_distinct = len(set(lengths)) == len(lengths)
        require(self.label, "length", length, is_distinct, "hold every length once")
        is_finite = penalty is None or math.isfinite(penalty)
        require(self.label, "penalty", penalty, is_finite, "be finite")
        self._lengths = lengths
        self._junction = self._START + max(lengths)
        self._penalty = -1.0 / max(lengths) if penalty is None else penalty
        super().__init__(
            num_envs=num_envs,
            time_limit=self._junction + self._START + 1,
            action=Categorical(4),
            observations={
                "observation": Bounded(-1.0, 1.0, shape=(2,), dtype=torch.float32, device=device)
            },
            hidden=1 if observable else 0,
            seed=seed,
            device=device,
        )
        moves = torch.tensor([[1, 0], [0, 1], [-1, 0], [0, -1]], device=self.device)
        self.register_buffer("_moves", moves, persistent=False)

    @classmethod
    def _lengths_of(cls, length: int | Sequence[int]) -> list[int]:
        given = list(length) if isinstance(length, Sequence | np.ndarray) else [length]
        lengths = []
        for value in given:
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            is_whole = is_number and value % 1 == 0 and abs(value) < 2**31
            condition = "be a whole number or a list of them"
            require(cls.__name__, "length", length, is_whole, condition)
            lengths.append(int(value))
        is_long = bool(lengths) and min(lengths) >= 1
        require(cls.__name__, "length", length, is_long, "be at least 1")
        return lengths

    def draw_tasks(self, task_seed: Tensor) -> Tensors:
        task = {"side": 2 * integers(fold(task_seed, 0), 2) - 1}
        if len(self._lengths) > 1:
            which = integers(fold(task_seed, 1), len(self._lengths))
            task["junction"] = self._START + torch.tensor(self._lengths)[which]
        return task

    def task_limit(self, task: Tensors) -> Tensor:
        if "junction" not in task:
            return super().task_limit(task)
        return (task["junction"] + self._START + 1).to(torch.float32).unsqueeze(-1)

    def begin(self, task: Tensors) -> Tensors:
        side = task["side"]
        place = side.new_zeros(len(side), 2)
        place[:, 0] = self._START
        # "unread": x = 0 was not visited at any earlier timestep.
        return {"place": place, "unread": torch.ones_like(side, dtype=torch.bool)}

    def transition(
        self, task: Tensors, state: Tensors, action: Tensor
    ) -> tuple[Tensors, Tensor, Tensor]:
        place, step = state["place"], state["step_index"]
        junction = task.get("junction", self._junction)
        last = step + 1 == self.task_limit(task)
        unread = state["unread"] & (place[:, 0] != 0)
        target = place + self._moves.index_select(0, action)
        x, y = target.unbind(-1)
        exists = (x >= 0) & (x <= junction) & (y.abs() <= ((x == junction).to(torch.int64)))
        place = torch.where(exists.unsqueeze(-1), target, place)
        success = last & (place[:, 1] == task["side"]).unsqueeze(-1)
        free = (action == 0).unsqueeze(-1) | last
        if self._START > 0:
            free |= step < self._START
        reward = success + torch.where(free, 0.0, self._penalty)
        return {"place": place, "unread": unread}, reward, success

    def observe(self, task: Tensors, state: Tensors) -> Tensors:
        x, y = state["place"].unbind(-1)
        sign = torch.where(state["unread"] & (x == 0), task["side"], y)
        at_junction = x == task.get("junction", self._junction)
        return {"observation": torch.stack([at_junction, sign], -1).to(torch.float32)}

    def hidden_values(self, task: Tensors, state: Tensors) -> Tensor:
        return task["side"].unsqueeze(-1).to(torch.float32)

    def draw_picture(self, env_id: int) -> npt.NDArray[np.uint8]:
        """Draw one env: ``[H, W, 3]`` uint8 RGB; of a long corridor, the part around the agent.

        The agent is a disc, the goal a bright disc within a ring. Until the sign is seen, its cell
        is lit unless the agent starts there; while it is seen, the cell that it points to is lit.
        """
        env_state = self.env_state
        x, y = env_state.state["place"][env_id].tolist()
        side = int(env_state.task["side"][env_id])
        end = self._junction
        if "junction" in env_state.task:
            end = int(env_state.task["junction"][env_id])
        columns = min(end + 1, _COLUMNS_SHOWN)
        left = min(max(x - columns // 2, 0), end + 1 - columns)
        walls = np.ones((5, columns + 2), bool)
        walls[2, 1:-1] = False
        junction = end - left + 1
        if junction <= columns:
            walls[1:4, junction] = False
        picture = frame(walls)
        if junction <= columns:
            goal(picture, (2 - side, junction), 0)
        if bool(env_state.state["unread"][env_id]) and left == 0:
            if x == 0:
                disc(picture, (2 - side, 1), Palette.ACTIVE, 0.24)
            else:
                tile(picture, (2, 1), Palette.ACTIVE_TILE)
        disc(picture, (2 - y, x - left + 1), Palette.AGENT, 0.34)
        return picture


class PassiveTMaze(_TMaze):
    """Corridor with a junction at its end, and a sign at the first step that shows the turn.

    Cells are x = 0..``length`` with y = 0, and y = 1 or -1 at x = ``length``. Actions: 0 right, 1
    up (y+1), 2 left, 3 down (y-1); a move to where there is no cell does nothing. Observation
    ``[N, 2]`` float32: (0, side) at the first step, (0, 0) in the corridor, (1, y) at x =
    ``length``. An episode has exactly ``length + 1`` steps. The last one pays 1 if y is then the
    side of the goal, which is success; every earlier one pays ``penalty`` unless its action is
    "right". So the best return is 1, and walking well without memory earns 0.5.

    Args:
        num_envs: Number of corridors, played at the same time.
        length: Steps from the start to the junction, at least 1. Of several, every episode has one.
        penalty: Reward of an action other than "right" before the last step. ``None``: -1 /
            ``length``, the longest.
        observable: Write the side to ``hidden`` ``[N, 1]`` at every step.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.

    Raises:
        ValueError: A number is out of its range.

    >>> env = PassiveTMaze(num_envs=2, length=10)
    >>> env.rollout(20)["next", "done"].sum(1).flatten()
    tensor([1, 1])
    """

    _START = 0


class ActiveTMaze(_TMaze):
    """Corridor with a junction at its end, and a sign behind the start that shows the turn.

    Cells are x = 0..``length + 1`` with y = 0, and y = 1 or -1 at the junction x = ``length + 1``.
    The agent starts at x = 1, the sign is at x = 0 and is seen at the first visit only. Actions: 0
    right, 1 up (y+1), 2 left, 3 down (y-1); a move to where there is no cell does nothing.
    Observation ``[N, 2]`` float32: (0, side) at the first visit of x = 0, else (0, 0) in the
    corridor, (1, y) at the junction's x. An episode has exactly ``length + 3`` steps: to the sign,
    to the junction, and one to turn. The last one pays 1 if y is then the side of the goal, which
    is success; the first one is free; every other pays ``penalty`` unless its action is "right". So
    the best return is 1, and an agent that does not fetch the sign in the first step, and walks
    well, earns 0.5: a later visit leaves no time to turn.

    Args:
        num_envs: Number of corridors, played at the same time.
        length: Steps from the start to the junction, at least 1. Of several, every episode has one.
        penalty: Reward of an action other than "right" between the first and the last step.
            ``None``: -1 / ``length``, the longest.
        observable: Write the side to ``hidden`` ``[N, 1]`` at every step.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.

    Raises:
        ValueError: A number is out of its range.

    >>> env = ActiveTMaze(num_envs=2, length=10)
    >>> env.rollout(20)["next", "done"].sum(1).flatten()
    tensor([1, 1])
    """

    _START = 1
