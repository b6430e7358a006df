"""Rulesets of XLand-MiniGrid drawn from seeds: a goal, production rules and objects.

They follow the procedure of the original's generator (Nikulin et al., arXiv 2312.12044, after
Adaptive Agents, arXiv 2301.07608, appendix A.2). A ruleset is a tree: rules produce the tiles of
the goal, other rules the tiles that those consume, down to the objects that lie in the room. It is
a pure function of its key, so nothing is downloaded, and the number of rulesets is not limited.

Goals and rules are encoded as in the original. A goal ``[5]`` is its kind, then tile and colour of
one or two tiles. A rule ``[7]`` is the same, directly followed by the tile that it produces. Zeros
fill the rest.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import torch
from torch import Tensor
from yamame.checks import Bounds, NonNegativeInt, check_bounds

from yamame_envs.streams import fold, integers, uniform
from yamame_envs.tasks import Tensors
from yamame_envs.xland.cells import CARRIED, OBJECT_COLOURS, Colour, Tile

GOAL_KINDS: Final = (1, 3, 11, 13, 14, 12, 4, 7, 9, 10, 8)
"""Kinds of goals: a tile is held, is next to the agent, above, below, left or right of it, or the
same five of one tile and another.
"""
RULE_KINDS: Final = (1, 2, 8, 10, 11, 9, 3, 4, 6, 7, 5)
"""Kinds of rules with the same conditions, in the same order."""
HOLD: Final = 0
"""Index of the kind of a held tile."""
FIRST_OF_TWO: Final = 6
"""Index of the first kind of two tiles."""

_TILES: Final = [(tile, colour) for tile in (*CARRIED, Tile.GOAL) for colour in OBJECT_COLOURS]
_NUM_CARRIED: Final = len(CARRIED) * len(OBJECT_COLOURS)
# Tiles by index. The last two are no objects: the floor, which disappearing tiles become, and
# nothing.
_TABLE: Final = torch.tensor(
    [*_TILES, (Tile.FLOOR, Colour.BLACK), (Tile.EMPTY, Colour.EMPTY)], dtype=torch.uint8
)
_FLOOR: Final = len(_TILES)
_NOTHING: Final = len(_TILES) + 1


class Distribution:
    """Distribution of rulesets.

    Args:
        depth: Levels of rules between the objects in the room and the goal, at most 3, because
            there are too few tiles for more.
        prune: Probability in [0, 1] that a tile lies in the room instead of being produced.
        distractor_rules: Largest number of rules that the goal does not need.
        distractor_objects: Number of objects that neither goal nor rules need.

    Raises:
        ArgumentError: A number is out of its range.

    >>> Distribution(depth=1, distractor_objects=2).num_objects
    6
    """

    @check_bounds
    def __init__(
        self,
        depth: Annotated[int, Bounds(least=0, most=3)] = 0,
        prune: Annotated[float, Bounds(least=0, most=1)] = 0.0,
        distractor_rules: NonNegativeInt = 0,
        distractor_objects: NonNegativeInt = 0,
    ) -> None:
        self.depth = depth
        self.prune = prune
        self.distractor_rules = distractor_rules
        self.distractor_objects = distractor_objects

    @property
    def num_rules(self) -> int:
        """Largest number of rules of a ruleset."""
        return 2 ** (self.depth + 1) - 2 + self.distractor_rules

    @property
    def num_objects(self) -> int:
        """Largest number of objects of a ruleset."""
        return 2 ** (self.depth + 1) + self.distractor_objects + 2 * self.distractor_rules


LEVELS: Final[Mapping[str, Distribution]] = {
    "trivial": Distribution(0, 0.0, 0, 3),
    "small": Distribution(1, 0.3, 2, 2),
    "medium": Distribution(2, 0.1, 3, 2),
    "high": Distribution(3, 0.1, 4, 1),
}
"""Distributions of the original's benchmarks by name."""


def draw_rulesets(key: Tensor, distribution: Distribution) -> Tensors:
    """Draw rulesets from keys ``[R]`` int64.

    Returns:
        ``goal`` ``[R, 5]``, ``rules`` ``[R, K, 7]`` and ``objects`` ``[R, M, 2]`` (tile and
        colour), all uint8. K and M are the largest numbers; unused rules and objects are zeros and
        come last.

    >>> task = draw_rulesets(torch.arange(3), LEVELS["small"])
    >>> [list(task[name].shape) for name in ("goal", "rules", "objects")]
    [[3, 5], [3, 4, 7], [3, 10, 2]]
    """
    return _Drawing(key, distribution).draw()


class _Drawing:
    """Rulesets while they are drawn, all at once.

    Tiles are indices ``[R]`` into a table; conditions are pairs of them, the second of which is
    nothing where the kind has one tile.
    """

    def __init__(self, key: Tensor, distribution: Distribution) -> None:
        self.key = key
        self.distribution = distribution
        self.count = 0
        self.nothing = torch.full_like(key, _NOTHING)
        # [R, 70]: tiles of goal and rules, which no other rule of the tree produces or consumes.
        self.used = torch.zeros(len(key), len(_TILES), dtype=torch.bool)
        self.rules: list[Tensor] = []
        self.objects: list[Tensor] = []

    def draw(self) -> Tensors:
        settings = self.distribution
        kinds = integers(self.next_key(), len(GOAL_KINDS))
        tiles = self.draw_condition(kinds, self.used, is_goal=True)
        every = torch.ones_like(kinds, dtype=torch.bool)
        self.use(tiles, every)
        goal = self.encode(GOAL_KINDS, kinds, tiles)

        level = list(tiles)
        for _ in range(settings.depth):
            level = self.draw_level(level)
        self.objects += level

        is_unused = ~self.used
        for _ in range(settings.distractor_objects):
            self.objects.append(self.choose(is_unused))
        number = integers(self.next_key(), settings.distractor_rules + 1)
        for index in range(settings.distractor_rules):
            self.draw_distractor(index < number)
        return {
            "goal": goal,
            "rules": _filled_first(self.rules, settings.num_rules, 7, len(goal)),
            "objects": _filled_first(
                [_TABLE[tile] for tile in self.objects], settings.num_objects, 2, len(goal)
            ),
        }

    def draw_level(self, products: list[Tensor]) -> list[Tensor]:
        """Draw the rules that produce tiles, and return the tiles that they consume."""
        consumed: list[Tensor] = []
        # The original takes them from the end.
        for product in reversed(products):
            exists = product != _NOTHING
            is_pruned = exists & (uniform(self.next_key()) < self.distribution.prune)
            self.objects.append(torch.where(is_pruned, product, self.nothing))
            is_made = exists & ~is_pruned
            consumed += self.draw_rule(product, is_made, self.used)
        return consumed

    def draw_rule(self, product: Tensor, exists: Tensor, used: Tensor) -> list[Tensor]:
        """Draw rules where a mask ``[R]`` is set, and return the tiles that they consume."""
        kinds = integers(self.next_key(), len(RULE_KINDS))
        tiles = self.draw_condition(kinds, used)
        tiles = tuple(torch.where(exists, tile, self.nothing) for tile in tiles)
        if used is self.used:
            self.use(tiles, exists)
        rule = self.encode(RULE_KINDS, kinds, tiles, product)
        self.rules.append(rule * exists.unsqueeze(-1))
        return list(tiles)

    def draw_distractor(self, exists: Tensor) -> None:
        """Draw a rule that the goal does not need, and put what it consumes into the room."""
        is_free = torch.ones(len(exists), _NUM_CARRIED + 1, dtype=torch.bool)
        is_free[:, :-1] = ~self.used[:, :_NUM_CARRIED]
        product = self.choose(is_free)
        product = torch.where(product == _NUM_CARRIED, _FLOOR, product)
        # It may consume any tile, also one that the goal needs: a dead end.
        self.objects += self.draw_rule(product, exists, torch.zeros_like(self.used))

    def draw_condition(
        self, kinds: Tensor, used: Tensor, is_goal: bool = False
    ) -> tuple[Tensor, ...]:
        """Draw the tiles of conditions from those that are not used."""
        is_free = ~used
        is_carried = is_free.clone()
        is_carried[:, _NUM_CARRIED:] = False
        # The tile of a goal need not be carried, unless it must be held; of two tiles, one must be.
        of_two = kinds >= FIRST_OF_TWO
        is_any = of_two | (kinds != HOLD) if is_goal else of_two
        first = self.choose(torch.where(is_any.unsqueeze(-1), is_free, is_carried))
        second = self.choose(is_carried)
        return first, torch.where(of_two, second, self.nothing)

    def choose(self, is_allowed: Tensor) -> Tensor:
        """Draw an index ``[R]`` of those allowed ``[R, n]``, uniformly."""
        rank = is_allowed.cumsum(1, dtype=torch.int16)
        wanted = integers(self.next_key(), rank[:, -1])
        return (rank <= wanted.unsqueeze(-1)).sum(1)

    def use(self, tiles: tuple[Tensor, ...], mask: Tensor) -> None:
        """Mark tiles as used where a mask ``[R]`` is set."""
        for tile in tiles:
            row = (mask & (tile != _NOTHING)).nonzero().squeeze(-1)
            self.used[row, tile[row]] = True

    def next_key(self) -> Tensor:
        """Return keys ``[R]`` that were not returned before."""
        self.count += 1
        return fold(self.key, self.count)

    def encode(
        self,
        codes: tuple[int, ...],
        kinds: Tensor,
        tiles: tuple[Tensor, ...],
        product: Tensor | None = None,
    ) -> Tensor:
        """Return encodings ``[R, 5]``, or ``[R, 7]`` with a product."""
        kind = torch.tensor(codes, dtype=torch.uint8)[kinds].unsqueeze(-1)
        first, second = (_TABLE[tile] for tile in tiles)
        if product is None:
            return torch.cat([kind, first, second], 1)
        made = _TABLE[product]
        of_one = torch.cat([kind, first, made, torch.zeros_like(made)], 1)
        of_two = torch.cat([kind, first, second, made], 1)
        return torch.where((kinds >= FIRST_OF_TWO).unsqueeze(-1), of_two, of_one)


def _filled_first(entries: list[Tensor], size: int, width: int, num: int) -> Tensor:
    """Stack entries ``[R, width]`` to ``[R, size, width]``, those of zeros last."""
    if size == 0:
        return torch.zeros(num, 0, width, dtype=torch.uint8)
    stacked = torch.stack(entries, 1)
    is_empty = (stacked[..., 0] == 0).to(torch.uint8)
    order = is_empty.argsort(dim=1, stable=True)[:, :size]
    return stacked.gather(1, order.unsqueeze(-1).expand(-1, -1, width))


def canonical(ruleset: Tensors) -> Tensors:
    """Return ``goal`` and, if there are any, ``rules`` in a form that equal rulesets share.

    ``a above b`` and ``b below a`` become the same condition, and rules are sorted.
    """
    same = {"goal": _canonical_condition(ruleset["goal"], (4, 7, 9, 8, 10))}
    if "rules" in ruleset:
        rules = _canonical_condition(ruleset["rules"], (3, 4, 6, 5, 7)).to(torch.int64)
        number = rules[..., 0]
        for column in rules.unbind(-1)[1:]:
            number = 16 * number + column
        same["rules"] = number.sort(1).values
    return same


def _canonical_condition(encoded: Tensor, kinds: tuple[int, ...]) -> Tensor:
    """Return encodings ``[*, n]`` in which conditions of two tiles have one form.

    Args:
        encoded: Goals or rules.
        kinds: Kinds of two tiles: near, up, down, right, left.
    """
    near, up, down, right, left = kinds
    kind = encoded[..., 0]
    first, second = encoded[..., 1:3], encoded[..., 3:5]
    is_greater = (16 * first[..., 0].long() + first[..., 1]) > (
        16 * second[..., 0].long() + second[..., 1]
    )
    swaps = (kind == down) | (kind == left) | ((kind == near) & is_greater)
    other = torch.where(kind == down, up, torch.where(kind == left, right, kind.long()))
    swapped = torch.cat([other.to(encoded.dtype).unsqueeze(-1), second, first], -1)
    swapped = torch.cat([swapped, encoded[..., 5:]], -1)
    return torch.where(swaps.unsqueeze(-1), swapped, encoded)
