"""Gymnasium environment of levels of MiniGrid and BabyAI.

`yamame_envs.suites.minigrid` describes its observation.
"""

from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from yamame_envs.suites.minigrid_levels import NUM_TOKENS, begin, build, tokens
from yamame_envs.suites.resize import AreaResize

View = Literal["partial", "full", "rgb", "full_rgb"]

# First token of objects, colours and states.
_OFFSETS = np.array([0, 11, 17])
_NUM_CELL_TOKENS = 21
_AGENT = 10
_TILE = 9
_PIXELS = 63


class GridLevels(gymnasium.Env[dict[str, Any], Any]):
    """Environment whose every episode plays a level and a layout drawn from the seed.

    Args:
        levels: Identifiers of levels.
        view: As in `yamame_envs.suites.minigrid.MiniGrid`.
        cells: Height and width of a grid of tokens; smaller maps are padded with unseen cells.
        mission_length: As in `yamame_envs.suites.minigrid.MiniGrid`.
        layouts: Range of the seeds of layouts, its end exclusive.
        show_clock: Add the entry ``clock``.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(
        self,
        *,
        levels: tuple[str, ...],
        view: View,
        cells: int,
        mission_length: int,
        layouts: tuple[int, int],
        show_clock: bool,
    ) -> None:
        self._names = levels
        self._view = view
        self._cells = cells
        self._mission_length = mission_length
        self._layouts = layouts
        self._show_clock = show_clock
        self._built: dict[str, Any] = {}
        self._resizers: dict[tuple[int, int], AreaResize] = {}
        self.action_space = spaces.Discrete(7)
        self.observation_space = spaces.Dict(self._entries())

    def _entries(self) -> dict[str, spaces.Space[Any]]:
        image: spaces.Box[Any] = spaces.Box(0, 255, (3, _PIXELS, _PIXELS), dtype=np.uint8)
        if not self._view.endswith("rgb"):
            image = spaces.Box(
                0, _NUM_CELL_TOKENS - 1, (self._cells, self._cells, 3), dtype=np.int64
            )
        entries: dict[str, spaces.Space[Any]] = {
            "image": image,
            "mission": spaces.Box(0, NUM_TOKENS - 1, (self._mission_length,), dtype=np.int64),
            "direction": spaces.Discrete(4),
        }
        if self._show_clock:
            entries["clock"] = spaces.Box(0.0, 1.0, (1,), dtype=np.float32)
        return entries

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        name = self._names[int(self.np_random.integers(len(self._names)))]
        layout = int(self.np_random.integers(*self._layouts))
        if name not in self._built:
            self._built[name] = build(name)
        self._level = self._built[name]
        seen = begin(self._level, layout)
        self._mission = self._tokens(name)
        return self._observe(seen), {"level": name, "layout": layout, "success": False}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Step the level; its own limit terminates the episode like its other ends."""
        seen, reward, terminated, truncated, _ = self._level.step(int(action))
        info = {"success": bool(terminated and reward > 0)}
        return self._observe(seen), float(reward), bool(terminated or truncated), False, info

    def render(self) -> npt.NDArray[np.uint8]:
        """Return the whole map, with the agent's view in a lighter shade: ``[H, W, 3]`` uint8."""
        return np.asarray(self._level.get_frame())

    def _tokens(self, name: str) -> npt.NDArray[np.int64]:
        words = tokens(self._level.mission)
        if len(words) > self._mission_length:
            raise ValueError(
                f"MiniGrid: mission_length must be at least {len(words)} for {name}, "
                f"got {self._mission_length}"
            )
        return np.array(words + [0] * (self._mission_length - len(words)), dtype=np.int64)

    def _observe(self, seen: dict[str, Any]) -> dict[str, Any]:
        level = self._level
        image = self._pixels() if self._view.endswith("rgb") else self._grid(seen["image"])
        observation: dict[str, Any] = {
            "image": image,
            "mission": self._mission.copy(),
            "direction": int(seen["direction"]),
        }
        if self._show_clock:
            observation["clock"] = np.array([level.step_count / level.max_steps], dtype=np.float32)
        return observation

    def _grid(self, partial_view: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        if self._view == "partial":
            return partial_view + _OFFSETS
        level = self._level
        grid = np.zeros((self._cells, self._cells, 3), dtype=np.int64)
        grid[: level.width, : level.height] = level.grid.encode()
        grid[tuple(level.agent_pos)] = (_AGENT, 0, level.agent_dir)
        return grid + _OFFSETS

    def _pixels(self) -> npt.NDArray[np.uint8]:
        picture = self._level.get_frame(tile_size=_TILE, agent_pov=self._view == "rgb")
        size = picture.shape[:2]
        if size not in self._resizers:
            self._resizers[size] = AreaResize(size, (_PIXELS, _PIXELS))
        return self._resizers[size](picture)
