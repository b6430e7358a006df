"""Actions, rules and goals of XLand-MiniGrid, for many grids at once.

A grid is a row of codes (`yamame_envs.xland.cells`), cell after cell, and one empty cell at the
end, which stands for everything outside. A pose is ``4 * cell + direction``; directions are 0 up,
1 right, 2 down, 3 left.

Conditions of rules and goals are compiled into a program of numbers (`compile_rules`). A step
computes a few facts per env, such as the codes beside the agent, and a condition holds where a
number of its program equals a fact.

* Rules are applied one after the other, to the grid as it then is, and then the goal is tested.
* Conditions on held tiles are tested after *pick up*, those on two tiles after *put down*, around
  the cell in front of the agent; both also if the action had no effect.
* Conditions on tiles beside the agent are tested after *forward*. If they name a direction, they
  are tested after *put down* as well.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from yamame_envs.xland.cells import CARRIED, EMPTY, FLOOR, Tile, pack

FORWARD, CLOCKWISE, COUNTERCLOCKWISE, PICK_UP, PUT_DOWN, TOGGLE = range(6)
NUM_ACTIONS: Final = 6

_DIRECTIONS: Final = ((-1, 0), (0, 1), (1, 0), (0, -1))
# Changes of the cell in front of the agent.
_NO_CHANGE, _TAKE, _PUT, _OPEN, _CLOSE, _UNLOCK = range(6)
# Codes are below the first number, and facts about two tiles below the second, so conditions of
# different kinds never have the same fact.
_PAIR: Final = 2**12
_HELD: Final = 2**28
_NEVER: Final = -1
# Bit masks of directions by kind of rule, from 0: the empty rule.
_ALL: Final = 15
_UP, _RIGHT, _DOWN, _LEFT = 1, 2, 4, 8
_SIDES: Final = (0, 1, _ALL, _ALL, _UP, _RIGHT, _DOWN, _LEFT, _UP, _RIGHT, _DOWN, _LEFT)
_IS_HELD: Final = 1
_OF_TWO: Final = (3, 4, 5, 6, 7)
# Bit masks of the actions after which a kind of rule is tested.
_ACTIONS: Final = (
    0,
    1 << PICK_UP,
    1 << FORWARD,
    *[1 << PUT_DOWN] * 5,
    *[1 << FORWARD | 1 << PUT_DOWN] * 4,
)
# Kinds of rules with the conditions of the kinds of goals; 0 where no ruleset has them.
_RULE_OF_GOAL: Final = (0, 1, 0, 2, 3, 0, 0, 4, 5, 6, 7, 8, 9, 10, 11)
_ACTION_COLUMN: Final = 4
_PRODUCT_COLUMN: Final = 5


def compile_rules(goal: Tensor, rules: Tensor) -> Tensor:
    """Compile rulesets into programs ``[R, K + 1, 6]`` int32.

    Each line is a rule, the last one the goal. Its entries are the fact that must hold in each of
    the four directions (-1: none), the bits of the actions after which it is tested, and the code
    of the product.

    Args:
        goal: ``[R, 5]`` uint8.
        rules: ``[R, K, 7]`` uint8.
    """
    goal_kind = torch.tensor(_RULE_OF_GOAL)[goal[:, :1].long()]
    kind = torch.cat([rules[..., 0].long(), goal_kind], 1)
    conditions = torch.cat([rules[..., 1:5], goal[:, None, 1:5]], 1)
    first, second = (pack(conditions[..., i : i + 2]).long() for i in (0, 2))
    of_two = (kind.unsqueeze(-1) == torch.tensor(_OF_TWO)).any(-1)

    fact = torch.where(of_two, _PAIR * first + second, first)
    fact = torch.where(kind == _IS_HELD, _HELD + first, fact)
    sides = torch.tensor(_SIDES)[kind].unsqueeze(-1) >> torch.arange(4)
    facts = torch.where(sides & 1 == 1, fact.unsqueeze(-1), _NEVER)

    # A rule of one tile holds its product where another holds its second tile.
    product = torch.zeros_like(kind)
    third = pack(rules[..., 5:7]).long()
    product[:, :-1] = torch.where(of_two[:, :-1], third, second[:, :-1])
    actions = torch.tensor(_ACTIONS)[kind]
    program = torch.cat([facts, actions.unsqueeze(-1), product.unsqueeze(-1)], -1)
    return program.to(torch.int32)


class Facts(NamedTuple):
    """Codes around the agent, as conditions test them.

    Attributes:
        near: ``[N, 9]`` int64, cells: the four beside the agent, the four beside the cell in front
            of it, and that cell.
        beside: ``[N, 4]`` int32, codes beside the agent.
        pairs: ``[N, 4]``, the code in front of the agent, and the one in a direction from it.
        turned: ``[N, 4]``, the code in the opposite direction, and the one in front of the agent.
        held: ``[N, 1]``, code in the pocket.
    """

    near: Tensor
    beside: Tensor
    pairs: Tensor
    turned: Tensor
    held: Tensor


class Game(nn.Module):
    """Rules of the game on grids of one size.

    Args:
        size: Cells along a side.
        view_size: Cells along a side of the square that the agent sees, odd.
        device: Device of all tables.
    """

    _pose_after: Tensor
    _ahead: Tensor
    _near: Tensor
    _view: Tensor
    _motion: Tensor
    _change: Tensor
    _step: Tensor

    def __init__(self, size: int, view_size: int, device: torch.device | str) -> None:
        super().__init__()
        self.size = size
        self.view_size = view_size
        tables = {**_places(size, view_size), **_effects()}
        for name, table in tables.items():
            self.register_buffer(name, table.to(device), persistent=False)

    def act(
        self, grid: Tensor, pose: Tensor, pocket: Tensor, action: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return grid, pose and pocket after the actions, before any rule.

        Args:
            grid: ``[N, cells + 1]`` int16.
            pose: ``[N]`` int64.
            pocket: ``[N]`` int16, code of the tile held, or 0.
            action: ``[N]`` int64.
        """
        ahead = self._ahead.index_select(0, pose).unsqueeze(-1)
        there = grid.gather(1, ahead).squeeze(-1)
        tile = there & 255
        is_full = pocket > EMPTY
        case = (action * len(Tile) + tile) * 2 + is_full
        motion = self._motion.index_select(0, case)
        change = self._change.index_select(0, case)
        pose = self._pose_after.index_select(0, 4 * pose + motion)

        # A key has the colour of its door, and the number before it.
        is_locked = (change == _UNLOCK) & (pocket != there - 1)
        there_after = there + self._step.index_select(0, change).masked_fill(is_locked, 0)
        is_taken = change == _TAKE
        is_put = change == _PUT
        there_after = there_after.masked_fill(is_taken, FLOOR)
        there_after = torch.where(is_put, pocket, there_after)
        pocket = torch.where(is_taken, there, pocket).masked_fill(is_put, EMPTY)
        grid = grid.scatter(1, ahead, there_after.unsqueeze(-1))
        return grid, pose, pocket

    def nearby(self, grid: Tensor, pose: Tensor) -> Tensor:
        """Return the codes ``[N, 9]`` of the cells `Facts.near`."""
        return grid.gather(1, self._near.index_select(0, pose))

    def facts(self, grid: Tensor, pose: Tensor, pocket: Tensor) -> Facts:
        """Return what conditions test."""
        near = self._near.index_select(0, pose)
        codes = grid.gather(1, near).to(torch.int32)
        beside, around, ahead = codes.split([4, 4, 1], 1)
        pairs = _PAIR * ahead + around
        turned = _PAIR * around.roll(2, 1) + ahead
        held = pocket.to(torch.int32) + _HELD
        return Facts(near, beside, pairs, turned, held.unsqueeze(-1))

    def tested(self, program: Tensor, facts: Facts, action: Tensor) -> Tensor:
        """Return which conditions hold: ``[N, k]`` bool for lines ``[N, k, 6]`` of a program."""
        wanted = program[..., :4]
        holds = wanted == facts.beside.unsqueeze(1)
        holds |= wanted == facts.pairs.unsqueeze(1)
        holds |= wanted == facts.turned.unsqueeze(1)
        holds[..., 0] |= wanted[..., 0] == facts.held
        is_tested = program[..., _ACTION_COLUMN] >> action.unsqueeze(-1) & 1
        return holds.any(-1) & (is_tested == 1)

    def apply_rule(
        self, grid: Tensor, pocket: Tensor, rule: Tensor, facts: Facts, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return grid and pocket after one rule per env.

        Args:
            grid: ``[N, cells + 1]`` int16.
            pocket: ``[N]`` int16.
            rule: ``[N, 6]`` int32, a line of a program.
            facts: Facts of this grid and pocket.
            action: ``[N]`` int64.
        """
        wanted = rule[:, :4]
        product = rule[:, _PRODUCT_COLUMN].to(torch.int16)
        is_tested = (rule[:, _ACTION_COLUMN] >> action & 1 == 1).unsqueeze(-1)
        beside = (wanted == facts.beside) & is_tested
        # The second tile lies in the direction of the rule, or the first one opposite to it.
        paired = (wanted == facts.pairs) | (wanted == facts.turned).roll(2, 1)
        paired &= is_tested
        is_held = (wanted[:, :1] == facts.held) & is_tested

        pocket = torch.where(is_held.squeeze(-1), product, pocket)
        # One of the two is empty, and cells of the two may coincide, so only one is written.
        is_pair = paired.any(1, keepdim=True)
        cells = torch.where(is_pair, facts.near[:, 4:8], facts.near[:, :4])
        before = grid.gather(1, cells)
        after = torch.where(paired | beside, product.unsqueeze(-1), before)
        grid = grid.scatter(1, cells, after)
        ahead = facts.near[:, 8:]
        return grid.scatter(1, ahead, grid.gather(1, ahead).masked_fill(is_pair, FLOOR)), pocket

    def test_all(
        self, program: Tensor, grid: Tensor, pose: Tensor, pocket: Tensor, action: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply the rules of programs and test their goals, without any branch on the data.

        Returns:
            Grid, pocket, and a mask ``[N]`` of the goals that are reached.
        """
        for line in range(program.shape[1] - 1):
            facts = self.facts(grid, pose, pocket)
            grid, pocket = self.apply_rule(grid, pocket, program[:, line], facts, action)
        facts = self.facts(grid, pose, pocket)
        return grid, pocket, self.tested(program[:, -1:], facts, action).squeeze(-1)

    def test_some(
        self, program: Tensor, grid: Tensor, pose: Tensor, pocket: Tensor, action: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the result of `test_all` faster where few rules apply, by branches on the data.

        A rule changes nothing unless its condition holds, so the first rule to apply is one whose
        condition holds at first. All conditions are tested at once, and again after a rule was
        applied, in these envs.
        """
        facts = self.facts(grid, pose, pocket)
        holds = self.tested(program, facts, action)
        num_rules = program.shape[1] - 1
        if num_rules == 0:
            return grid, pocket, holds[:, 0]
        row = holds[:, :-1].any(1).nonzero().squeeze(-1)
        if len(row) == 0:
            return grid, pocket, holds[:, -1]

        part = [value.index_select(0, row) for value in (program, grid, pose, pocket, action)]
        lines, cells, poses, held, actions = part
        found = holds.index_select(0, row)
        number = torch.arange(num_rules + 1)
        rank = torch.arange(len(row))
        facts = Facts(*(value.index_select(0, row) for value in facts))
        while True:
            # The goal comes last. Its line produces nothing, and is applied to nothing.
            found[:, -1] = True
            first = found.to(torch.uint8).argmax(1)
            if bool((first == num_rules).all()):
                break
            rule = lines[rank, first].masked_fill((first == num_rules).unsqueeze(-1), _NEVER)
            cells, held = self.apply_rule(cells, held, rule, facts, actions)
            facts = self.facts(cells, poses, held)
            found = self.tested(lines, facts, actions) & (number > first.unsqueeze(-1))
        is_reached = holds[:, -1]
        is_reached[row] = self.tested(lines[:, -1:], facts, actions).squeeze(-1)
        return grid.index_copy(0, row, cells), pocket.index_copy(0, row, held), is_reached

    def seen_cells(self, pose: int) -> Tensor:
        """Return the cells ``[view_size * view_size]`` that are seen in a pose."""
        return self._view[pose]

    def view(self, grid: Tensor, pose: Tensor) -> Tensor:
        """Return the codes ``[N, view_size, view_size]`` that agents see.

        The agent is in the middle of the last row and looks up.
        """
        codes = grid.gather(1, self._view.index_select(0, pose))
        return codes.view(-1, self.view_size, self.view_size)


def _places(size: int, view_size: int) -> dict[str, Tensor]:
    """Return tables of cells by pose; the cell ``size * size`` is outside."""
    cell = torch.arange(size * size)
    row = (cell // size).view(-1, 1, 1)
    column = (cell % size).view(-1, 1, 1)

    def shifted(rows: Tensor, columns: Tensor) -> Tensor:
        """Return the cells at offsets ``[4, n]`` by direction: ``[cells * 4, n]``."""
        to_row, to_column = row + rows, column + columns
        is_inside = (to_row >= 0) & (to_row < size) & (to_column >= 0) & (to_column < size)
        return torch.where(is_inside, to_row * size + to_column, size * size).flatten(0, 1)

    rows, columns = torch.tensor(_DIRECTIONS).unbind(1)
    ahead = shifted(rows.unsqueeze(1), columns.unsqueeze(1))
    # Cells beside the agent and beside the cell ahead, whatever the direction of the agent.
    beside = shifted(rows.expand(4, 4), columns.expand(4, 4))
    beyond = shifted(rows + rows.unsqueeze(1), columns + columns.unsqueeze(1))

    far = torch.arange(view_size - 1, -1, -1).repeat_interleave(view_size)
    side = (torch.arange(view_size) - view_size // 2).repeat(view_size)
    view = shifted(torch.stack([-far, side, far, -side]), torch.stack([side, far, -side, -far]))

    pose = torch.arange(4 * size * size)
    direction = pose % 4
    moved = torch.where(ahead[:, 0] < size * size, 4 * ahead[:, 0] + direction, pose)
    clockwise = pose - direction + (direction + 1) % 4
    counterclockwise = pose - direction + (direction - 1) % 4
    after = torch.stack([pose, moved, clockwise, counterclockwise], 1)
    return {
        "_pose_after": after.flatten(),
        "_ahead": ahead[:, 0],
        "_near": torch.cat([beside, beyond, ahead], 1),
        "_view": view,
    }


def _effects() -> dict[str, Tensor]:
    """Return tables by action, tile in front of the agent and whether it holds a tile."""
    motion = torch.zeros(NUM_ACTIONS, len(Tile), 2, dtype=torch.int64)
    change = torch.full_like(motion, _NO_CHANGE)
    for tile in (Tile.FLOOR, Tile.GOAL, Tile.DOOR_OPEN):
        motion[FORWARD, tile] = 1
    motion[CLOCKWISE] = 2
    motion[COUNTERCLOCKWISE] = 3
    for tile in CARRIED:
        change[PICK_UP, tile, 0] = _TAKE
    change[PUT_DOWN, Tile.FLOOR, 1] = _PUT
    change[TOGGLE, Tile.DOOR_CLOSED] = _OPEN
    change[TOGGLE, Tile.DOOR_OPEN] = _CLOSE
    change[TOGGLE, Tile.DOOR_LOCKED] = _UNLOCK
    step = torch.zeros(6, dtype=torch.int16)
    step[_OPEN] = Tile.DOOR_OPEN - Tile.DOOR_CLOSED
    step[_CLOSE] = Tile.DOOR_CLOSED - Tile.DOOR_OPEN
    step[_UNLOCK] = Tile.DOOR_OPEN - Tile.DOOR_LOCKED
    return {"_motion": motion.flatten(), "_change": change.flatten(), "_step": step}
