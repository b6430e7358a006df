"""Atari 2600 console that plays one episode after the other.

Every episode of a game begins in the same state of the machine, whatever its seed: all chance lies
in the sticky actions. They are therefore drawn here, and a machine is restored to its start instead
of loaded again, which takes a thousandth of the time.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from yamame_envs.adapters.extras import import_extra
from yamame_envs.suites.resize import AreaResize

Screen = Literal["rgb", "rgb_max", "grey", "grey_max"]
Picture = npt.NDArray[np.uint8]

_SIDE = 84
_NUM_ACTIONS = 18


def _library() -> Any:
    return import_extra("ale_py", extra="atari", owner="Atari")


def find_game(name: str) -> str:
    """Return the name of a game's cartridge: "MsPacman" and "ms_pacman" are the same game.

    Raises:
        ValueError: There is no such game.
    """
    known = _library().roms.get_all_rom_ids()
    rom_name = {rom.replace("_", ""): rom for rom in known}.get(name.replace("_", "").lower())
    if rom_name is None:
        close = ", ".join(get_close_matches(name.lower(), known, n=3))
        raise ValueError(
            f"Atari: game must be a game of ale-py{close and ', such as '}{close}, got {name!r}"
        )
    return str(rom_name)


@lru_cache(maxsize=8)
def _resize(height: int, width: int) -> AreaResize:
    return AreaResize((height, width), (_SIDE, _SIDE))


@dataclass(frozen=True, slots=True)
class _Machine:
    """Console with its game, and the screen at the start of an episode."""

    ale: Any
    start: Any
    first_screen: Picture
    first_picture: Picture

    def screen(self, grey: bool) -> Picture:
        return np.asarray(self.ale.getScreenGrayscale() if grey else self.ale.getScreenRGB())


def _load(game: str, grey: bool) -> _Machine:
    library = _library()
    library.ALEInterface.setLoggerMode(library.LoggerMode.Error)
    ale = library.ALEInterface()
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(library.roms.get_rom_path(game))
    ale.reset_game()
    first = np.asarray(ale.getScreenGrayscale() if grey else ale.getScreenRGB())
    return _Machine(ale, ale.cloneState(include_rng=True), first, np.asarray(ale.getScreenRGB()))


class Console(gymnasium.Env[Picture, Any]):
    """Gymnasium environment of a console; every episode plays a game drawn from the seed.

    Args:
        games: Names of cartridges.
        screen: As in `yamame_envs.suites.atari.Atari`.
        frame_skip: As in `yamame_envs.suites.atari.Atari`.
        sticky: As in `yamame_envs.suites.atari.Atari`.
        life_loss_ends: As in `yamame_envs.suites.atari.Atari`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(
        self,
        *,
        games: tuple[str, ...],
        screen: Screen,
        frame_skip: int,
        sticky: float,
        life_loss_ends: bool,
    ) -> None:
        self._games = games
        self._grey, self._max = screen.startswith("grey"), screen.endswith("_max")
        self._frame_skip = frame_skip
        self._sticky = sticky
        self._life_loss_ends = life_loss_ends
        self._machines: dict[str, _Machine] = {}
        self._actions = list(_library().Action.__members__.values())[:_NUM_ACTIONS]
        self.action_space = spaces.Discrete(_NUM_ACTIONS)
        planes = 1 if self._grey else 3
        self.observation_space = spaces.Box(0, 255, (planes, _SIDE, _SIDE), dtype=np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Picture, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        game = self._games[int(self.np_random.integers(len(self._games)))]
        if game not in self._machines:
            self._machines[game] = _load(game, self._grey)
        self._machine = self._machines[game]
        self._machine.ale.restoreState(self._machine.start)
        self._held = self._actions[0]
        self._lives = self._machine.ale.lives()
        # Restoring a machine does not restore its screen.
        self._screen = self._machine.first_screen
        self._steps = 0
        return self._small(self._screen), {"game": game}

    def step(self, action: Any) -> tuple[Picture, float, bool, bool, dict[str, Any]]:
        """Play ``frame_skip`` frames; each repeats the last action with probability ``sticky``."""
        self._steps += 1
        ale, before, reward = self._machine.ale, self._screen, 0
        heeded = self.np_random.random(self._frame_skip) >= self._sticky
        for frame in range(self._frame_skip):
            if heeded[frame]:
                self._held = self._actions[int(action)]
            if self._max and 0 < frame == self._frame_skip - 1:
                before = self._machine.screen(self._grey)
            reward += ale.act(self._held, 1.0)
        self._screen = self._machine.screen(self._grey)
        lost_life = ale.lives() < self._lives
        self._lives = ale.lives()
        over = bool(ale.game_over()) or (self._life_loss_ends and lost_life)
        screen = np.maximum(self._screen, before) if self._max else self._screen
        return self._small(screen), float(reward), over, False, {}

    def render(self) -> Picture:
        """Return the full screen of the console: ``[H, W, 3]`` uint8."""
        machine = self._machine
        return machine.first_picture if self._steps == 0 else machine.screen(grey=False)

    def _small(self, screen: Picture) -> Picture:
        return _resize(*screen.shape[:2])(screen)
