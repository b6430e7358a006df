import math
from collections import Counter

import numpy as np
import pytest
from yamame_envs.suites.crafter_goals import (
    GOAL_SHARES,
    INSTRUCTIONS,
    SINGLE_GOALS,
    TECH_TREE,
    TRAVEL_SHARE,
    WORDS,
    draw_climb,
    draw_goal,
    draw_instruction,
    draw_place,
    encode,
    goal_text,
    parse_goal,
    parse_instruction,
    place_reached,
)

# The table of the published environment, written out.
SHARES = {
    "collect sapling": 0.06,
    "collect wood": 0.06,
    "collect stone": 0.054,
    "collect drink": 0.051,
    "collect coal": 0.03,
    "collect iron": 0.03,
    "collect diamond": 0.015,
    "defeat zombie": 0.06,
    "defeat skeleton": 0.04,
    "eat cow": 0.07,
    "eat plant": 0.03,
    "make wood pickaxe": 0.045,
    "make stone pickaxe": 0.0225,
    "make iron pickaxe": 0.0075,
    "make wood sword": 0.045,
    "make stone sword": 0.0225,
    "make iron sword": 0.0075,
    "place table": 0.06,
    "place stone": 0.045,
    "place plant": 0.03,
    "place furnace": 0.015,
}
PLACES = [(x, y) for x in range(0, 61, 5) for y in range(0, 61, 5)]


def is_likely(counts, shares):
    """Whether counts fit shares: chi-square below its mean + 4 standard deviations (false alarm <
    1e-3).
    """
    assert set(counts) <= set(shares)
    total = sum(counts.values())
    freedom = len(shares) - 1
    distance = sum((counts[key] - total * p) ** 2 / (total * p) for key, p in shares.items())
    return distance < freedom + 4 * math.sqrt(2 * freedom)


def test_the_vocabulary_has_the_published_ids():
    assert len(WORDS) == 37
    assert len(set(WORDS)) == 37
    ids = {
        "collect": 0,
        "place": 4,
        "coal": 5,
        "drink": 7,
        "wood": 11,
        "zombie": 13,
        "plant": 15,
        "table": 19,
    }
    ids |= {"travel": 20, "pad": 21, "wake": 22, "up": 23, "0m": 24, "5m": 25, "60m": 36}
    assert {word: WORDS.index(word) for word in ids} == ids


def test_goals_are_three_words_and_text_and_ids_are_inverse():
    texts = [*SINGLE_GOALS, *(f"travel {x}m {y}m" for x, y in PLACES)]
    goals = [parse_goal(text) for text in texts]
    assert len(set(goals)) == len(texts) == 22 + 169
    assert [goal_text(goal) for goal in goals] == texts
    assert parse_goal("make stone pickaxe") == (3, 10, 16)
    assert parse_goal("Wake_up") == (22, 23, 21)
    assert goal_text(np.array([20.0, 24.0, 36.0], np.float32)) == "travel 0m 60m"


@pytest.mark.parametrize(
    "text", ["eat table", "fly", "", "travel 12m 5m", "pad", "collect wood pad"]
)
def test_what_is_no_goal_is_refused_with_a_list_of_the_goals(text):
    with pytest.raises(ValueError, match=rf"goal must be one of .*wake up or .*60m, got '{text}'"):
        parse_goal(text)


@pytest.mark.parametrize("ids", [(-1.0, -1.0, -1.0), (-3, -3, -3), (0, 0, 0), (0.5, 11, 21)])
def test_ids_of_no_goal_have_no_text(ids):
    with pytest.raises(ValueError, match=r"goal must be the ids of three words.*got \("):
        goal_text(ids)


def test_the_instructions_to_evaluate_on_are_goals_of_at_most_five():
    assert len(INSTRUCTIONS) == 10
    assert max(map(len, INSTRUCTIONS)) == 5
    assert all(parse_goal(text) for instruction in INSTRUCTIONS for text in instruction)


def test_the_shares_of_goals_are_the_published_ones():
    assert pytest.approx(SHARES) == GOAL_SHARES
    assert sum(GOAL_SHARES.values()) + TRAVEL_SHARE == pytest.approx(1)


def test_goals_are_drawn_by_their_shares():
    random = np.random.default_rng(0)
    texts = [goal_text(draw_goal(random)) for _ in range(20_000)]
    counts = Counter("travel" if text.startswith("travel") else text for text in texts)
    assert is_likely(counts, {**SHARES, "travel": 0.2})
    even = dict.fromkeys([*SHARES, "travel"], 1 / 22)
    assert not is_likely(counts, even)


def draw_place_slowly(random):
    """The rule read aloud: sort all places by distance plus jitter, take the first within reach."""
    reach = random.choice(np.arange(1, 45), p=np.arange(44, 0, -1) / np.arange(1, 45).sum())
    jitter = dict(zip(PLACES, random.random(len(PLACES)), strict=True))
    ranked = sorted(
        PLACES, key=lambda place: math.dist(place, (32, 32)) + jitter[place], reverse=True
    )
    within = [place for place in ranked if math.dist(place, (32, 32)) <= reach]
    return within[0] if within else ranked[-1]


def test_places_are_drawn_as_by_sorting_all_of_them():
    count = 6000
    fast, slow = np.random.default_rng(1), np.random.default_rng(2)
    place_of = {parse_goal(f"travel {x}m {y}m"): (x, y) for x, y in PLACES}
    drawn = Counter(place_of[draw_place(fast)] for _ in range(count))
    expected = Counter(draw_place_slowly(slow) for _ in range(count))
    places = set(drawn) | set(expected)
    gap = sum((drawn[p] - expected[p]) ** 2 / (drawn[p] + expected[p]) for p in places)
    assert gap < len(places) - 1 + 4 * math.sqrt(2 * (len(places) - 1))  # chi-square of two samples
    other = Counter(PLACES[i] for i in np.random.default_rng(3).integers(169, size=count))
    apart = sum(
        (other[p] - expected[p]) ** 2 / (other[p] + expected[p]) for p in set(other) | set(expected)
    )
    assert apart > 1000  # negative control: all places equally often


def test_the_reach_of_places_follows_its_weights():
    random = np.random.default_rng(4)
    near = sum(math.dist(_xy(draw_place(random)), (32, 32)) <= 5 for _ in range(10_000))
    share = sum(range(38, 45)) / 990  # a reach of at most 7, since the next places are 7.3 away
    assert abs(near / 10_000 - share) < 3 * math.sqrt(share * (1 - share) / 10_000)


def _xy(goal):
    _, x, y = goal_text(goal).split()
    return int(x[:-1]), int(y[:-1])


def test_a_place_is_reached_within_two_cells_everywhere():
    for x in range(64):
        for y in range(64):
            near = [place for place in PLACES if math.dist(place, (x, y)) < 2]
            reached = place_reached(x, y)
            assert [_xy(reached)] == near if reached else not near


def test_instructions_have_every_number_of_goals_equally_often():
    random = np.random.default_rng(5)
    counts = Counter(len(draw_instruction(random, 2, 5)) for _ in range(4000))
    assert is_likely(counts, dict.fromkeys(range(2, 6), 1 / 4))
    assert not is_likely(counts + Counter({2: 300}), dict.fromkeys(range(2, 6), 1 / 4))


def test_climbs_are_steps_of_the_tree_in_order_and_none_twice():
    random = np.random.default_rng(6)
    ranks = [
        [TECH_TREE.index(goal_text(goal)) for goal in draw_climb(random, 1, 5)] for _ in range(3000)
    ]
    assert all(rank == sorted(set(rank)) for rank in ranks)
    assert {len(rank) for rank in ranks} == {1, 2, 3, 4, 5}
    assert {rank for steps in ranks for rank in steps} == set(range(12))
    assert "collect diamond" not in TECH_TREE
    assert all(len(draw_climb(random, 12, 20)) == 12 for _ in range(5))


def test_lower_steps_are_asked_more_often():
    random = np.random.default_rng(7)
    counts = Counter(draw_climb(random, 1, 1)[0] for _ in range(6000))
    # With one goal: the height h is uniform in 1..12 and the step uniform among the h first.
    shares = {
        parse_goal(t): sum(1 / h for h in range(i + 1, 13)) / 12 for i, t in enumerate(TECH_TREE)
    }
    assert is_likely(counts, shares)


def test_goals_fill_the_first_slots():
    array = encode([(1, 2, 3), (4, 5, 6)], 3, -1.0)
    assert array.dtype == np.float32
    assert array.tolist() == [[1, 2, 3], [4, 5, 6], [-1, -1, -1]]
    assert encode([], 1, 0.0).tolist() == [[0, 0, 0]]


def test_an_instruction_is_goals_separated_by_commas():
    assert parse_instruction("Collect_sapling,place plant ,  eat  COW") == [
        "collect sapling",
        "place plant",
        "eat cow",
    ]
    assert parse_instruction("travel 10m 10m") == ["travel 10m 10m"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eat cow, colect wod", r"goal must be .*, got ' colect wod'; near it: collect wood, "),
        ("travel 10m 12m", r"got 'travel 10m 12m'; near it: travel 10m "),
        ("", r"got ''; near it: nothing"),
        ("eat cow,", r"got ''; near it: nothing"),
    ],
)
def test_what_is_no_goal_is_refused_with_the_nearest_ones(text, message):
    with pytest.raises(ValueError, match=message):
        parse_instruction(text)
