"""Crafter, a survival game with instructions.

Source of the game: Hafner, arXiv 2109.06780. Source of the instructions: AMAGO, arXiv 2310.09971,
section 5 and appendix (Crafter).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.in_process import Make
from yamame_envs.adapters.workers import Workers
from yamame_envs.suites.crafter_env import CrafterEnv, Mode, Task, parse_fixed
from yamame_envs.suites.crafter_goals import parse_instruction


class Crafter(HostedEnv):
    """Crafter with a new world and new goals, in words, in every episode.

    Actions: the 17 of the game. Goals ``[K, 3]`` are ids of words (`crafter_goals.WORDS`):
    achievements ("collect wood", "make stone pickaxe") and places ("travel 20m 35m"). Each pays 1
    when it is achieved in its turn. The episode ends with the last goal, by death or at the time
    limit. Observations, by ``observation``:

    - ``"textures"``: ``textures`` ``[7, 9]`` int64, content of each cell around the player, 0
      outside of the world; and ``status`` ``[21]``: direction of the player (x, y), 16 counts of
      items / 10, x and y of the player minus 30 / 60, daylight.
    - ``"crop"``: ``image`` ``[48, 64, 3]`` uint8, the world; and ``inventory`` ``[16]``, counts of
      items / 10.
    - ``"render"``: ``image`` ``[64, 64, 3]`` uint8, the world and the inventory.

    Goals and rewards, by ``task``:

    - ``"instructions"``: goals drawn by `crafter_goals.draw_goal`, or ``instruction``.
    - ``"tech_tree"``: in a third of the episodes steps of the tree of tools
      (`crafter_goals.draw_climb`).
    - ``"undirected"``: no goals; all slots of ``goal`` are unused, the reward is the game's own,
      and there is no ``success``.

    The game's speed depends on the package ``numba``, with which a world is made 15 times faster.

    Args:
        observation: Observation of the world. ``textures``: the kind of each cell. ``crop``: pixels
            and counts. ``render``: pixels.
        num_goals: Largest number K of goals of an instruction.
        min_goals: Smallest number of goals of a drawn instruction. Every number up to
            ``num_goals`` is equally likely.
        instruction: Goals of every episode in words, at most ``num_goals``. None: goals are drawn.
        task: Goals and rewards. ``instructions``: random goals. ``tech_tree``: some instructions
            follow the tree of tools. ``undirected``: the game's own reward.
        time_limit: Largest number of steps of an episode.
        num_envs: Number of worlds, played at the same time.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures.

    Raises:
        ImportError: The package ``crafter`` is not installed.
        ValueError: A number is out of its range, a word is unknown, or settings exclude each
            other.
    """

    def __init__(
        self,
        *,
        observation: Mode = "textures",
        num_goals: int = 5,
        min_goals: int = 1,
        instruction: Sequence[str] | None = None,
        task: Task = "instructions",
        time_limit: int = 2500,
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008
    ) -> None:
        self._env_settings: dict[str, Any] = {
            "observation": observation,
            "num_goals": num_goals,
            "min_goals": min_goals,
            "instruction": instruction,
            "task": task,
            "render_mode": "rgb_array",
        }
        super().__init__(
            partial(CrafterEnv, **self._env_settings),
            num_envs=num_envs,
            time_limit=time_limit,
            success=None if task == "undirected" else "success",
            seed=seed,
            device=device,
            workers=workers,
        )

    def set_instruction(self, text: str | None) -> None:
        """Set the goals of every episode from the next reset on, which must be of all envs.

        Args:
            text: Goals in their order, separated by commas, as in
                ``"collect sapling, place plant, eat cow"``. None: goals are drawn.

        Raises:
            ValueError: This is not an instruction, or the task has none.
        """
        settings = self._env_settings
        goals = None if text is None else parse_instruction(text)
        if goals is not None:
            parse_fixed(goals, settings["num_goals"], settings["task"])
        self._env_settings = {**settings, "instruction": goals}
        self._make_anew(partial(CrafterEnv, **self._env_settings))

    def _make_anew(self, make: Make) -> None:
        """Replace the function that makes envs, and close their worlds and processes."""
        if self._player is not None:
            self._player.close()
        self._player = None
        self._make_env = make
        self._aborting.clear()
        # The next call must be a reset of all envs.
        self._current.clear()
