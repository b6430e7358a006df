"""Compare `yamame_envs.XLand` with xminigrid, and record what xminigrid does for tests without it.

    pip install xminigrid==0.9.3
    python tools/xland_reference.py compare --transitions 100000
    python tools/xland_reference.py record --generator ruleset_generator.py

Transitions start in random states full of the objects that the rules of the state name, with doors
and a pocket, so that rules and goals apply often. ``record`` writes three files of numbers to
``tests/envs/xland``: such transitions; walls and doors of every layout; and frequencies of what
the original's generator draws. The generator is no part of the package: it is the file
``scripts/ruleset_generator.py`` of its repository.
"""

import argparse
import importlib.util
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from yamame_envs import XLand
from yamame_envs.streams import fold, integers, uniform
from yamame_envs.tasks import Tensors
from yamame_envs.xland.cells import FLOOR, WALL, Colour, Tile, code_of, pack, unpack
from yamame_envs.xland.rooms import draw_layouts, make_rooms
from yamame_envs.xland.rules import compile_rules
from yamame_envs.xland.rulesets import LEVELS, draw_rulesets

FOLDER = Path(__file__).parents[1] / "tests" / "envs" / "xland"
GRIDS = {"R1": 9, "R2": 9, "R4": 9, "R6": 13, "R9": 16}
"""Smallest registered size of each layout."""
SIZES = {
    **dict.fromkeys(("R1", "R2", "R4"), (9, 11, 13, 15, 17)),
    "R6": (13, 17, 19),
    "R9": (16, 19, 25),
}
"""All registered sizes."""
NUM_COLOURS = len(Colour)
_ODD = torch.tensor(
    [
        WALL,
        FLOOR,
        code_of(Tile.DOOR_LOCKED, Colour.RED),
        code_of(Tile.DOOR_CLOSED, Colour.GREEN),
        code_of(Tile.DOOR_OPEN, Colour.BLUE),
    ]
)
_SIDES = ("Up", "Right", "Down", "Left")
_GOAL_NAMES = (
    *("Empty", "AgentHold", "AgentOnTile", "AgentNear", "TileNear"),
    *("TileOnPosition", "AgentOnPosition"),
    *(f"TileNear{side}" for side in _SIDES),
    *(f"AgentNear{side}" for side in _SIDES),
)
_RULE_NAMES = (
    *("Empty", "AgentHold", "AgentNear", "TileNear"),
    *(f"TileNear{side}" for side in _SIDES),
    *(f"AgentNear{side}" for side in _SIDES),
)
_KEY = code_of(Tile.KEY, Colour.RED)
_RECORDED = 80
"""Recorded transitions of each layout and level."""


def random_states(rooms: str, level: str, num: int, seed: int) -> Tensors:
    """Return states with an action each: ``grid`` ``[num, cells]`` and ``pocket`` ``[num]`` as
    codes, ``place``, ``direction``, ``action``, ``step`` ``[num]``, ``goal`` and ``rules``.
    """
    size = GRIDS[rooms]
    key = fold(torch.tensor(seed), torch.arange(num))
    ruleset = draw_rulesets(fold(key, 0), LEVELS[level])
    goal, rules = ruleset["goal"], ruleset["rules"]
    if rules.shape[1] == 0:
        # The original has an empty rule where there is none.
        rules = torch.zeros(num, 1, 7, dtype=torch.uint8)
    named = torch.cat([goal[:, 1:], rules[:, :, 1:].flatten(1)], 1).view(num, -1, 2)
    pool = pack(named).to(torch.int64)
    pool = torch.where(pool == 0, FLOOR, pool)

    walls = make_rooms(rooms, size)
    cells, doors, pose = draw_layouts(fold(key, 1), walls, 1)
    num_cells = size * size
    kind = uniform(fold(key, 2), num_cells)
    laid = pool.gather(1, integers(fold(key, 3), pool.shape[1], num_cells))
    odd = _ODD[integers(fold(key, 4), len(_ODD), num_cells)]
    grid = torch.where(kind < 0.5, laid, torch.where(kind < 0.57, odd, FLOOR))
    grid = torch.where(walls.walls.flatten(), WALL, grid)
    # Some doors are open, some are locked.
    state = Tile.DOOR_LOCKED + integers(fold(key, 5), 3, doors.shape[1])
    grid.scatter_(1, cells[:, 1:].long(), doors - Tile.DOOR_CLOSED + state)

    chance = uniform(fold(key, 6))
    held = pool.gather(1, integers(fold(key, 7), pool.shape[1]).unsqueeze(1)).squeeze(1)
    is_held = (chance < 0.5) & (held % 256 != Tile.GOAL)
    pocket = torch.where(is_held, held, torch.where(chance > 0.9, _KEY, 0))
    limit = 3 * num_cells
    step = integers(fold(key, 8), limit)
    step = torch.where(integers(fold(key, 9), 8) == 0, limit - 1, step)
    return {
        "grid": grid,
        "pocket": pocket,
        "place": pose.long() // 4,
        "direction": pose.long() % 4,
        "action": integers(fold(key, 10), 6),
        "step": step,
        "goal": goal,
        "rules": rules,
    }


def native_outcomes(rooms: str, states: Tensors) -> Tensors:
    """Return what `XLand` makes of states: ``grid``, ``pocket``, ``place``, ``direction``,
    ``reward``, ``reached``, ``over`` and ``view`` ``[num, 5, 5, 2]``.
    """
    num = len(states["action"])
    env = XLand(num_envs=num, rooms=rooms, size=GRIDS[rooms], num_trials=1)
    outside = torch.zeros(num, 1, dtype=torch.int16)
    state = {
        "grid": torch.cat([states["grid"].to(torch.int16), outside], 1),
        "pose": 4 * states["place"] + states["direction"],
        "pocket": states["pocket"].to(torch.int16),
        "trial": torch.zeros(num, dtype=torch.int64),
        "trial_step": states["step"],
    }
    task = {"program": compile_rules(states["goal"], states["rules"])}
    after, reward, reached = env.transition(task, state, states["action"])
    return {
        "grid": after["grid"][:, :-1].long(),
        "pocket": after["pocket"].long(),
        "place": after["pose"] // 4,
        "direction": after["pose"] % 4,
        "reward": reward.squeeze(1),
        "reached": reached.squeeze(1),
        "over": after["ended"].squeeze(1),
        "view": env.observe(task, after)["observation"],
    }


class Original:
    """Step and reset of xminigrid, compiled.

    Args:
        rooms: Layout.
        size: Cells along a side.
    """

    def __init__(self, rooms: str, size: int) -> None:
        # Before jax is imported.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax
        import xminigrid

        self.jax = jax
        self.env, self.params = xminigrid.make(f"XLand-MiniGrid-{rooms}-{size}x{size}")
        self.size = size
        self.step = jax.jit(jax.vmap(self._step))
        self.reset = jax.jit(jax.vmap(lambda key: self.env.reset(self.params, key).state.grid))

    def _step(self, grid: Any, agent: Any, step: Any, goal: Any, rules: Any, action: Any) -> Any:
        from xminigrid.types import AgentState, EnvCarry, State, TimeStep

        numpy = self.jax.numpy
        state = State(
            key=self.jax.random.key(0),
            step_num=step,
            grid=grid,
            agent=AgentState(*agent),
            goal_encoding=goal,
            rule_encoding=rules,
            carry=EnvCarry(),
        )
        first = TimeStep(
            state=state,
            step_type=numpy.asarray(1, numpy.uint8),
            reward=numpy.asarray(0.0),
            discount=numpy.asarray(1.0),
            observation=numpy.zeros((5, 5, 2), numpy.uint8),
        )
        after = self.env.step(self.params, first, action)
        return after.state.grid, after.state.agent, after

    def outcomes(self, states: Tensors) -> Tensors:
        """Return what xminigrid makes of states, as `native_outcomes`."""
        size = self.size

        def pairs(codes: Tensor) -> npt.NDArray[np.uint8]:
            return unpack(codes.to(torch.int16).contiguous()).numpy()

        place = states["place"]
        position = torch.stack([place // size, place % size], 1).to(torch.int32)
        agent = (position.numpy(), states["direction"].to(torch.int32).numpy())
        grid, agent, after = self.step(
            pairs(states["grid"].view(-1, size, size)),
            (*agent, pairs(states["pocket"])),
            states["step"].to(torch.int32).numpy(),
            states["goal"].numpy(),
            states["rules"].numpy(),
            states["action"].to(torch.int32).numpy(),
        )

        def tensor(array: Any) -> Tensor:
            return torch.from_numpy(np.array(array))

        position = tensor(agent.position).long()
        return {
            "grid": pack(tensor(grid)).flatten(1).long(),
            "pocket": pack(tensor(agent.pocket)).long(),
            "place": position[:, 0] * size + position[:, 1],
            "direction": tensor(agent.direction).long(),
            "reward": tensor(after.reward),
            "reached": tensor(after.discount) == 0,
            "over": tensor(after.step_type) == 2,
            "view": tensor(after.observation),
        }


def differing(one: Tensors, other: Tensors) -> dict[str, int]:
    """Return in how many rows each entry differs, without those that are equal."""
    found = {}
    for name, value in one.items():
        wanted = other[name]
        if value.is_floating_point():
            # Compilers round 1 - 0.9 * x once or twice.
            is_equal = (value - wanted).abs() <= 1e-6
        else:
            is_equal = (value == wanted).view(len(value), -1).all(1)
        if not bool(is_equal.all()):
            found[name] = int((~is_equal).sum())
    return found


def compare(num: int, seed: int = 0) -> Counter[str]:
    """Compare transitions in all layouts and levels, and return what they contained.

    Raises:
        AssertionError: An entry differs.
    """
    seen: Counter[str] = Counter()
    cases = [(rooms, level) for rooms in GRIDS for level in LEVELS]
    each = -(-num // len(cases))
    for rooms, size in GRIDS.items():
        original = Original(rooms, size)
        for level in LEVELS:
            states = random_states(rooms, level, each, seed)
            wanted = original.outcomes(states)
            found = differing(native_outcomes(rooms, states), wanted)
            assert not found, f"{rooms} {level}: rows that differ: {found}"
            seen["transitions"] += each
            seen["goals reached"] += int(wanted["reached"].sum())
            seen["trials over"] += int(wanted["over"].sum())
            changed = wanted["grid"] != states["grid"]
            seen["grids changed"] += int(changed.any(1).sum())
            seen["pockets changed"] += int((wanted["pocket"] != states["pocket"]).sum())
    return seen


def in_bytes(codes: Tensor) -> npt.NDArray[np.uint8]:
    """Return codes as bytes, ``12 * tile + colour``."""
    return (NUM_COLOURS * (codes % 256) + codes // 256).to(torch.uint8).numpy()


def from_bytes(numbers: npt.NDArray[np.uint8]) -> Tensor:
    """Return codes ``[*]`` int64 of `in_bytes`."""
    values = torch.from_numpy(numbers).long()
    return values // NUM_COLOURS + 256 * (values % NUM_COLOURS)


def recorded_transitions(rooms: str, level: str) -> tuple[Tensors, Tensors]:
    """Return recorded states, and what xminigrid made of them."""
    parts: dict[str, dict[str, Tensor]] = {"from": {}, "to": {}}
    with np.load(FOLDER / "transitions.npz") as file:
        for part, entries in parts.items():
            prefix = f"{rooms}/{level}/{part}/"
            for name in file.files:
                if not name.startswith(prefix):
                    continue
                entry = name.removeprefix(prefix)
                array = file[name]
                if (part, entry) == ("to", "grid"):
                    array = array + file[f"{rooms}/{level}/from/grid"]
                if entry in ("grid", "pocket"):
                    entries[entry] = from_bytes(array)
                elif array.dtype == np.int16:
                    entries[entry] = torch.from_numpy(array).long()
                else:
                    entries[entry] = torch.from_numpy(array)
    return parts["from"], parts["to"]


def record_transitions() -> None:
    """Write transitions of all layouts and levels."""
    arrays = {}
    for rooms, size in GRIDS.items():
        original = Original(rooms, size)
        for level in LEVELS:
            states = random_states(rooms, level, _RECORDED, 1)
            for part, entries in (("from", states), ("to", original.outcomes(states))):
                for name, value in entries.items():
                    stored = in_bytes(value) if name in ("grid", "pocket") else value.numpy()
                    if stored.dtype == np.int64:
                        stored = stored.astype(np.int16)
                    arrays[f"{rooms}/{level}/{part}/{name}"] = stored
            # Few cells change, so the difference is stored in less space.
            arrays[f"{rooms}/{level}/to/grid"] -= arrays[f"{rooms}/{level}/from/grid"]
    np.savez_compressed(FOLDER / "transitions.npz", **arrays)


def record_rooms(num: int = 600) -> None:
    """Write the walls of every registered grid, and how often a door was in a cell, by colour."""
    layouts = {}
    for rooms, sizes in SIZES.items():
        for size in sizes:
            original = Original(rooms, size)
            keys = original.jax.random.split(original.jax.random.key(0), num)
            grids = torch.from_numpy(np.array(original.reset(keys))).flatten(1, 2)
            walls = (grids[..., 0] == Tile.WALL).all(0)
            is_door = grids[..., 0] == Tile.DOOR_CLOSED
            count = is_door.sum(0)
            colours = grids[..., 1][is_door].long().bincount(minlength=NUM_COLOURS)
            layouts[f"{rooms}-{size}"] = {
                "walls": walls.nonzero().flatten().tolist(),
                "doors": {int(cell): int(count[cell]) for cell in count.nonzero().flatten()},
                "colours": colours.tolist(),
            }
    (FOLDER / "rooms.json").write_text(json.dumps({"resets": num, "layouts": layouts}) + "\n")


def record_generator(path: str, num: int = 20000) -> None:
    """Write frequencies of what the original's generator draws."""
    spec = importlib.util.spec_from_file_location("ruleset_generator", path)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)

    class Plain:
        """Plain tuples in the place of arrays, which take a hundred times as long to build."""

        array = staticmethod(tuple)

    generator.jnp = Plain
    random.seed(0)
    found = {}
    for level, settings in LEVELS.items():
        drawn = [
            generator.sample_ruleset(
                chain_depth=settings.depth,
                num_distractor_rules=settings.distractor_rules,
                num_distractor_objects=settings.distractor_objects,
                sample_depth=False,
                sample_distractor_rules=settings.distractor_rules > 0,
                prune_chain=settings.prune > 0,
                prune_prob=settings.prune,
            )
            for _ in range(num)
        ]
        found[level] = frequencies_of([_encoded(ruleset, settings) for ruleset in drawn])
    (FOLDER / "generator.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


def _encoded(ruleset: Any, settings: Any) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Return goal, rules and objects of one ruleset of the original as numbers."""
    from xminigrid.core import goals, rules

    assert all(hasattr(goals, f"{name}Goal") for name in _GOAL_NAMES)
    assert all(hasattr(rules, f"{name}Rule") for name in _RULE_NAMES)

    def tiles(item: Any) -> list[int]:
        names = ("tile", "tile_a", "tile_b", "prod_tile")
        return [number for name in names for number in getattr(item, name, ())]

    goal = ruleset["goal"]
    encoded_goal = [_GOAL_NAMES.index(type(goal).__name__.removesuffix("Goal")), *tiles(goal)]
    encoded_rules = []
    for rule in ruleset["rules"]:
        kind = _RULE_NAMES.index(type(rule).__name__.removesuffix("Rule"))
        if kind > 0:
            encoded_rules.append([kind, *tiles(rule)])
    return encoded_goal, encoded_rules, [list(tile) for tile in ruleset["init_tiles"]]


def native_rulesets(settings: Any, num: int, seed: int = 0) -> list[Any]:
    """Return rulesets of `XLand` as numbers: lists of goal, rules and objects, without padding."""
    drawn = draw_rulesets(fold(torch.tensor(seed), torch.arange(num)), settings)
    listed = zip(*(drawn[name].tolist() for name in ("goal", "rules", "objects")), strict=True)
    rulesets = []
    for goal, rules, objects in listed:
        rulesets.append(
            (
                [number for number in goal if number],
                [[number for number in rule if number] for rule in rules if rule[0]],
                [tile for tile in objects if tile[0]],
            )
        )
    return rulesets


def frequencies_of(rulesets: list[Any]) -> dict[str, dict[str, int]]:
    """Count what rulesets contain, by name of what is counted and value."""
    counts: dict[str, Counter[int]] = {}

    def count(name: str, value: int) -> None:
        counts.setdefault(name, Counter())[value] += 1

    for goal, rules, objects in rulesets:
        count("kind of goal", goal[0])
        count("tile of goal", goal[1])
        count("colour of goal", goal[2])
        count("number of rules", len(rules))
        count("number of objects", len(objects))
        count("different objects", len({tuple(tile) for tile in objects}))
        goal_tiles = {tuple(goal[i : i + 2]) for i in range(1, len(goal), 2)}
        count("goal tiles in the room", sum(tuple(tile) in goal_tiles for tile in objects))
        count("tile of the last object", objects[-1][0])
        if rules:
            count("kind of the last rule", rules[-1][0])
            count("product of the last rule", rules[-1][-2])
            count("kind of the first rule", rules[0][0])
            made = {tuple(rule[-2:]) for rule in rules}
            consumed = sum(tuple(rule[1:3]) in made for rule in rules)
            count("rules that consume products", consumed)
    named = {}
    for name, counter in counts.items():
        named[name] = {str(value): counter[value] for value in sorted(counter)}
    return named


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("compare", "record"))
    parser.add_argument("--transitions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--generator", help="file of the original's generator")
    options = parser.parse_args()
    if options.command == "compare":
        for name, number in compare(options.transitions, options.seed).items():
            print(f"{name}: {number:,}")
        return
    FOLDER.mkdir(exist_ok=True)
    record_transitions()
    record_rooms()
    if options.generator:
        record_generator(options.generator)


if __name__ == "__main__":
    main()
