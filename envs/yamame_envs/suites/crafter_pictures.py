"""Pictures of Crafter's worlds, equal to those of the package, in a fraction of the time."""

from typing import Any

import numpy as np

from yamame_envs.suites.crafter_game import GRID, Bytes, Game

_OUTSIDE = 127
# Rows of cells that show the inventory.
_STRIP = 2


class Painter:
    """Painter of a game with square cells, which caches tiles.

    Args:
        game: Game to draw.
        unit: Side of a cell in pixels.
    """

    def __init__(self, game: Game, unit: int) -> None:
        self._game = game
        self._unit = unit
        self._materials = self._material_tiles()
        self._objects: dict[tuple[str, int], Bytes] = {}
        self._strip: tuple[tuple[int, ...], Bytes] | None = None

    def _texture(self, name: str | None) -> Bytes:
        return self._game.library._textures.get(name, (self._unit, self._unit))

    def _material_tiles(self) -> Bytes:
        """Return a tile per material, and a last one for the outside of the world."""
        unit = self._unit
        tiles = np.full((self._game.materials + 1, unit, unit, 3), _OUTSIDE, np.uint8)
        for index, name in self._game.world._mat_names.items():
            tiles[index] = self._texture(name)[..., :3]
        return tiles

    def _object_tile(self, name: str, material: int) -> Bytes:
        tile = self._objects.get((name, material))
        if tile is None:
            texture = self._texture(name)
            tile = texture[..., :3]
            if texture.shape[-1] == 4:
                alpha, above, below = (
                    pixels.astype(np.float32) / 255
                    for pixels in (texture[..., 3:], tile, self._materials[material])
                )
                tile = (255 * (alpha * above + (1 - alpha) * below)).astype(np.uint8)
            self._objects[name, material] = tile
        return tile

    def world(self) -> Bytes:
        """Draw the visible cells, ``[7 * unit, 9 * unit, 3]`` RGB, darker at night."""
        materials = self._game.cells("_mat_map", self._game.materials)
        tiles = self._materials[materials]
        for x, y, thing in self._game.objects():
            tiles[x, y] = self._object_tile(thing.texture, int(materials[x, y]))
        across, down = (cells * self._unit for cells in GRID)
        canvas = tiles.transpose(0, 2, 1, 3, 4).reshape(across, down, 3)
        return self._lit(canvas).transpose(1, 0, 2)

    def _lit(self, canvas: Bytes) -> Bytes:
        view: Any = self._game.library._local_view
        world = self._game.world
        own = world.random
        if world.daylight < 0.5:
            world.random = self._game.noise()
        try:
            lit = view._light(canvas, world.daylight)
        finally:
            world.random = own
        if self._game.player.sleeping:
            lit = view._sleep(lit)
        return lit.astype(np.uint8)

    def inventory(self) -> Bytes:
        """Draw the inventory, ``[2 * unit, 9 * unit, 3]`` RGB."""
        items = self._game.player.inventory
        counts = tuple(items.values())
        if self._strip is None or self._strip[0] != counts:
            strip = self._game.library._item_view(items, np.array([self._unit, self._unit]))
            self._strip = counts, strip.transpose(1, 0, 2)
        return self._strip[1]

    def picture(self) -> Bytes:
        """Draw world and inventory, ``[9 * unit, 9 * unit, 3]`` RGB."""
        return np.concatenate([self.world(), self.inventory()])
