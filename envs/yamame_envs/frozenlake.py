"""Meta-FrozenLake: several attempts to cross an unknown frozen lake without breaking in.

Source: the toy environment of the AMAGO library (arXiv 2310.09971), version 3.3, over the random
lakes of Gymnasium's FrozenLake.
"""

from typing import Annotated, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical
from yamame.checks import Bounds, PositiveInt, check_bounds

from yamame_envs.base import BatchedEnv
from yamame_envs.rendering import Palette, disc, frame, goal, ring
from yamame_envs.split import Identity, Split
from yamame_envs.streams import fold, uniform
from yamame_envs.tasks import Tensors

MOVES: Final = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
"""Offsets (rows, columns) of the actions: stay, down, up, right, left."""

# Effect of each action, plain and with actions 1 and 3 swapped.
_EFFECTS = (0, 1, 2, 3, 4), (0, 3, 2, 1, 4)
_FROZEN = 0.8
_SWAP = 0.5
_JITTER = 0.25
_CRACK = 0.33
_FALL = -0.1


class MetaFrozenLake(BatchedEnv):
    """A new lake in every episode and ``num_trials`` attempts to cross it from corner to corner.

    Actions: 0 stay, 1 down (row + 1), 2 up, 3 right (column + 1), 4 left; moves stop at the border.
    Cells are frozen with probability 0.8, else holes; start (0, 0) and goal (``size`` - 1, ``size``
    - 1) are frozen, and a lake without a way between them is drawn anew. Entering the goal pays 1.
      An attempt ends at the goal, in
    a hole or after ``size`` squared steps; then the agent is at the start again at once, and the
    lake is as it was. The episode ends with the last attempt, whose last cell is still shown;
    success is to reach the goal in it.

    Observation ``[N, 4]`` float32: row / ``size``, column / ``size``, whether an attempt begins
    here, and attempts completed / ``num_trials``.

    A step happens in this order: the action slips; the agent sets out to another cell; the cell
    behind it cracks; what is at its target decides. ``slip``: with this probability an action
    becomes "stay", and an attempt may take 1 / (1 - ``slip``) times as long, rounded. ``recover``:
    an agent that enters a hole, or stays in one, pays 0.1 and is put back. ``hard``: with
    probability 0.5 per episode actions 1 and 3 are swapped; with probability 0.25 per timestep the
    place shown is wrong by -1, 0 or 1 on each axis (within the lake); with probability 0.33 the
    cell that the agent sets out from becomes a hole until the end of the attempt; an attempt may
    take twice as long.

    Args:
        num_envs: Number of lakes, played at the same time.
        size: Cells along a side, at least 2.
        num_trials: Number of attempts of an episode.
        hard: Swap actions, misread places and crack the ice.
        recover: Make holes cost a little instead of ending the attempt.
        slip: Probability that an action has no effect, in [0, 1).
        split: Lakes that episodes play: ``all``; ``train``, all but a share that is held out;
            ``test``, that share (`yamame_envs.split`).
        split_by: Held-out entries: ``lakes``, the holes, whatever the actions do;
            ``lakes_and_actions``, holes and swapped actions together, which is the same unless
            ``hard``.
        observable: Write the current holes to ``hidden`` ``[N, size * size]``; when ``hard``,
            followed by the true row and column, and 1 if actions are swapped.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.

    Raises:
        ValueError: A number is out of its range.

    >>> env = MetaFrozenLake(num_envs=2, size=4, num_trials=3)
    >>> env.reset()["observation"]
    tensor([[0., 0., 1., 0.],
            [0., 0., 1., 0.]])
    """

    identities: ClassVar = {
        "lakes": Identity(("holes",), "new lakes"),
        "lakes_and_actions": Identity(("holes", "effects"), "new actions on known lakes"),
    }
    num_trials: int
    _places: Tensor
    _progress: Tensor
    _targets: Tensor

    @check_bounds
    def __init__(
        self,
        *,
        num_envs: PositiveInt = 1,
        size: Annotated[int, Bounds(least=2)] = 5,
        num_trials: PositiveInt = 10,
        hard: bool = False,
        recover: bool = False,
        slip: Annotated[float, Bounds(least=0, below=1)] = 0.0,
        split: Split = "all",
        split_by: Literal["lakes", "lakes_and_actions"] = "lakes",
        observable: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self.hold_out(split, split_by)
        if not hard:
            # Actions are never swapped.
            self.split_novelty = self.identities["lakes"].novelty
        self._size = size
        self.num_trials = num_trials
        self._hard = hard
        self._recover = recover
        self._slip = slip
        self._trial_limit = round((2 if hard else 1) * size**2 / (1 - slip))
        super().__init__(
            num_envs=num_envs,
            time_limit=num_trials * self._trial_limit,
            action=Categorical(len(MOVES)),
            observations={
                "observation": Bounded(0.0, 1.0, shape=(4,), dtype=torch.float32, device=device)
            },
            hidden=size * size + (3 if hard else 0) if observable else 0,
            seed=seed,
            device=device,
        )
        self._add_tables()
        self.check_split()

    def _add_tables(self) -> None:
        size = self._size
        cell = torch.arange(size * size)
        row, column = cell // size, cell % size
        ends = [
            (row + i).clamp(0, size - 1) * size + (column + j).clamp(0, size - 1) for i, j in MOVES
        ]
        tables = {
            "_targets": torch.stack(ends).flatten(),  # [5 * cells]
            "_places": torch.stack([row, column], -1) / size,
            "_progress": torch.arange(self.num_trials + 1) / self.num_trials,
        }
        for name, table in tables.items():
            self.register_buffer(name, table.to(self.device), persistent=False)

    def draw_tasks(self, task_seed: Tensor) -> Tensors:
        task = {"holes": draw_lakes(fold(task_seed, 0), self._size).flatten(1)}
        if self._hard:
            swapped = uniform(fold(task_seed, 1)) < _SWAP
            task["effects"] = torch.tensor(_EFFECTS)[swapped.to(torch.int64)]
            task["looks"] = fold(task_seed, 2)
        if self._hard or self._slip > 0:
            task["steps"] = fold(task_seed, 3)
        return task

    def begin(self, task: Tensors) -> Tensors:
        zero = torch.zeros_like(task["task_seed"])
        flag = zero.unsqueeze(-1).to(torch.bool)
        cracked = {"holes": task["holes"].clone()} if self._hard else {}
        return {
            "cell": zero,
            "trial": zero.clone(),
            "trial_step": zero.clone(),
            "trial_start": ~flag,
            "ended": flag,
            **cracked,
        }

    def transition(
        self, task: Tensors, state: Tensors, action: Tensor
    ) -> tuple[Tensors, Tensor, Tensor]:
        cell = state["cell"]
        holes = task["holes"]
        if self._hard:
            action = task["effects"].gather(1, action.unsqueeze(-1)).squeeze(-1)
        if self._hard or self._slip > 0:
            chance = uniform(fold(task["steps"], state["step_index"].squeeze(-1)), 2)
            action = action.masked_fill(chance[:, 0] < self._slip, 0)
        target = self._targets.index_select(0, action * self._size**2 + cell)
        if self._hard:
            # The cell left behind cracks, never one where the agent stays.
            there = cell.unsqueeze(-1)
            cracks = (chance[:, 1] < _CRACK) & (target != cell)
            was_hole = state["holes"].gather(1, there)
            holes = state["holes"].scatter(1, there, was_hole | cracks.unsqueeze(-1))
        fell = holes.gather(1, target.unsqueeze(-1)).squeeze(-1)
        crossed = target == self._size**2 - 1
        step = state["trial_step"] + 1
        over = crossed | (step >= self._trial_limit)
        reward = crossed.to(torch.float32)
        if self._recover:
            # The agent is put back to where it was.
            reward = reward + _FALL * fell
            target = torch.where(fell, cell, target)
        else:
            over = over | fell
        trial = state["trial"] + over
        ended = trial >= self.num_trials
        # The last attempt does not begin again: its last cell is still shown.
        again = over & ~ended
        changed = {
            "cell": target.masked_fill(again, 0),
            "trial": trial,
            "trial_step": step.masked_fill(over, 0),
            "trial_start": again.unsqueeze(-1),
            "ended": ended.unsqueeze(-1),
        }
        if self._hard:
            # Cracks last until the end of the attempt.
            changed["holes"] = torch.where(again.unsqueeze(-1), task["holes"], holes)
        return changed, reward.unsqueeze(-1), (ended & crossed).unsqueeze(-1)

    def observe(self, task: Tensors, state: Tensors) -> Tensors:
        cell = self._misread(task, state) if self._hard else state["cell"]
        place = self._places.index_select(0, cell)
        trial_start = state["trial_start"].to(torch.float32)
        progress = self._progress.index_select(0, state["trial"]).unsqueeze(-1)
        return {"observation": torch.cat([place, trial_start, progress], 1)}

    def _misread(self, task: Tensors, state: Tensors) -> Tensor:
        """Return the observed cell, ``[R]``."""
        size = self._size
        cell = state["cell"]
        chance = uniform(fold(task["looks"], state["step_index"].squeeze(-1)), 3)
        error = (3.0 * chance[:, 1:]).to(torch.int64) - 1
        error = error * (chance[:, :1] < _JITTER)
        row = cell // size + error[:, 0]
        column = cell % size + error[:, 1]
        return row.clamp(0, size - 1) * size + column.clamp(0, size - 1)

    def hidden_values(self, task: Tensors, state: Tensors) -> Tensor:
        if not self._hard:
            return task["holes"].to(torch.float32)
        swapped = (task["effects"][:, 1:2] != 1).to(torch.float32)
        holes = state["holes"].to(torch.float32)
        place = self._places.index_select(0, state["cell"])
        return torch.cat([holes, place, swapped], 1)

    def draw_picture(self, env_id: int) -> npt.NDArray[np.uint8]:
        """Draw one env: ``[H, W, 3]`` uint8 RGB.

        The agent is a disc, holes are large dark discs, the goal is a bright disc within a ring.
        Where the agent observes itself elsewhere, a ring shows the place.
        """
        env_state, size = self.env_state, self._size
        walls = np.ones((size + 2, size + 2), bool)
        walls[1:-1, 1:-1] = False
        picture = frame(walls)
        holes = env_state.state["holes"] if self._hard else env_state.task["holes"]
        for hole in holes[env_id].nonzero().squeeze(-1).tolist():
            disc(picture, (hole // size + 1, hole % size + 1), Palette.WALL, 0.42)
        goal(picture, (size, size), 0)
        observed = (
            (env_state.timestep["observation"][env_id, :2] * size).round().to(torch.int64).tolist()
        )
        agent = int(env_state.state["cell"][env_id])
        if observed != [agent // size, agent % size]:
            ring(picture, (observed[0] + 1, observed[1] + 1), Palette.AGENT, 0.34)
        disc(picture, (agent // size + 1, agent % size + 1), Palette.AGENT, 0.34)
        return picture


def draw_lakes(key: Tensor, size: int) -> Tensor:
    """Draw the holes of lakes that can be crossed: ``[R] -> [R, size, size]`` bool.

    Every lake is drawn anew, from a key of its own, until there is a way from corner to corner over
    neighbours in the four directions.
    """
    lakes = torch.zeros(len(key), size, size, dtype=torch.bool, device=key.device)
    pending = torch.arange(len(key), device=key.device)
    attempt = 0
    while len(pending) > 0:
        drawn = uniform(fold(key[pending], attempt), size, size) >= _FROZEN
        drawn[:, 0, 0] = drawn[:, -1, -1] = False
        good = crossable(drawn)
        lakes[pending[good]] = drawn[good]
        pending, attempt = pending[~good], attempt + 1
    return lakes


def crossable(holes: Tensor) -> Tensor:
    """Return a mask ``[R]`` of lakes ``[R, n, n]`` with a way from corner (0, 0) to (-1, -1)."""
    free = ~holes
    reached = torch.zeros_like(holes)
    reached[:, 0, 0] = free[:, 0, 0]
    while True:
        more = reached.clone()
        more[:, 1:] |= reached[:, :-1]
        more[:, :-1] |= reached[:, 1:]
        more[:, :, 1:] |= reached[:, :, :-1]
        more[:, :, :-1] |= reached[:, :, 1:]
        more &= free
        if torch.equal(more, reached):
            return reached[:, -1, -1]
        reached = more
