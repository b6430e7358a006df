"""What relabelling draws has the stated distribution, found by enumeration and chi-square.

Seeds are fixed; bounds are the 1e-4 quantiles of chi-square (Wilson-Hilferty).
"""

import itertools
import math

import pytest
import torch
from yamame.replay import GoalFrequencies, Relabel
from yamame.testing import goal_trajectories


def copies(number, positions, goals, size=1):
    """The same trajectory many times: one position or several per step, and an instruction."""
    held = max(len(p) for p in positions)
    achieved = torch.zeros(number, len(positions), held, size)
    achieved_mask = torch.zeros(number, len(positions), held, dtype=torch.bool)
    for t, here in enumerate(positions):
        for m, value in enumerate(here):
            achieved[:, t, m], achieved_mask[:, t, m] = value, True
    instruction = torch.tensor(goals).reshape(1, -1, size).repeat(number, 1, 1)
    mask = torch.ones(number, len(positions), dtype=torch.bool)
    return goal_trajectories(instruction, achieved, achieved_mask, mask)


class Recording(Relabel):
    """Keeps what was drawn, so that the rest can be done again by hand."""

    def _draw(self, *args):
        self.drawn = super()._draw(*args)
        return self.drawn


def chi_square_excess(counts, probabilities):
    """Chi-square statistic over its 1e-4 quantile: above 1 the counts do not fit the
    probabilities.
    """
    total, freedom = sum(counts.values()), len(probabilities) - 1
    assert set(counts) <= set(probabilities), "an outcome of probability zero"
    statistic = sum(
        (counts.get(k, 0) - total * p) ** 2 / (total * p) for k, p in probabilities.items()
    )
    spread = 2 / (9 * freedom)
    return statistic / (freedom * (1 - spread + 3.72 * math.sqrt(spread)) ** 3)


def tally(values):
    counts = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def draw_many(relabel, batch, seed=0):
    torch.manual_seed(seed)
    relabel(batch)
    times, goals = relabel.drawn
    return times.tolist(), goals.squeeze(-1).tolist()


def test_some_draws_every_number_of_goals_from_none_to_all_that_are_missing_alike():
    batch = copies(6000, [[float(t)] for t in range(10)], [3.0, 50.0, 60.0])
    times, _ = draw_many(Recording("some"), batch)
    counts = tally(sum(t < 10 for t in row) for row in times)
    assert chi_square_excess(counts, {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}) < 1
    assert chi_square_excess(counts, {0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}) > 1


def test_all_or_nothing_draws_all_with_its_probability():
    batch = copies(6000, [[float(t)] for t in range(10)], [3.0, 50.0, 60.0])
    for probability, given in ((0.8, {}), (0.3, {"all_probability": 0.3})):
        times, _ = draw_many(Recording("all_or_nothing", **given), batch)
        counts = tally(sum(t < 10 for t in row) for row in times)
        assert chi_square_excess(counts, {0: 1 - probability, 2: probability}) < 1
        assert chi_square_excess(counts, {0: 0.25, 2: 0.75}) > 1


def test_no_more_goals_are_drawn_than_there_are_timesteps_that_offer_one():
    batch = copies(100, [[0.0], [], [3.0], [], [5.0]], [3.0, 50.0, 60.0])
    times, goals = draw_many(Recording("all"), batch)
    assert all(row == [4, 5, 5] for row in times)
    assert all(row[0] == 5.0 for row in goals)


def test_timesteps_are_drawn_uniformly_without_replacement():
    positions = [[0.0], [1.0], [], [3.0], [4.0], [5.0]]
    times, _ = draw_many(Recording("all"), copies(8000, positions, [50.0, 60.0]))
    pairs = dict.fromkeys(itertools.permutations([1, 3, 4, 5], 2), 1 / 12)
    assert chi_square_excess(tally(tuple(row) for row in times), pairs) < 1


def test_one_of_the_goals_held_at_a_timestep_is_drawn_uniformly():
    batch = copies(6000, [[0.0], [1.0, 2.0, 3.0], [4.0]], [50.0])
    batch["achieved_mask"][:, 1, 1] = False
    times, goals = draw_many(Recording("all"), batch)
    outcomes = tally((t[0], g[0]) for t, g in zip(times, goals, strict=True))
    assert chi_square_excess(outcomes, {(1, 1.0): 0.25, (1, 3.0): 0.25, (2, 4.0): 0.5}) < 1


def weighted_pairs(weights, share):
    """Probability of each ordered pair: every draw is uniform with probability ``share``, else by
    weight.
    """
    pairs = {}
    for first, second in itertools.permutations(weights, 2):
        probability = 1.0
        left = dict(weights)
        for t in (first, second):
            probability *= (1 - share) * left[t] / sum(left.values()) + share / len(left)
            del left[t]
        pairs[first, second] = probability
    return pairs


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_rare_goals_and_their_timesteps_are_drawn_in_proportion_to_their_weights(share):
    table = GoalFrequencies(uniform_share=share)
    values = torch.tensor([0.0, *[1.0] * 40, *[2.0] * 30, *[3.0] * 20, *[4.0] * 10]).reshape(
        1, -1, 1, 1
    )
    table.update(
        values, torch.ones(1, 101, 1, dtype=torch.bool), torch.ones(1, 101, dtype=torch.bool)
    )
    w1, w2, w3, w4 = table.weights(torch.tensor([[1.0], [2.0], [3.0], [4.0]])).tolist()
    batch = copies(8000, [[1.0], [1.0, 4.0], [2.0], [3.0]], [50.0, 60.0])
    times, goals = draw_many(Recording("all", rarity=table), batch)
    expected = weighted_pairs({1: w1 + w4, 2: w2, 3: w3}, share)
    assert chi_square_excess(tally(tuple(row) for row in times), expected) < 1
    shared = [
        g
        for t, row in zip(times, goals, strict=True)
        for s, g in zip(t, row, strict=True)
        if s == 1
    ]
    by_goal = {g: (1 - share) * w / (w1 + w4) + share / 2 for g, w in ((1.0, w1), (4.0, w4))}
    assert chi_square_excess(tally(shared), by_goal) < 1
    if share < 1:
        uniform, _ = draw_many(Recording("all"), batch)
        assert chi_square_excess(tally(tuple(row) for row in uniform), expected) > 1


class Given(Relabel):
    """Draws with numbers that are given."""

    def __init__(self, uniform):
        super().__init__()
        self.uniform = uniform

    def _uniform(self, like):
        return self.uniform.expand_as(like)


@pytest.mark.parametrize("places", [[0, 2, 3, 5], [1, 2], [4], range(6)])
def test_every_order_of_the_options_is_drawn_exactly_as_often_over_all_orders_of_random_numbers(
    places,
):
    uniform = (torch.tensor(list(itertools.permutations(range(6)))) + 0.5) / 6
    options = torch.zeros(720, 6, dtype=torch.bool)
    options[:, list(places)] = True
    drawn = Given(uniform.double())._race(options).topk(len(places)).indices
    orders = math.factorial(len(places))
    assert tally(map(tuple, drawn.tolist())) == dict.fromkeys(
        itertools.permutations(places), 720 // orders
    )


def test_choices_are_in_proportion_to_their_weights():
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 4.0, 0.0]).expand(8000, 6)
    drawn = Relabel(generator=torch.Generator().manual_seed(0))._race(weights).argmax(-1)
    assert chi_square_excess(tally(drawn.tolist()), {1: 3 / 8, 3: 1 / 8, 4: 4 / 8}) < 1
    assert chi_square_excess(tally(drawn.tolist()), {1: 1 / 3, 3: 1 / 3, 4: 1 / 3}) > 1


def test_what_weighs_nothing_is_never_chosen_not_even_with_extreme_numbers():
    largest = torch.nextafter(
        torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    )
    uniform = torch.tensor([[largest, 0.0, largest], [0.0, largest, 0.0], [0.0, 0.0, 0.0]])
    race = Given(uniform)._race(torch.tensor([[0.0, 1e-3, 0.0]]).expand(3, 3))
    assert race.argmax(-1).tolist() == [1, 1, 1]
    assert race.isfinite().all()
