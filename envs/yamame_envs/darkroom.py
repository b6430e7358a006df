"""Dark Key-To-Door: find an unseen key, then an unseen door, again and again in the same room.

Source: Algorithm Distillation, arXiv 2210.14215 (Dark Key-To-Door), as played in AMAGO, arXiv
2310.09971.
"""

from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical
from yamame.checks import Bounds, PositiveInt, check_bounds, require_choice

from yamame_envs.base import BatchedEnv
from yamame_envs.maze import DIRECTIONS
from yamame_envs.rendering import Palette, disc, frame, goal
from yamame_envs.split import Identity, Split
from yamame_envs.streams import fold, integers, permutation
from yamame_envs.tasks import Tensors, one_hots

Attempts = Literal["soft_reset", "reset_step"]


class DarkKeyDoor(BatchedEnv):
    """An empty square room with a key and a door, played in many attempts until the time limit.

    Start, key and door are drawn once per episode, each uniformly from all cells, so they may
    coincide. Actions: 0 west, 1 north, 2 east, 3 south, 4 stay; the border stops a move. The first
    step of an attempt that ends on the key's cell pays 1; a later step that ends on the door's cell
    pays 1 and ends the attempt. So the two never pay in the same step, and where the agent starts
    on the key, it must stay for one step to have it. Every attempt begins at the start without the
    key.

    Observation ``[N, 4]`` float32: row and column divided by ``size``, 1 with the key, steps of the
    attempt divided by ``trial_limit``. With ``light``, row and column of the door and of the key
    follow, divided by ``size``. ``trial_start`` is shown at the first timestep of every attempt.
    ``success`` is shown at the last timestep of the episode, if the last attempt that was completed
    opened the door.

    Args:
        num_envs: Number of rooms, played at the same time.
        size: Cells along a side, at least 2.
        trial_limit: Length of an attempt; see ``attempts``.
        time_limit: Steps of an episode, which ends then and never earlier.
        attempts: Transition between attempts. ``"soft_reset"``, as in AMAGO's published results:
            the step that ends an attempt already shows the first timestep of the next one, and an
            attempt ends with its step ``trial_limit + 1``. ``"reset_step"``, as in AMAGO's later
            versions: an attempt ends with its step ``trial_limit`` and shows its own last timestep;
            the step after it leads to the start, whatever its action, and pays nothing.
        light: Make door and key visible.
        randomize_actions: Permute the effects of the five actions anew in every episode.
        split: Rooms that episodes play: ``all``; ``train``, all but a share that is held out;
            ``test``, that share (`yamame_envs.split`).
        split_by: Held-out entries: ``rooms``, pairs of key and door, whatever the start and the
            actions; ``rooms_and_starts``, key, door and start together. Permuted actions are then
            part of the combination, so training may meet the same start in the same room with other
            actions.
        observable: Write door and key to ``hidden`` ``[N, 4]``, in the format of ``light``,
            followed by permuted actions as one-hots, ``[N, 29]``.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.

    Raises:
        ValueError: A setting is out of its range.

    >>> env = DarkKeyDoor(num_envs=2, size=5, trial_limit=10, time_limit=100)
    >>> env.rollout(200)["observation"].shape
    torch.Size([2, 100, 4])
    """

    identities: ClassVar = {
        "rooms": Identity(("key", "door"), "new rooms"),
        "rooms_and_starts": Identity(
            ("start", "key", "door", "actions"), "new starts in known rooms"
        ),
    }
    _next_cell: Tensor
    _places: Tensor
    _trial_length: Tensor

    @check_bounds
    def __init__(
        self,
        *,
        num_envs: PositiveInt = 1,
        size: Annotated[int, Bounds(least=2)] = 9,
        trial_limit: PositiveInt = 50,
        time_limit: PositiveInt = 500,
        attempts: Attempts = "soft_reset",
        light: bool = False,
        randomize_actions: bool = False,
        split: Split = "all",
        split_by: Literal["rooms", "rooms_and_starts"] = "rooms",
        observable: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        require_choice(self.label, "attempts", attempts, get_args(Attempts))
        self.hold_out(split, split_by)
        if randomize_actions and split_by == "rooms_and_starts":
            self.split_novelty = "new combinations of room, start and actions"
        self._size = size
        self._trial_limit = trial_limit
        self._attempts = attempts
        self._light = light
        self._randomize = randomize_actions
        shape = (8 if light else 4,)
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            action=Categorical(5),
            observations={
                "observation": Bounded(0.0, 1.0, shape=shape, dtype=torch.float32, device=device)
            },
            hidden=(29 if randomize_actions else 4) if observable else 0,
            seed=seed,
            device=device,
        )
        self._add_tables()
        self.check_split()

    def _add_tables(self) -> None:
        size = self._size
        index = torch.arange(size * size)
        places = torch.stack([index // size, index % size], -1)
        targets = (places.unsqueeze(1) + torch.tensor([*DIRECTIONS, (0, 0)])).clamp(0, size - 1)
        next_cell = (targets[..., 0] * size + targets[..., 1]).flatten()
        # Devices round a division by a tensor alike, but not one by a number.
        length = torch.tensor(float(self._trial_limit))
        self.register_buffer("_next_cell", next_cell.to(self.device), persistent=False)
        self.register_buffer("_places", (places / size).to(self.device), persistent=False)
        self.register_buffer("_trial_length", length.to(self.device), persistent=False)

    def draw_tasks(self, task_seed: Tensor) -> Tensors:
        names = ("start", "key", "door")
        task = {name: integers(fold(task_seed, i), self._size**2) for i, name in enumerate(names)}
        if self._randomize:
            task["actions"] = permutation(fold(task_seed, 3), 5)
        return task

    def begin(self, task: Tensors) -> Tensors:
        start = task["start"]
        no = torch.zeros_like(start, dtype=torch.bool)
        state = {
            "cell": start.clone(),
            "has_key": no,
            "clock": torch.zeros_like(start),
            # The last completed attempt opened the door.
            "opened": no.clone(),
            "trial_start": ~no.unsqueeze(-1),
        }
        if self._attempts == "reset_step":
            # The next step begins an attempt.
            state["over"] = no.clone()
        return state

    def transition(
        self, task: Tensors, state: Tensors, action: Tensor
    ) -> tuple[Tensors, Tensor, Tensor]:
        cell, picks_up, opens = self._walk(task, state, action)
        clock = state["clock"] + 1
        extra: Tensors = {}
        if self._attempts == "soft_reset":
            over = begins = opens | (clock > self._trial_limit)
        else:
            # The step after the end of an attempt only leads to the start.
            begins = state["over"]
            picks_up = picks_up & ~begins
            opens = opens & ~begins
            over = opens | ((clock >= self._trial_limit) & ~begins)
            extra["over"] = over
        opened = torch.where(over, opens, state["opened"])
        last = state["step_index"] + 1 >= self.horizon
        new = {
            "cell": torch.where(begins, task["start"], cell),
            "has_key": (state["has_key"] | picks_up) & ~begins,
            "clock": clock.masked_fill(begins, 0),
            "opened": opened,
            "trial_start": begins.unsqueeze(-1),
        }
        reward = (picks_up | opens).unsqueeze(-1).to(torch.float32)
        return {**new, **extra}, reward, last & opened.unsqueeze(-1)

    def _walk(self, task: Tensors, state: Tensors, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next cell, and masks of envs that pick up the key or open the door there."""
        if self._randomize:
            action = task["actions"].gather(1, action.unsqueeze(-1)).squeeze(-1)
        cell = self._next_cell.index_select(0, 5 * state["cell"] + action)
        has_key = state["has_key"]
        picks_up = ~has_key & (cell == task["key"])
        opens = has_key & (cell == task["door"])
        return cell, picks_up, opens

    def observe(self, task: Tensors, state: Tensors) -> Tensors:
        clock = (state["clock"] / self._trial_length).unsqueeze(-1)
        seen = [self._places.index_select(0, state["cell"]), state["has_key"].unsqueeze(-1), clock]
        if self._light:
            seen += [self._places.index_select(0, task[name]) for name in ("door", "key")]
        return {"observation": torch.cat(seen, 1)}

    def hidden_values(self, task: Tensors, state: Tensors) -> Tensor:
        seen = [self._places.index_select(0, task[name]) for name in ("door", "key")]
        return torch.cat(seen + ([one_hots(task["actions"], 5)] if self._randomize else []), 1)

    def draw_picture(self, env_id: int) -> npt.NDArray[np.uint8]:
        """Draw one env: ``[H, W, 3]`` uint8 RGB.

        The agent is a disc. What is to be reached next, the key or the door, is a bright disc
        within a ring, the door before its turn is a ring, the key that was found a small dot.
        """
        env_state = self.env_state
        walls = np.ones((self._size + 2, self._size + 2), bool)
        walls[1:-1, 1:-1] = False
        picture = frame(walls)

        def place(cell: Tensor) -> tuple[int, int]:
            return int(cell[env_id]) // self._size + 1, int(cell[env_id]) % self._size + 1

        has_key = int(env_state.state["has_key"][env_id])
        goal(picture, place(env_state.task["key"]), -has_key)
        goal(picture, place(env_state.task["door"]), 1 - has_key)
        disc(picture, place(env_state.state["cell"]), Palette.AGENT, 0.34)
        return picture
