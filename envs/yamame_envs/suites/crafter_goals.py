"""Instructions of Crafter: their words, their goals, and the distribution of goals.

A goal is three words of a closed vocabulary, given by their ids; shorter goals are filled up with
the word ``pad``. 22 goals are Crafter's achievements ("collect wood", "make stone pickaxe", "wake
up"), 169 are places ("travel 20m 35m": less than 2 cells from x = 20, y = 35).

Source: AMAGO, arXiv 2310.09971, section 5 and appendix (Crafter).
"""

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import accumulate
from math import hypot

import numpy as np
import numpy.typing as npt

Goal = tuple[int, int, int]

_COORDINATES = tuple(range(0, 61, 5))
_CENTER = 32
# Largest reach of a drawn travel goal.
_FARTHEST = 44

WORDS = (
    *("collect", "defeat", "eat", "make", "place"),
    *("coal", "diamond", "drink", "iron", "sapling", "stone", "wood"),
    *("skeleton", "zombie", "cow", "plant", "pickaxe", "sword", "furnace", "table"),
    *("travel", "pad", "wake", "up"),
    *(f"{coordinate}m" for coordinate in _COORDINATES),
)
"""Vocabulary; the id of a word is its index."""

SINGLE_GOALS = (
    *("collect drink", "collect sapling", "collect wood", "collect stone", "collect coal"),
    *(
        "collect iron",
        "collect diamond",
        "defeat zombie",
        "defeat skeleton",
        "eat cow",
        "eat plant",
    ),
    *("make wood pickaxe", "make stone pickaxe", "make iron pickaxe"),
    *("make wood sword", "make stone sword", "make iron sword"),
    *("place plant", "place table", "place stone", "place furnace", "wake up"),
)
"""All goals that are achievements of the game."""

INSTRUCTIONS = (
    ("collect sapling", "place plant", "place plant", "place plant", "eat cow"),
    ("travel 10m 10m", "place stone", "travel 50m 50m", "place stone"),
    ("make stone pickaxe", "collect stone", "collect stone", "collect iron"),
    ("make stone pickaxe", "collect iron"),
    ("make stone pickaxe", "collect iron", "collect iron"),
    ("collect wood", "place table", "make wood pickaxe", "collect coal"),
    ("make stone pickaxe", "collect coal", "collect iron", "place furnace", "make iron sword"),
    ("collect drink", "eat cow", "wake up", "make stone sword", "defeat zombie"),
    ("make wood sword", "defeat zombie", "defeat zombie"),
    ("eat cow", "make stone pickaxe", "collect coal", "make wood sword", "defeat zombie"),
)
"""Instructions of several goals to evaluate on, from the source."""

TECH_TREE = (
    *("collect wood", "place table", "make wood pickaxe", "collect coal", "make wood sword"),
    *("collect stone", "make stone pickaxe", "make stone sword", "collect iron", "place furnace"),
    *("make iron pickaxe", "make iron sword"),
)
"""Goals on the tree of tools, in the order of the climb."""

TRAVEL_SHARE = 0.2
"""Share of drawn goals that are places."""


_MATERIALS = (("wood", 30), ("stone", 15), ("iron", 5))
_KINDS: dict[str, tuple[float, dict[str, int]]] = {
    "collect": (
        0.3,
        {"sapling": 20, "wood": 20, "stone": 18, "drink": 17, "coal": 10, "iron": 10, "diamond": 5},
    ),
    "defeat": (0.1, {"zombie": 60, "skeleton": 40}),
    "eat": (0.1, {"cow": 70, "plant": 30}),
    "make": (
        0.15,
        {
            f"{material} {tool}": percent
            for material, percent in _MATERIALS
            for tool in ("pickaxe", "sword")
        },
    ),
    "place": (0.15, {"table": 40, "stone": 30, "plant": 20, "furnace": 10}),
}

GOAL_SHARES = {
    f"{kind} {thing}": share * percent / 100
    for kind, (share, things) in _KINDS.items()
    for thing, percent in things.items()
}
"""Share of each achievement among drawn goals; "wake up" is never drawn."""


def _tokens(text: str) -> Goal:
    first, second, third = (WORDS.index(word) for word in [*text.split(), "pad"][:3])
    return first, second, third


_PLACES = {(x, y): _tokens(f"travel {x}m {y}m") for x in _COORDINATES for y in _COORDINATES}
_DISTANCES = np.array([hypot(x - _CENTER, y - _CENTER) for x, y in _PLACES])
_PLACE_GOALS = list(_PLACES.values())
_SINGLE = {text: _tokens(text) for text in SINGLE_GOALS}
_GOALS = {**_SINGLE, **{" ".join(WORDS[token] for token in goal): goal for goal in _PLACE_GOALS}}
_TEXTS = {goal: text for text, goal in _GOALS.items()}
_SHARE_GOALS = [_SINGLE[text] for text in GOAL_SHARES]
_SHARE_ENDS = np.array(list(accumulate(GOAL_SHARES.values())))
_REACH_ENDS = np.cumsum(np.arange(_FARTHEST, 0, -1)) / (_FARTHEST * (_FARTHEST + 1) / 2)


def parse_goal(text: str) -> Goal:
    """Return the ids of the words of a goal; underscores and capitals are accepted.

    Raises:
        ValueError: This is not a goal of the game.

    >>> parse_goal("eat plant")
    (2, 15, 21)
    """
    words = " ".join(text.lower().replace("_", " ").split())
    goal = _GOALS.get(words)
    if goal is None:
        first, second, last = _COORDINATES[0], _COORDINATES[1], _COORDINATES[-1]
        places = f"'travel X Y' with X and Y in {first}m, {second}m, ..., {last}m"
        near = ", ".join(get_close_matches(words, _GOALS, n=3, cutoff=0.5)) or "nothing"
        raise ValueError(
            f"Crafter: goal must be one of {', '.join(SINGLE_GOALS)} or {places}, "
            f"got {text!r}; near it: {near}"
        )
    return goal


def parse_instruction(text: str) -> list[str]:
    """Return the goals of an instruction that is separated by commas, in their full form.

    Raises:
        ValueError: One of them is not a goal of the game.

    >>> parse_instruction("Collect sapling, place_plant, eat cow")
    ['collect sapling', 'place plant', 'eat cow']
    """
    return [goal_text(parse_goal(goal)) for goal in text.split(",")]


def goal_text(goal: Sequence[float]) -> str:
    """Return the words of a goal given by their ids.

    Raises:
        ValueError: These are not the ids of a goal, as in an unused or completed slot.

    >>> goal_text([20.0, 28.0, 31.0])
    'travel 20m 35m'
    """
    numbers = tuple(float(number) for number in goal)
    # Whole floats hash and compare as the ids.
    text = _TEXTS.get(numbers)  # type: ignore[arg-type]
    if text is None:
        raise ValueError(
            f"Crafter: goal must be the ids of three words that make a goal, got {numbers}"
        )
    return text


def place_reached(x: int, y: int) -> Goal | None:
    """Return the travel goal that is less than 2 cells from a position; None if there is none.

    >>> goal_text(place_reached(19, 36))
    'travel 20m 35m'
    >>> place_reached(32, 32)
    """
    near_x, near_y = (min(5 * ((coordinate + 2) // 5), _COORDINATES[-1]) for coordinate in (x, y))
    return _PLACES[near_x, near_y] if hypot(x - near_x, y - near_y) < 2 else None


def draw_goal(random: np.random.Generator) -> Goal:
    """Draw one goal of an instruction: an achievement by `GOAL_SHARES`, or a place."""
    share = random.random()
    if share >= 1 - TRAVEL_SHARE:
        return draw_place(random)
    return _SHARE_GOALS[int(np.searchsorted(_SHARE_ENDS[:-1], share, side="right"))]


def draw_place(random: np.random.Generator) -> Goal:
    """Draw a place to travel to; near ones are likelier.

    A reach d in 1 .. 44 is drawn in proportion to 45 - d. Every place is ranked by its distance
    from the middle of the world plus a number of its own from U(0, 1); the highest rank among those
    at a distance of at most d is asked, and the lowest rank of all if there are none.
    """
    reach = 1 + int(np.searchsorted(_REACH_ENDS[:-1], random.random(), side="right"))
    rank = _DISTANCES + random.random(len(_DISTANCES))
    within = reach >= _DISTANCES
    best = int(np.where(within, rank, -1.0).argmax()) if within.any() else int(rank.argmin())
    return _PLACE_GOALS[best]


def draw_instruction(random: np.random.Generator, min_goals: int, num_goals: int) -> list[Goal]:
    """Draw a uniform number of goals in ``min_goals .. num_goals``, then every goal by itself."""
    return [draw_goal(random) for _ in range(random.integers(min_goals, num_goals + 1))]


def draw_climb(random: np.random.Generator, min_goals: int, num_goals: int) -> list[Goal]:
    """Draw distinct steps of the tree of tools, in the order of the climb.

    The height up to which steps are drawn is random too. In the source it depends on the progress
    of the agent, which a seed cannot know.

    Args:
        random: Generator.
        min_goals: Smallest number of goals, at most the length of `TECH_TREE`.
        num_goals: Largest number of goals.
    """
    height = int(random.integers(min_goals, len(TECH_TREE) + 1))
    count = int(random.integers(min_goals, min(num_goals, height) + 1))
    steps = np.sort(random.permutation(height)[:count])
    return [_SINGLE[TECH_TREE[step]] for step in steps]


def encode(goals: Sequence[Goal], slots: int, unused: float) -> npt.NDArray[np.float32]:
    """Encode goals as an array ``[slots, 3]``; the last slots are filled with ``unused``."""
    array = np.full((slots, 3), unused, np.float32)
    if goals:
        array[: len(goals)] = goals
    return array
