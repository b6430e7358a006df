"""Wind: fly to a known place through an unknown wind.

Source: Ni et al., "Recurrent model-free RL can be a strong baseline for many POMDPs", arXiv
2110.05038; as in AMAGO, arXiv 2310.09971.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrl.data import Bounded
from yamame.checks import PositiveFloat, PositiveInt, check_bounds

from yamame_envs.base import BatchedEnv
from yamame_envs.rendering import CELL, Color, Palette, Picture, frame
from yamame_envs.streams import fold, integers, uniform
from yamame_envs.tasks import Tensors

_SPEED = 0.1
_STRONGEST = 0.08
_GOAL = (0.0, 1.0)
_LIST_SEED = 1337

_CELLS_SHOWN: Final = 17
_UNITS_PER_CELL: Final = 0.125
# Point in the middle of the picture.
_CENTER: Final = (0.0, 0.5)
_PALE: Final[Color] = (150, 180, 212)

Point = npt.NDArray[np.float64]


class Wind(BatchedEnv):
    """Point in the plane that starts at (0, 0) and is paid near (0, 1).

    Action ``[N, 2]`` float32, both numbers in [-0.1, 0.1]: a step leads to place + action + wind.
    The wind is constant during an episode, uniform in [-0.08, 0.08] on both axes, and hidden.
    Observation ``[N, 2]`` float32: the place. Every step that ends within ``goal_radius`` of the
    goal pays 1; the episode goes on to the time limit. Success is to be there at the last step.
    With the settings of the source, knowing the wind earns 62.2 on average.

    Args:
        num_envs: Number of points, played at the same time.
        num_tasks: Number of winds, the first of the published list. ``None``: a new wind in every
            episode.
        time_limit: Steps of an episode.
        goal_radius: Distance from the goal that still pays.
        observable: Write the wind to ``hidden`` ``[N, 2]``, as shares of the strongest.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.

    Raises:
        ValueError: A number is out of its range.

    >>> env = Wind(num_envs=2, num_tasks=1)
    >>> env.rollout(100)["observation"].shape
    torch.Size([2, 75, 2])
    """

    _goal: Tensor

    @check_bounds
    def __init__(
        self,
        *,
        num_envs: PositiveInt = 1,
        num_tasks: PositiveInt | None = None,
        time_limit: PositiveInt = 75,
        goal_radius: PositiveFloat = 0.03,
        observable: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self._num_tasks = num_tasks
        self._radius = goal_radius
        # 1 % more, for rounding.
        farthest = 1.01 * (_SPEED + _STRONGEST) * time_limit
        place = Bounded(-farthest, farthest, shape=(2,), dtype=torch.float32, device=device)
        super().__init__(
            num_envs=num_envs,
            time_limit=time_limit,
            action=Bounded(-_SPEED, _SPEED, shape=(2,), dtype=torch.float32),
            observations={"observation": place},
            hidden=2 if observable else 0,
            seed=seed,
            device=device,
        )
        # The published list is drawn with this generator and seed.
        random = np.random.RandomState(_LIST_SEED)
        listed = random.uniform(-_STRONGEST, _STRONGEST, (num_tasks or 0, 2))
        self._winds = torch.tensor(listed, dtype=torch.float32)
        self.register_buffer("_goal", torch.tensor(_GOAL, device=self.device), persistent=False)

    def draw_tasks(self, task_seed: Tensor) -> Tensors:
        key = fold(task_seed, 0)
        if self._num_tasks is not None:
            return {"wind": self._winds.index_select(0, integers(key, self._num_tasks))}
        return {"wind": ((2.0 * uniform(key, 2) - 1.0) * _STRONGEST).to(torch.float32)}

    def begin(self, task: Tensors) -> Tensors:
        return {"place": torch.zeros_like(task["wind"])}

    def transition(
        self, task: Tensors, state: Tensors, action: Tensor
    ) -> tuple[Tensors, Tensor, Tensor]:
        place = state["place"] + action + task["wind"]
        distance = (place - self._goal).square().sum(-1, keepdim=True)
        near = distance <= self._radius**2
        last = state["step_index"] + 1 >= self.horizon
        return {"place": place}, near.to(torch.float32), near & last

    def observe(self, task: Tensors, state: Tensors) -> Tensors:
        return {"observation": state["place"].clone()}

    def hidden_values(self, task: Tensors, state: Tensors) -> Tensor:
        return task["wind"] * (1.0 / _STRONGEST)

    def draw_picture(self, env_id: int) -> npt.NDArray[np.uint8]:
        """Draw one env: ``[H, W, 3]`` uint8 RGB.

        The agent is a disc, pale at the border where it has left the picture. The goal is a bright
        disc of its true size within a ring, the start a small dot. The stroke behind the agent is
        the wind: what it blows in five steps.
        """
        env_state = self.env_state
        place = env_state.state["place"][env_id].cpu().numpy().astype(np.float64)
        wind = env_state.task["wind"][env_id].cpu().numpy().astype(np.float64)
        picture = frame(np.zeros((_CELLS_SHOWN, _CELLS_SHOWN), bool))
        start, goal, agent = _pixel(np.zeros(2)), _pixel(np.array(_GOAL)), _pixel(place)
        _stroke(picture, start, start, Palette.COMPLETED, 4.0)
        _stroke(picture, goal, goal, Palette.ACTIVE_TILE, 14.0)
        _ring(picture, goal, Palette.ACTIVE, 14.0)
        _stroke(
            picture, goal, goal, Palette.ACTIVE, max(self._radius / _UNITS_PER_CELL * CELL, 2.0)
        )
        inside = np.clip(agent, 8, _CELLS_SHOWN * CELL - 9)
        if (inside == agent).all():
            _stroke(picture, _pixel(place - 5 * wind), agent, Palette.FUTURE, 2.0)
        color = Palette.AGENT if (inside == agent).all() else _PALE
        _stroke(picture, inside, inside, color, 7.0)
        return picture


def _pixel(place: Point) -> Point:
    """Return the pixel (row, column) of a place (x, y); y grows upwards."""
    middle = (_CELLS_SHOWN * CELL - 1) / 2
    x, y = (place - np.array(_CENTER)) / _UNITS_PER_CELL * CELL
    return np.array([middle - y, middle + x])


def _stroke(picture: Picture, start: Point, end: Point, color: Color, radius: float) -> None:
    """Paint a line with round ends, in place; a disc if it ends at its start."""
    window, distance = _around(picture, start, end, radius + 2.0)
    _blend(window, color, radius + 0.5 - distance)


def _ring(picture: Picture, center: Point, color: Color, radius: float) -> None:
    window, distance = _around(picture, center, center, radius + 2.0)
    _blend(window, color, 1.5 - np.abs(radius - distance))


def _around(
    picture: Picture, start: Point, end: Point, margin: float
) -> tuple[Picture, npt.NDArray[np.float64]]:
    """Return the part of a picture around a line, and the distances of its pixels to the line."""
    corner = np.clip(np.floor(np.minimum(start, end) - margin), 0, None).astype(int)
    bottom, right = np.ceil(np.maximum(start, end) + margin).astype(int) + 1
    window = picture[corner[0] : bottom, corner[1] : right]
    offset = np.moveaxis(np.indices(window.shape[:2]), 0, -1) + corner - start
    line = end - start
    share = np.clip(offset @ line / max(float(line @ line), 1e-9), 0.0, 1.0)
    distance: npt.NDArray[np.float64] = np.linalg.norm(offset - share[..., None] * line, axis=-1)
    return window, distance


def _blend(window: Picture, color: Color, cover: npt.NDArray[np.float64]) -> None:
    mixed = window + np.clip(cover, 0.0, 1.0)[..., None] * (np.array(color) - window)
    window[:] = np.rint(mixed).astype(np.uint8)
