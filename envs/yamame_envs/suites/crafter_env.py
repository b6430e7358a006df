"""Gymnasium environment of Crafter with instructions.

Its seed decides the world, everything that happens in it, and the instruction. This module does not
import PyTorch.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from yamame.checks import require, require_choice
from yamame.keys import GOAL_COMPLETED, GOAL_PAD

from yamame_envs.suites.crafter_game import GRID, Game
from yamame_envs.suites.crafter_goals import (
    TECH_TREE,
    WORDS,
    Goal,
    draw_climb,
    draw_instruction,
    encode,
    parse_goal,
    place_reached,
)
from yamame_envs.suites.crafter_pictures import Painter

Mode = Literal["textures", "crop", "render"]
Task = Literal["instructions", "tech_tree", "undirected"]

# Goals of a step: one by the action, one by waking up, one by the place.
_SLOTS = 3
_ITEMS = 16
_CLIMBS = 1 / 3
_UNIT, _PICTURE_UNIT = 7, 48
_IMAGES = {"crop": (48, 64, 3), "render": (64, 64, 3)}

Observation = dict[str, npt.NDArray[Any]]


class CrafterEnv(gymnasium.Env[Any, Any]):
    """Crafter of one env; see `yamame_envs.suites.crafter.Crafter`.

    Args:
        observation: Observation of the world.
        num_goals: Largest number K of goals of an instruction.
        min_goals: Smallest number of goals of a drawn instruction.
        instruction: Goals of every episode in words. None: goals are drawn.
        task: Goals and rewards.
        render_mode: ``"rgb_array"`` or None.

    Raises:
        ImportError: The package ``crafter`` is not installed.
        ValueError: A number is out of its range, a word is unknown, or settings exclude each
            other.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        *,
        observation: Mode,
        num_goals: int,
        min_goals: int,
        instruction: Sequence[str] | None,
        task: Task,
        render_mode: str | None = None,
    ) -> None:
        _check(observation, num_goals, min_goals, task)
        self._mode, self._task = observation, task
        self._counts = (min_goals, num_goals)
        self._fixed = None if instruction is None else parse_fixed(instruction, num_goals, task)
        self._game = Game()
        self._painters: dict[int, Painter] = {}
        self._goals: list[Goal] = []
        self._active = 0
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(len(self._game.actions))
        self.observation_space = self._space()

    def _space(self) -> spaces.Dict:
        seen: dict[str, spaces.Space[Any]] = {}
        if self._mode == "textures":
            high = self._game.num_textures - 1
            seen["textures"] = spaces.Box(0, high, GRID[::-1], dtype=np.int64)
            seen["status"] = spaces.Box(-1.0, 1.0, (_ITEMS + 5,))
        else:
            seen["image"] = spaces.Box(0, 255, _IMAGES[self._mode], dtype=np.uint8)
            if self._mode == "crop":
                seen["inventory"] = spaces.Box(0.0, 1.0, (_ITEMS,))
        last = float(len(WORDS) - 1)
        goals = {
            "goal": spaces.Box(GOAL_COMPLETED, last, (self._counts[1], 3)),
            "achieved": spaces.Box(0.0, last, (_SLOTS, 3)),
            "achieved_mask": spaces.MultiBinary(_SLOTS),
        }
        return spaces.Dict({**seen, **goals})

    @property
    def game(self) -> Game:
        """Current game."""
        return self._game

    @property
    def instruction(self) -> list[Goal]:
        """Goals of this episode; empty without instructions."""
        return list(self._goals)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the episode of a seed; without one, the next episode of the last seed."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        self._game.begin(seed)
        self._goals = self._asked(np.random.default_rng(seed))
        self._active = 0
        return self._observe([]), {"success": False}

    def _asked(self, random: np.random.Generator) -> list[Goal]:
        if self._task == "undirected":
            return []
        if self._fixed is not None:
            return self._fixed
        if self._task == "tech_tree" and random.random() < _CLIMBS:
            return draw_climb(random, *self._counts)
        return draw_instruction(random, *self._counts)

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        names, reward = self._game.step(int(action))
        achieved = [parse_goal(name) for name in names]
        place = place_reached(*self._game.position)
        if place is not None:
            achieved.append(place)
        success = False
        if self._task != "undirected":
            done = self._active < len(self._goals) and self._goals[self._active] in achieved
            self._active += done
            reward, success = float(done), self._active == len(self._goals)
        terminated = success or self._game.player.health <= 0
        return self._observe(achieved), reward, terminated, False, {"success": success}

    def _observe(self, achieved: list[Goal]) -> Observation:
        goal = encode(self._goals, self._counts[1], GOAL_PAD)
        goal[: self._active] = GOAL_COMPLETED
        mask = np.zeros(_SLOTS, np.int8)
        mask[: len(achieved)] = 1
        return {
            **self._see(),
            "goal": goal,
            "achieved": encode(achieved, _SLOTS, 0.0),
            "achieved_mask": mask,
        }

    def _see(self) -> Observation:
        game = self._game
        if self._mode == "textures":
            return {"textures": game.textures(), "status": self._status()}
        image = np.zeros(_IMAGES[self._mode], np.uint8)
        painter = self._painter(_UNIT)
        if self._mode == "crop":
            image[:, : _UNIT * GRID[0]] = painter.world()[: len(image)]
            return {"image": image, "inventory": game.inventory / 10}
        picture = painter.picture()
        image[: picture.shape[0], : picture.shape[1]] = picture
        return {"image": image}

    def _status(self) -> npt.NDArray[np.float32]:
        game = self._game
        status = np.empty(_ITEMS + 5, np.float32)
        status[:2] = game.player.facing
        status[2:-3] = game.inventory / 10
        status[-3:-1] = [(coordinate - 30) / 60 for coordinate in game.position]
        status[-1] = game.world.daylight
        return status

    def _painter(self, unit: int) -> Painter:
        if unit not in self._painters:
            self._painters[unit] = Painter(self._game, unit)
        return self._painters[unit]

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return the picture of the game, ``[432, 432, 3]`` RGB; None without a render mode."""
        return None if self.render_mode is None else self._painter(_PICTURE_UNIT).picture()


def _check(observation: str, num_goals: int, min_goals: int, task: str) -> None:
    for name, value, kind in (("observation", observation, Mode), ("task", task, Task)):
        require_choice("Crafter", name, value, get_args(kind))
    require("Crafter", "num_goals", num_goals, num_goals >= 1, "be at least 1")
    most = min(num_goals, len(TECH_TREE)) if task == "tech_tree" else num_goals
    require("Crafter", "min_goals", min_goals, 1 <= min_goals <= most, f"be in 1..{most}")


def parse_fixed(instruction: Sequence[str], num_goals: int, task: str) -> list[Goal]:
    """Return the goals of a fixed instruction.

    Raises:
        ValueError: There are none or too many, a goal is unknown, or the task has no instructions.
    """
    several = not isinstance(instruction, str) and 1 <= len(instruction) <= num_goals
    require(
        "Crafter",
        "instruction",
        instruction,
        several,
        f"be a list of 1..{num_goals} (num_goals) goals",
    )
    require(
        "Crafter",
        "task",
        task,
        task == "instructions",
        "be 'instructions' where an instruction is given",
    )
    return [parse_goal(text) for text in instruction]
