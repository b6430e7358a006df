"""Properties of the levels of MiniGrid and BabyAI, and the words of their missions.

BabyAI: Chevalier-Boisvert et al., arXiv 1810.08272. A level's longest mission and its step limit
follow from its grammar: an action on an object ("go to the red ball on your left"), two of them
joined by "and", and two of those in sequence.
"""

import contextlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import gymnasium

from yamame_envs.adapters.extras import import_extra

_BABYAI = (
    "a after and ball behind blue box door front go green grey in key left next object of on open "
    "pick purple put red right the then to up yellow you your"
)
_MINIGRID = (
    "at avoid end fetch find from get goal hallway lava matching must near opening reach room "
    "rooms square traverse unlock use"
)
WORDS = (*_BABYAI.split(), *_MINIGRID.split())
BLANK, UNKNOWN = 0, 1
NUM_TOKENS = 2 + len(WORDS)

_TOKENS = {word: index for index, word in enumerate(WORDS, start=2)}
_LEFT_OUT = (
    *("BossLevel", "BossLevelNoUnlock", "GoToSeq", "MiniBossLevel", "MoveTwoAcross"),
    *("OpenDoorsOrder", "OpenDoorsOrderN4Debug", "OpenRedBlueDoorsDebug", "OpenTwoDoors"),
    *("PutNext", "PutNextLocal", "Synth", "SynthLoc", "SynthSeq"),
)
"""Families of BabyAI that AMAGO-2 leaves out: several objects, and most sequences."""


def _library() -> None:
    import_extra("minigrid", extra="minigrid", owner="MiniGrid")


def tokens(mission: str) -> list[int]:
    """Return the words of a mission: known ones from 2, `UNKNOWN` others, no punctuation."""
    return [_TOKENS.get(word, UNKNOWN) for word in re.findall("[a-z]+", mission.lower())]


def find_levels(level: str | Sequence[str]) -> tuple[str, ...]:
    """Return the ids of one level, of several, or of the family "babyai".

    Raises:
        ValueError: There is no such level.
    """
    _library()
    registered = [
        name
        for name, spec in gymnasium.registry.items()
        if str(spec.entry_point).startswith("minigrid.") and "WFC" not in name
    ]
    if level == "babyai":
        family = [name for name in registered if name.startswith("BabyAI-")]
        return tuple(n for n in family if not n.removeprefix("BabyAI-").startswith(_LEFT_OUT))
    names = (level,) if isinstance(level, str) else tuple(level)
    if not names:
        raise ValueError(f"MiniGrid: id must name at least one level, got {level!r}")
    for name in names:
        if name not in registered:
            close = ", ".join(get_close_matches(name, registered, n=3))
            known = f"a level of minigrid{close and ', such as '}{close}"
            raise ValueError(f"MiniGrid: id must be {known}, got {name!r}")
    return names


def build(name: str) -> Any:
    """Make a level without any wrapper."""
    # A worker process must register the levels as well.
    _library()
    return gymnasium.make(name, disable_env_checker=True, render_mode="rgb_array").unwrapped


def begin(level: Any, seed: int) -> dict[str, Any]:
    """Reset a level without its output about rejected layouts."""
    with contextlib.redirect_stdout(io.StringIO()):
        seen: dict[str, Any] = level.reset(seed=seed)[0]
    return seen


@dataclass(frozen=True, slots=True)
class Level:
    """Properties of a level.

    Attributes:
        limit: Steps after which an episode is over; None if that depends on the mission.
        num_words: Number of words of the longest mission.
        side: Cells along the longer side of its map.
        view: Cells along a side of the agent's view.
    """

    limit: int | None
    num_words: int
    side: int
    view: int


def inspect(name: str) -> Level:
    """Read the properties of a level."""
    level = build(name)
    missions = []
    for seed in range(8):
        begin(level, seed)
        missions.append(len(tokens(level.mission)))
    limit, num_words = level.max_steps, max(missions)
    # Missions that are drawn from the grammar may be longer than those of a few seeds.
    if hasattr(level, "instr_kinds"):
        least, most = _navigations(level)
        limit = limit if least == most else None
        num_words = _longest(level)
    return Level(limit, num_words, max(level.width, level.height), level.agent_view_size)


def _navigations(level: Any) -> tuple[int, int]:
    """Return the fewest and most places of a mission, to which the step limit is proportional."""
    costs = {2 if kind == "putnext" else 1 for kind in level.action_kinds}
    least, most = [], []
    for kind in level.instr_kinds:
        least.append(min(costs) * {"action": 1, "and": 2, "seq": 2}[kind])
        most.append(max(costs) * {"action": 1, "and": 2, "seq": 4}[kind])
    return min(least), max(most)


def _longest(level: Any) -> int:
    thing = 3 + (4 if level.locations else 0)  # "a red ball", "in front of you"
    action = max(3 + 2 * thing if kind == "putnext" else 2 + thing for kind in level.action_kinds)
    pair = 2 * action + 1  # "and"
    lengths = {"action": action, "and": pair, "seq": 2 * pair + 2}  # "after you"
    return max(lengths[kind] for kind in level.instr_kinds)
