"""World of Crafter, played without drawing it.

`Game` plays a world of the package ``crafter`` exactly as that package would, in half the time: it
updates the creatures near the player without measuring the distance to every object of the world,
and it draws nothing. Two things differ on purpose. Creatures of a chunk are listed by their place,
where the package lists them by their address in memory, so that the seed alone decides the game.
And the noise of the pictures at night has separate generators, so that drawing does not change the
game.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from yamame_envs.adapters.extras import import_extra

Bytes = npt.NDArray[np.uint8]

GRID = (9, 7)
"""Cells in view, across and down; the player is in the middle."""

# Objects at least so far away, in steps, rest: twice the side of the package's view.
_REACH = 18
_BALANCE_EVERY = 10


def _place(thing: Any) -> tuple[int, int]:
    return int(thing.pos[0]), int(thing.pos[1])


class Game:
    """World, its player, and the achievements of the player.

    Raises:
        ImportError: The package is not installed.
    """

    def __init__(self) -> None:
        crafter = import_extra("crafter", extra="crafter", owner="Crafter")
        self.library = crafter.Env(seed=0, length=None)
        # A reset of this object draws no picture.
        self.library._obs = lambda: None
        self.actions: list[str] = crafter.constants.actions
        self.materials = len(self.library._world._mat_ids)
        self._kinds: dict[type, int] = self.library._sem_view._obj_ids
        self._seed = 0

    @property
    def num_textures(self) -> int:
        """Number of materials and kinds of objects, and the outside of the world."""
        return self.materials + len(self._kinds) + 1

    @property
    def player(self) -> Any:
        """Player of the package, whose state can be read and set."""
        return self.library._player

    @property
    def world(self) -> Any:
        """World of the package, whose state can be read and set."""
        return self.library._world

    @property
    def position(self) -> tuple[int, int]:
        """Position of the player: x to the right and y downwards, each in 0..63."""
        return _place(self.player)

    @property
    def inventory(self) -> npt.NDArray[np.float32]:
        """Count of all items, ``[16]``."""
        return np.fromiter(self.player.inventory.values(), np.float32)

    def begin(self, seed: int) -> None:
        """Begin the first world of ``crafter.Env(seed=seed)``, whatever was played before."""
        self._seed = seed
        self.library._seed, self.library._episode = seed, 0
        self.library.reset()

    def step(self, action: int) -> tuple[list[str], float]:
        """Step the environment.

        Returns:
            Achievements of this step, and the reward of the package.
        """
        library, player = self.library, self.player
        before = tuple(player.achievements.values())
        library._step += 1
        library._update_time()
        player.action = self.actions[action]
        self._update_near()
        if library._step % _BALANCE_EVERY == 0:
            for chunk, objects in self.world.chunks.items():
                library._balance_chunk(chunk, sorted(objects, key=_place))
        counts = zip(player.achievements.items(), before, strict=True)
        achieved = [name for (name, count), old in counts if count > old]
        return achieved, self._native_reward(achieved)

    def _update_near(self) -> None:
        """Update the player, then the objects that were near it before, in the order of age."""
        world, player = self.world, self.player
        left, top = (max(0, coordinate - _REACH) for coordinate in self.position)
        window = world._obj_map[left : left + 2 * _REACH + 1, top : top + 2 * _REACH + 1]
        columns, rows = window.nonzero()
        ages = window[columns, rows]
        objects = world._objects
        player.update()
        x, y = self.position
        near = np.abs(columns + (left - x)) + np.abs(rows + (top - y)) < _REACH
        for age in np.sort(ages[near]):
            if objects[age] is not player:
                objects[age].update()

    def _native_reward(self, achieved: list[str]) -> float:
        library = self.library
        health = self.player.health
        reward = (health - library._last_health) / 10
        library._last_health = health
        if not library._unlocked.issuperset(achieved):
            library._unlocked.update(achieved)
            reward += 1.0
        return reward

    def cells(self, map_name: str, outside: int) -> npt.NDArray[np.int64]:
        """Return the visible part of a map, ``[9, 7]`` (x, y), padded with ``outside``."""
        whole = getattr(self.world, map_name)
        view = np.full(GRID, outside, np.int64)
        x, y = self.position
        left, top = x - GRID[0] // 2, y - GRID[1] // 2
        part = whole[max(left, 0) : left + GRID[0], max(top, 0) : top + GRID[1]]
        start_x, start_y = max(-left, 0), max(-top, 0)
        view[start_x : start_x + part.shape[0], start_y : start_y + part.shape[1]] = part
        return view

    def objects(self) -> list[tuple[int, int, Any]]:
        """Return the visible objects: x and y in the view, and the object."""
        ages = self.cells("_obj_map", 0)
        columns, rows = ages.nonzero()
        places = zip(columns.tolist(), rows.tolist(), ages[columns, rows].tolist(), strict=True)
        return [(x, y, self.world._objects[age]) for x, y, age in places]

    def textures(self) -> npt.NDArray[np.int64]:
        """Return the content of visible cells, ``[7, 9]`` (down, across); 0 outside the world."""
        view = self.cells("_mat_map", -1)
        for x, y, thing in self.objects():
            view[x, y] = self._kinds[type(thing)]
        return np.ascontiguousarray(view.T) + 1

    def noise(self) -> np.random.RandomState:
        """Return the generator of this step's noise in pictures."""
        return np.random.RandomState((self._seed, self.library._step))
