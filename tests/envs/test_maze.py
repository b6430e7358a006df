import random
from collections import Counter, deque
from fractions import Fraction

import pytest
import torch
from yamame_envs.maze import clear_spawn, grow_walls, sight


def neighbours(size, cell):
    for di, dj in ((0, -2), (-2, 0), (0, 2), (2, 0)):
        if 0 <= cell[0] + di < size and 0 <= cell[1] + dj < size:
            yield (cell[0] + di, cell[1] + dj)


def border(size):
    return frozenset((i, j) for i in range(size) for j in range(size) if {i, j} & {0, size - 1})


def extended(walls, cell, chosen):
    """One try: the new walls and the new position."""
    if chosen in walls:
        return walls, cell
    return walls | {chosen, ((cell[0] + chosen[0]) // 2, (cell[1] + chosen[1]) // 2)}, chosen


def exact_distribution(size, num_walks, num_tries):
    """The probability of every maze, by following every possible choice."""
    starts = [(i, j) for i in range(0, size, 2) for j in range(0, size, 2)]
    mazes = {border(size): Fraction(1)}
    for _ in range(num_walks):
        states = Counter()
        for walls, p in mazes.items():
            for start in starts:
                states[walls | {start}, start] += p / len(starts)
        for _ in range(num_tries):
            following = Counter()
            for (walls, cell), p in states.items():
                around = list(neighbours(size, cell))
                for chosen in around:
                    following[extended(walls, cell, chosen)] += p / len(around)
            states = following
        mazes = Counter()
        for (walls, _), p in states.items():
            mazes[walls] += p
    return mazes


def as_set(walls):
    return frozenset(map(tuple, walls.nonzero().tolist()))


def chi_square(drawn, expected):
    """Distance between drawn mazes and a distribution, and its degrees of freedom; rare mazes are
    pooled.
    """
    n = sum(drawn.values())
    assert set(drawn) <= set(expected), "a maze was drawn that cannot arise"
    common = [maze for maze, p in expected.items() if n * p >= 10]
    pairs = [(drawn[maze], float(n * expected[maze])) for maze in common]
    rest = float(n * (1 - sum(expected[maze] for maze in common)))
    if rest >= 10:
        pairs.append((n - sum(drawn[maze] for maze in common), rest))
    return sum((o - e) ** 2 / e for o, e in pairs), len(pairs) - 1


@pytest.mark.parametrize(("num_walks", "num_tries"), [(1, 2), (1, 6), (2, 3), (3, 2)])
def test_mazes_are_drawn_with_exactly_the_probabilities_of_the_rules(num_walks, num_tries):
    drawn = grow_walls(torch.arange(20_000), 7, num_walks=num_walks, num_tries=num_tries)
    patterns, counts = drawn.flatten(1).unique(dim=0, return_counts=True)
    observed = Counter(
        {as_set(p.view(7, 7)): int(c) for p, c in zip(patterns, counts, strict=True)}
    )
    distance, freedom = chi_square(observed, exact_distribution(7, num_walks, num_tries))
    assert freedom > 10
    assert distance < freedom + 5 * (2 * freedom) ** 0.5
    # Negative control: the rules with one try more are another distribution.
    other = exact_distribution(7, num_walks, num_tries + 1)
    distance, freedom = chi_square(observed, other)
    assert distance > freedom + 20 * (2 * freedom) ** 0.5


def reference_maze(size, num_walks, num_tries, rng):
    walls = set(border(size))
    for _ in range(num_walks):
        cell = (2 * rng.randrange(size // 2 + 1), 2 * rng.randrange(size // 2 + 1))
        walls.add(cell)
        for _ in range(num_tries):
            chosen = rng.choice(list(neighbours(size, cell)))
            if chosen not in walls:
                walls |= {chosen, ((cell[0] + chosen[0]) // 2, (cell[1] + chosen[1]) // 2)}
                cell = chosen
    return walls


def test_walls_stand_as_often_as_in_a_loop_over_every_try():
    rng = random.Random(0)
    size, num_walks, num_tries, n = 11, 18, 82, 250
    reference = torch.zeros(n, size, size)
    for maze in reference:
        for cell in reference_maze(size, num_walks, num_tries, rng):
            maze[cell] = 1
    drawn = grow_walls(torch.arange(2000), size, num_walks=num_walks, num_tries=num_tries).float()
    difference = reference.mean(0) - drawn.mean(0)
    # Standard error of a cell's frequency at most 0.5 / sqrt(250) = 0.032; 121 cells: 4.5 of them.
    assert difference.abs().max() < 0.145
    total = reference.sum((1, 2))
    assert abs(total.mean() - drawn.sum((1, 2)).mean()) < 4 * total.std() / n**0.5


def play_area(size, count):
    num_walks, num_tries = int(0.75 * (size // 2) ** 2), int(0.75 * 5 * 2 * size)
    return clear_spawn(
        grow_walls(torch.arange(count), size, num_walks=num_walks, num_tries=num_tries)
    )


@pytest.mark.parametrize(
    ("size", "mean", "count"), [(11, 58, 2000), (15, 115, 1000), (31, 504, 60)]
)
def test_mean_number_of_free_cells_is_the_known_one(size, mean, count):
    free = (~play_area(size, count)).sum((1, 2)).double()
    # The known means are rounded to whole cells.
    assert abs(free.mean() - mean) < 0.5 + 4 * free.std() / count**0.5


def reachable(walls, start):
    seen, queue = {start}, deque([start])
    while queue:
        i, j = queue.popleft()
        for cell in ((i, j - 1), (i - 1, j), (i, j + 1), (i + 1, j)):
            if not walls[cell[0]][cell[1]] and cell not in seen:
                seen.add(cell)
                queue.append(cell)
    return len(seen)


@pytest.mark.parametrize(
    ("size", "count"), [(5, 50), (7, 300), (9, 300), (11, 300), (15, 150), (31, 20)]
)
def test_every_free_cell_can_be_reached_from_the_start(size, count):
    for walls in play_area(size, count):
        assert reachable(walls.tolist(), (size - 2, size // 2)) == int((~walls).sum())


@pytest.mark.parametrize("size", [5, 7, 9, 13])
def test_the_start_lies_in_a_corridor_inside_a_closed_border(size):
    walls = play_area(size, 50)
    middle = size // 2
    assert walls[:, [0, -1]].all()
    assert walls[:, :, [0, -1]].all()
    for row in range(size - 4, size - 1):
        assert walls[:, row, [middle - 1, middle + 1]].all()
        assert not walls[:, row, middle].any()


def test_sight_equals_walking_until_a_wall():
    walls = play_area(9, 20)
    counts = sight(walls)
    for maze, count in zip(walls.tolist(), counts.tolist(), strict=True):
        for i in range(9):
            for j in range(9):
                if maze[i][j]:
                    continue
                for direction, (di, dj) in enumerate(((0, -1), (-1, 0), (0, 1), (1, 0))):
                    steps = 0
                    while not maze[i + (steps + 1) * di][j + (steps + 1) * dj]:
                        steps += 1
                    assert count[i][j][direction] == steps


def test_a_maze_does_not_depend_on_the_batch():
    together = grow_walls(torch.arange(8), 9, num_walks=12, num_tries=67)
    alone = grow_walls(torch.arange(5, 6), 9, num_walks=12, num_tries=67)
    assert torch.equal(together[5], alone[0])
    assert not torch.equal(together[4], alone[0])
