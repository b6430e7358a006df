"""Package Delivery: carry packages along a road with unknown forks.

Source: AMAGO, arXiv 2310.09971, section 5 and appendix (Package Delivery).
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical
from yamame.checks import ArgumentError, Bounds, PositiveInt, check_bounds, require
from yamame.goals import GOAL_PAD, num_goals

from yamame_envs.goal_env import GoalEnv
from yamame_envs.rendering import Palette, disc, frame, goal
from yamame_envs.split import Identity, Split
from yamame_envs.streams import fold, integers, permutation
from yamame_envs.tasks import Tensors, one_hots

_COLUMNS_SHOWN = 41
# First and last action that may place a package.
_BUTTONS = 3, 6
# Packages per destination.
_PACKAGES = 3


class PackageDelivery(GoalEnv):
    """Road with hidden turns, along which packages are placed at destinations in order.

    The agent starts at position 0 of a road of ``length`` cells; a step past the last cell leads to
    0 again. Each episode draws floor(``length`` / 5) // 2 to floor(``length`` / 5) forks, each with
    one branch (left or right) that goes on, one of four buttons that places packages, and the
    destinations, distinct cells without a fork, in ascending order. Three packages are carried for
    every destination.

    Actions:
        * 0, forward: the next cell; no effect at a fork.
        * 1, left, and 2, right: at a fork, the next cell if that branch goes on, else position 0;
          no effect elsewhere.
        * 3 to 6, the buttons: the right one places a package here, if there are any left and the
          position is not 0; any other use leads to position 0; no effect at a fork.
        * 7: nothing.

    Observation ``[N, 3]`` float32: position, packages left, 1 at a fork. Goals are positions
    ``[1]``, the destinations; a goal is achieved in the step that places a package there. Each pays
    1 in its turn; a package placed anywhere else is wasted. The episode ends with the last
    destination or at the time limit.

    Args:
        num_envs: Number of roads, played at the same time.
        length: Cells of the road, at least 2.
        min_packages: Smallest number of destinations. Every number up to ``max_packages`` is
            equally likely.
        max_packages: Largest number of destinations.
        time_limit: Largest number of steps of an episode.
        split: Tasks that episodes play: ``all``; ``train``, all but a share that is held out;
            ``test``, that share (`yamame_envs.split`).
        split_by: Held-out entries: ``roads``, pairs of a road (its forks) and a button, whatever
            the destinations, so training may meet the same road with another button;
            ``roads_and_goals``, combinations of a road, a button and an instruction. Relabelling
            must then reject held-out instructions (`held_out_instructions`).
        observable: Write ``hidden`` ``[N, length + 4]``: the branch that goes on at every cell (1
            right, -1 left, 0 no fork), and the button that places packages as a one-hot.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.

    Raises:
        ValueError: A number is out of its range, or the road with the most forks has fewer other
            cells than ``max_packages``.

    >>> env = PackageDelivery(num_envs=2, length=30)
    >>> env.rollout(3)["goal"].shape
    torch.Size([2, 3, 4, 1])
    """

    identities: ClassVar = {
        "roads": Identity(("onward", "button"), "new combinations of road and button"),
        "roads_and_goals": Identity(
            ("onward", "button", "instruction"), "new combinations of road, button and goals"
        ),
    }

    @check_bounds
    def __init__(
        self,
        *,
        num_envs: PositiveInt = 1,
        length: Annotated[int, Bounds(least=2)] = 30,
        min_packages: PositiveInt = 2,
        max_packages: PositiveInt = 4,
        time_limit: PositiveInt = 180,
        split: Split = "all",
        split_by: Literal["roads", "roads_and_goals"] = "roads",
        observable: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self._check_settings(length, min_packages, max_packages)
        self.hold_out(split, split_by)
        self._length = length
        self._packages = (min_packages, max_packages)
        self._forks = (length // 5 // 2, length // 5)
        high = torch.tensor([length - 1.0, float(_PACKAGES * max_packages), 1.0], device=device)
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            action=Categorical(8),
            observations={"observation": Bounded(torch.zeros_like(high), high, device=device)},
            instruction=(max_packages, 1),
            achieved_slots=1,
            goal_high=length - 1,
            hidden=length + 4 if observable else 0,
            seed=seed,
            device=device,
        )
        self.check_split()

    @classmethod
    def _check_settings(cls, length: int, min_packages: int, max_packages: int) -> None:
        owner = cls.__name__
        # Cells without a fork on the road with the most forks, the start left out.
        room = length - 1 - length // 5
        condition = f"be in 1..{room} at length {length}"
        require(owner, "max_packages", max_packages, max_packages <= room, condition)
        condition = f"be in 1..{max_packages}"
        require(owner, "min_packages", min_packages, min_packages <= max_packages, condition)

    def draw_tasks(self, task_seed: Tensor) -> Tensors:
        least, most = self._forks
        cells = 1 + permutation(fold(task_seed, 0), self._length - 1)
        number = least + integers(fold(task_seed, 1), most - least + 1)
        used = torch.arange(most, device=number.device) < number.unsqueeze(-1)
        branch = 1 + integers(fold(task_seed, 2), 2, most)
        onward = cells.new_zeros(len(cells), self._length)
        return {
            # The action that leads on at each cell; 0 without a fork.
            "onward": onward.scatter_(1, cells[:, :most], branch * used),
            "button": _BUTTONS[0] + integers(fold(task_seed, 3), 4),
            "instruction": self._destinations(task_seed, cells[:, most:]),
        }

    def _destinations(self, task_seed: Tensor, cells: Tensor) -> Tensor:
        """Return the first of the shuffled cells ``[R, *]``, sorted: ``[R, K, 1]``."""
        least, most = self._packages
        count = least + integers(fold(task_seed, 4), most - least + 1)
        unused = torch.arange(most, device=cells.device) >= count.unsqueeze(-1)
        # Unused slots are sorted behind all cells.
        padded = cells[:, :most].masked_fill(unused, self._length)
        ordered = padded.sort(-1).values.to(torch.float32)
        return ordered.masked_fill(unused, GOAL_PAD).unsqueeze(-1)

    def check_instruction(self, task: Tensors, begins: Tensor) -> None:
        cells = task["instruction"][..., 0]
        index = cells.long().clamp(min=0)
        blocked = ((index == 0) | (task["onward"].gather(1, index) > 0)) & (cells != GOAL_PAD)
        blocked &= begins.unsqueeze(-1)
        if bool(blocked.any()):
            env_id, slot = blocked.nonzero()[0].tolist()
            free = (task["onward"][env_id] == 0).nonzero().squeeze(-1)[1:]
            near = free[(free - index[env_id, slot]).abs().argsort(stable=True)[:3]].tolist()
            numbers = " ".join(map(str, near))
            condition = f"name cells behind the start without a fork (near it {numbers})"
            cell = int(cells[env_id, slot])
            raise ArgumentError(self.label, "instruction", cell, condition)

    def begin_world(self, task: Tensors) -> Tensors:
        position = torch.zeros_like(task["button"])
        return {
            "position": position,
            "packages": _PACKAGES * num_goals(task["instruction"]),
            # The start is never a fork.
            "onward": position.clone(),
            "placed": torch.zeros_like(position, dtype=torch.bool),
        }

    def move(self, task: Tensors, state: Tensors, action: Tensor) -> Tensors:
        position = state["position"]
        packages = state["packages"]
        onward = state["onward"]
        fork = onward > 0
        moves = action == onward
        turns = fork & (action > 0) & (action < _BUTTONS[0])
        presses = ~fork & (action >= _BUTTONS[0]) & (action <= _BUTTONS[1])
        placed = presses & (action == task["button"]) & (packages > 0) & (position > 0)
        position = position + moves
        back = (turns & ~moves) | (presses & ~placed) | (position == self._length)
        position = position.masked_fill(back, 0)
        return {
            "position": position,
            "packages": packages - placed.to(torch.int64),
            "onward": task["onward"].gather(1, position.unsqueeze(-1)).squeeze(-1),
            "placed": placed,
        }

    def look(self, task: Tensors, state: Tensors) -> Tensors:
        seen = torch.stack([state["position"], state["packages"], state["onward"] > 0], -1)
        return {"observation": seen.to(torch.float32)}

    def achieved_goals(self, task: Tensors, state: Tensors) -> tuple[Tensor, Tensor]:
        goal = state["position"].to(torch.float32).view(-1, 1, 1)
        return goal, state["placed"].unsqueeze(-1).clone()

    def hidden_values(self, task: Tensors, state: Tensors) -> Tensor:
        branches = (task["onward"] == 2).to(torch.float32) - (task["onward"] == 1).to(torch.float32)
        return torch.cat([branches, one_hots(task["button"] - _BUTTONS[0], 4)], 1)

    def draw_picture(self, env_id: int) -> npt.NDArray[np.uint8]:
        """Draw one env: ``[H, W, 3]`` uint8 RGB; of a long road, the part around the agent.

        The agent is a disc, the active destination a bright disc within a ring, future destinations
        are rings that fade with their rank, completed ones are small dots. A fork has openings on
        both sides; the one that goes on holds a small dot. The packages left lie in a row under the
        road.
        """
        env_state = self.env_state
        position = int(env_state.state["position"][env_id])
        columns = min(self._length, _COLUMNS_SHOWN)
        left = min(max(position - columns // 2, 0), self._length - columns)
        onward = env_state.task["onward"][env_id, left : left + columns].cpu().numpy()
        walls = np.ones((6, columns + 2), bool)
        walls[2, 1:-1] = False
        walls[1:4, 1:-1] &= onward == 0
        picture = frame(walls)
        for column in onward.nonzero()[0].tolist():
            disc(picture, (1 if onward[column] == 1 else 3, column + 1), Palette.COMPLETED, 0.18)
        for rank, destination in enumerate(env_state.task["instruction"][env_id, :, 0].tolist()):
            column = int(destination) - left
            if destination != GOAL_PAD and 0 <= column < columns:
                goal(picture, (2, column + 1), rank - int(env_state.state["active"][env_id]))
        for package in range(min(int(env_state.state["packages"][env_id]), columns)):
            disc(picture, (4, package + 1), Palette.FUTURE, 0.24)
        disc(picture, (2, position - left + 1), Palette.AGENT, 0.34)
        return picture
