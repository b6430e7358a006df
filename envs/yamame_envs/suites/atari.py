"""Atari 2600 games from pixels.

Rules: Machado et al., arXiv 1709.06009 (sticky actions, all 18 actions, 108,000 frames); several
games at a time and their unclipped rewards as in AMAGO-2, arXiv 2411.11188.
"""

from collections.abc import Sequence
from functools import partial
from typing import get_args

import torch
from yamame.checks import check_bounds, require, require_choice

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.workers import Workers
from yamame_envs.suites.atari_console import Console, Screen, find_game


class Atari(HostedEnv):
    """Atari game, or several of which every episode draws one.

    Observation ``[N, 3, 84, 84]`` (grey: ``[N, 1, 84, 84]``) uint8: the screen, resized by area.
    Actions: all 18 of the joystick, whatever the game. Rewards are the points of the game, not
    clipped. An episode ends with the game or at the time limit.

    Args:
        game: Name of a game, as "Pong" or "ms_pacman", or several names.
        screen: Colours: ``rgb``, ``grey``, ``rgb_max`` or ``grey_max``. ``_max`` takes the brighter
            of the last two frames at every pixel, for games that draw some objects in every other
            frame only.
        frame_skip: Number of frames of a step, at least 1.
        sticky: Probability, at every frame, that the previous action is executed instead of the new
            one.
        life_loss_ends: End an episode with the first life; the next one begins with a new game.
        time_limit: Largest number of steps of an episode. None: there is no limit, and no ``time``.
        num_envs: Number of consoles, played at the same time.
        seed: Seed of the games and the chance of all episodes.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures.

    Raises:
        ValueError: A number is out of its range or a game unknown.
        MissingExtra: Ale-py is not installed.
    """

    @check_bounds
    def __init__(
        self,
        *,
        game: str | Sequence[str] = "Pong",
        screen: Screen = "rgb",
        frame_skip: int = 4,
        sticky: float = 0.25,
        life_loss_ends: bool = False,
        time_limit: int | None = 27_000,
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008
    ) -> None:
        names = (game,) if isinstance(game, str) else tuple(game)
        require(self.label, "game", game, len(names) > 0, "name at least one game")
        require_choice(self.label, "screen", screen, get_args(Screen))
        require(self.label, "frame_skip", frame_skip, frame_skip >= 1, "be at least 1")
        require(self.label, "sticky", sticky, 0.0 <= sticky < 1.0, "be in [0, 1)")
        make = partial(
            Console,
            games=tuple(find_game(name) for name in names),
            screen=screen,
            frame_skip=frame_skip,
            sticky=sticky,
            life_loss_ends=life_loss_ends,
        )
        super().__init__(
            make,
            num_envs=num_envs,
            time_limit=time_limit,
            seed=seed,
            device=device,
            workers=workers,
        )
