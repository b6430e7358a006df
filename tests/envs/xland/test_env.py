"""Trials, layouts, observations, settings and pictures of XLand."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torchrl.envs.utils import check_env_specs
from yamame.checks import UsageError
from yamame.files.building import build_node
from yamame_envs import RepeatedTrials, XLand
from yamame_envs.rendering import CELL
from yamame_envs.streams import fold
from yamame_envs.xland.cells import EMPTY, FLOOR, Colour, Tile, code_of, pack, unpack
from yamame_envs.xland.rooms import draw_distinct, make_rooms
from yamame_envs.xland.rules import PICK_UP


def play(env, steps, seed=0):
    """Steps of random actions, with ``next``."""
    torch.manual_seed(seed)
    current = env.reset()
    played = []
    for _ in range(steps):
        step, current = env.step_and_maybe_reset(current.set("action", env.action_spec.rand()))
        played.append(step.clone())
    return torch.stack(played, 1)


def holding_env(**settings):
    """An environment whose goal is to pick up the object in front of the agent."""
    env = XLand(num_envs=2, size=6, num_trials=3, trial_limit=5, **settings)
    env.reset()
    return env


def put_goal_in_front(env):
    """Make the goal of every env to hold a ball, and put one in front of each agent."""
    ball = code_of(Tile.BALL, Colour.RED)
    task, state = env.env_state.task, env.env_state.state
    program = torch.full_like(task["program"], -1)
    program[:, -1, 0] = 2**28 + ball
    program[:, -1, 4] = 1 << PICK_UP
    task["program"] = program
    state["pose"] = torch.full_like(state["pose"], 4 * 14)
    state["grid"][:, 8] = ball


def pick_up(env):
    return env.step(env.present().set("action", torch.full((2,), PICK_UP)))["next"]


@pytest.mark.parametrize(("reward", "first"), [("timed", 1 - 0.9 / 5), ("success", 1.0)])
def test_the_goal_pays_and_ends_the_trial_and_the_last_one_the_episode(reward, first):
    env = holding_env(reward=reward)
    for trial in range(3):
        put_goal_in_front(env)
        before = env.env_state.state["grid"].clone()
        step = pick_up(env)
        assert step["reward"].flatten().tolist() == pytest.approx([first] * 2)
        is_last = trial == 2
        assert step["done"].all() == step["success"].all() == is_last
        assert step["trial_start"].all() == (not is_last)
        state = env.env_state.state
        # A new trial has empty hands; the last one shows what was done.
        assert (state["pocket"] > 0).all() == is_last
        assert not torch.equal(state["grid"], before)
    assert not step["truncated"].any()


def test_with_a_step_between_trials_the_end_of_each_is_shown():
    env = holding_env(reward="success", trial_end="reset_step")
    plain = holding_env(reward="success")
    for trial in range(3):
        put_goal_in_front(env)
        step = pick_up(env)
        is_last = trial == 2
        assert step["reward"].flatten().tolist() == [1.0, 1.0]
        assert step["done"].all() == step["success"].all() == is_last
        assert not step["trial_start"].any()
        assert (env.env_state.state["pocket"] > 0).all()
        if is_last:
            break
        # An action that would reach the goal again leads to the next trial, as any other does.
        env.env_state.state["pocket"] = torch.zeros(2, dtype=torch.int16)
        put_goal_in_front(env)
        step = pick_up(env)
        assert step["reward"].flatten().tolist() == [0.0, 0.0]
        assert step["trial_start"].all()
        assert not step["done"].any()
        put_goal_in_front(plain)
        other = pick_up(plain)
        assert other["trial_start"].all()
        for name in ("grid", "pose", "pocket"):
            assert torch.equal(env.env_state.state[name], plain.env_state.state[name]), name


@pytest.mark.parametrize("num_trials", [1, 3])
def test_steps_between_trials_are_beyond_the_limit_of_a_trial(num_trials):
    env = XLand(num_envs=2, size=6, num_trials=num_trials, trial_limit=5, trial_end="reset_step")
    horizon = 5 * num_trials + num_trials - 1
    current = env.reset()
    starts = [current["trial_start"].all()]
    for index in range(horizon):
        step, current = env.step_and_maybe_reset(current.set("action", torch.full((2,), 1)))
        assert step["next", "done"].all() == (index == horizon - 1)
        starts.append(step["next", "trial_start"].all())
    assert [i for i, start in enumerate(starts) if start] == [0, 6, 12][:num_trials]


def test_a_trial_without_success_ends_at_its_limit():
    env = XLand(num_envs=2, size=6, num_trials=3, trial_limit=5)
    current = env.reset()
    starts = [current["trial_start"].all()]
    for index in range(15):
        step, current = env.step_and_maybe_reset(current.set("action", torch.full((2,), 1)))
        assert step["next", "done"].all() == (index == 14)
        assert not step["next", "success"].any()
        starts.append(step["next", "trial_start"].all())
    assert [i for i, start in enumerate(starts) if start] == [0, 5, 10]


def test_trials_have_the_objects_of_the_ruleset_in_new_places():
    env = XLand(num_envs=64, size=9, level="small", rooms="R4", num_trials=4)
    env.reset()
    task = env.env_state.task
    grids, poses = [], []
    for trial in range(4):
        grid, pose = env._lay_out(task, torch.full((64,), trial))
        grids.append(grid)
        poses.append(pose)
        # The agent stands on a free cell.
        assert (grid.gather(1, pose.unsqueeze(1) // 4) == FLOOR).all()
    objects = task["objects"].sort(1).values
    for grid in grids:
        is_object = (grid[:, :-1] & 255 > 2) & ((grid[:, :-1] & 255) != Tile.DOOR_CLOSED)
        assert (is_object.sum(1) == (objects != FLOOR).sum(1)).all()
        assert ((grid & 255) == Tile.DOOR_CLOSED).sum(1).eq(4).all()
        assert (grid[:, -1] == EMPTY).all()
    same = [(one == two).all(1).float().mean() for one, two in pairwise(grids)]
    assert max(same) == 0
    assert 0.1 < (poses[0] % 4 == poses[1] % 4).float().mean() < 0.4


def test_repeated_trials_repeat_the_first_layout():
    """The wrapper begins the same episode again, unlike the trials of the environment itself."""
    env = RepeatedTrials(XLand(num_envs=8, size=6, num_trials=1, trial_limit=5), num_trials=2)
    first = env.reset()["observation"].clone()
    current = env.present()
    for _ in range(5):
        _, current = env.step_and_maybe_reset(current.set("action", torch.full((8,), 1)))
    assert torch.equal(current["observation"], first)
    inner = XLand(num_envs=8, size=6, num_trials=2, trial_limit=5)
    current = inner.reset()
    assert torch.equal(current["observation"], first)
    for _ in range(5):
        _, current = inner.step_and_maybe_reset(current.set("action", torch.full((8,), 1)))
    assert not torch.equal(current["observation"], first)


def test_places_are_distinct_and_uniform():
    key = fold(torch.tensor(0), torch.arange(6000))
    drawn = draw_distinct(key, 5, 3)
    assert (drawn.sort(1).values.diff(dim=1) > 0).all()
    number = drawn[:, 0] * 25 + drawn[:, 1] * 5 + drawn[:, 2]
    counts = number.bincount(minlength=125)
    counts = counts[counts > 0]
    assert len(counts) == 60  # ordered triples of five
    assert ((counts - 100).abs() < 50).all()
    assert torch.equal(draw_distinct(key[:9], 4, 4).sort(1).values, torch.arange(4).expand(9, 4))


def test_the_view_shows_cells_in_front_of_the_agent_and_nothing_outside():
    env = XLand(size=5, rooms="R1", level={}, num_trials=1)
    env.reset()
    grid = torch.arange(26, dtype=torch.int16).unsqueeze(0)
    grid[:, -1] = EMPTY
    seen = env._game.view(grid, torch.tensor([4 * 12 + 0]))[0]
    assert seen.tolist() == [
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11, 12, 13, 14],
    ]
    right = env._game.view(grid, torch.tensor([4 * 12 + 1]))[0]
    assert right[-1].tolist() == [2, 7, 12, 17, 22]
    assert right[-2].tolist() == [3, 8, 13, 18, 23]
    left = env._game.view(grid, torch.tensor([4 * 12 + 3]))[0]
    assert left[-1].tolist() == [22, 17, 12, 7, 2]


def test_codes_are_tiles_and_colours():
    pairs = torch.cartesian_prod(torch.arange(13), torch.arange(12)).to(torch.uint8)
    assert torch.equal(unpack(pack(pairs)), pairs)


def test_observations_show_direction_unless_they_must_not():
    env = XLand(num_envs=32, num_trials=1)
    timestep = env.reset()
    pose = env.env_state.state["pose"]
    assert torch.equal(timestep["direction"].float().argmax(1), pose % 4)
    assert timestep["direction"].sum(1).eq(1).all()
    blind = XLand(num_envs=32, num_trials=1, direction=False)
    assert "direction" not in blind.reset().keys()
    assert torch.equal(blind.present()["observation"], timestep["observation"])
    check_env_specs(blind)


def test_hidden_values_tell_rulesets_apart_and_nothing_else():
    env = XLand(num_envs=64, level="small", num_trials=2, trial_limit=5, observable=True)
    played = play(env, 9)
    hidden = played["hidden"]
    assert (hidden == hidden[:, :1]).all()
    hashes = env.task_hashes()
    assert len(hidden[:, 0].unique(dim=0)) == len(hashes.unique())


def test_rules_are_applied_in_play():
    """Rules change what can be seen: without them, the same episodes are others."""
    level = {"depth": 2, "distractor_rules": 3, "distractor_objects": 2}
    env, other = (XLand(num_envs=64, size=7, level=level, num_trials=1) for _ in range(2))
    other.reset()
    lines = other.env_state.task["program"]
    lines[:, :-1] = -1
    torch.manual_seed(0)
    env.reset()
    differs = torch.zeros(64, dtype=torch.bool)
    for _ in range(40):
        action = env.action_spec.rand()
        grids = []
        for each in (env, other):
            each.step(each.present().set("action", action))
            grids.append(each.env_state.state["grid"])
        differs |= (grids[0] != grids[1]).any(1)
    assert 5 < differs.sum() < 64


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"rooms": "R3"}, "XLand: rooms"),
        ({"rooms": ["R1"]}, "rooms"),
        ({"rooms": "R4", "size": 10}, "size"),
        ({"rooms": "R9", "size": 15}, "size"),
        ({"rooms": "R6", "size": 8}, "size"),
        ({"size": 2}, "size"),
        ({"level": "huge"}, "level"),
        ({"level": "high", "size": 6}, "size"),
        ({"view_size": 4}, "view_size"),
        ({"view_size": 1}, "view_size"),
        ({"view_size": 33}, "view_size"),
        ({"num_trials": 0}, "num_trials"),
        ({"trial_limit": 0}, "trial_limit"),
        ({"reward": "none"}, "reward"),
        ({"split": "held-out"}, "split"),
        ({"split_by": "objects"}, "split_by"),
        ({"level": {"depth": 9}}, r"level\.depth"),
        ({"level": {"depht": 1}}, "level"),
    ],
)
def test_settings_out_of_range_are_named(settings, name):
    with pytest.raises(ValueError, match=rf"{name} must "):
        XLand(**settings)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"rooms": "R3"}, "env.rooms"),
        ({"rooms": "R4", "size": 10}, "env.size"),
        ({"size": 3}, "env.size"),
        ({"level": "huge"}, "env.level"),
        ({"level": {"depth": 9}}, "env.level.depth"),
        ({"level": {"prune": "often"}}, "env.level.prune"),
        ({"trial_limit": 0}, "env.trial_limit"),
    ],
)
def test_an_error_in_a_configuration_begins_with_its_key(settings, key):
    with pytest.raises(UsageError) as raised:
        build_node({"_target_": "yamame_envs.XLand", **settings}, "env")
    assert str(raised.value).startswith(f"{key}: must ")


@pytest.mark.parametrize("name", ["R1", "R2", "R4", "R6", "R9"])
@pytest.mark.parametrize("size", range(3, 30))
def test_rooms_of_any_size_are_closed_and_can_all_be_reached(name, size):
    try:
        rooms = make_rooms(name, size)
    except ValueError:
        assert name != "R1"
        return
    doors = rooms.doors
    for column in (0, -1):
        is_open = ~rooms.walls
        if len(doors):
            is_open.view(-1)[doors[:, column]] = True
        assert not is_open[0].any()
        assert not is_open[:, 0].any()
        assert not is_open[-1].any()
        assert not is_open[:, -1].any()
        reached = torch.zeros_like(is_open)
        reached.view(-1)[rooms.free[0]] = True
        for _ in range(size * size):
            grown = reached.clone()
            grown[1:] |= reached[:-1]
            grown[:-1] |= reached[1:]
            grown[:, 1:] |= reached[:, :-1]
            grown[:, :-1] |= reached[:, 1:]
            grown &= is_open
            if torch.equal(grown, reached):
                break
            reached = grown
        assert torch.equal(reached, is_open)
    assert (rooms.walls.view(-1)[doors]).all()


def test_pictures_show_tiles_agent_and_pocket():
    env = XLand(num_envs=2, rooms="R4", level="medium", num_trials=1)
    env.reset()
    picture = env.render(1)
    assert picture.shape == (9 * CELL, 9 * CELL, 3)
    assert picture.dtype == np.uint8
    env.env_state.state["pocket"][1] = code_of(Tile.KEY, Colour.PINK)
    holding = env.render(1)
    place = int(env.env_state.state["pose"][1]) // 4
    differs = (holding != picture).any(-1)
    row, column = divmod(place, 9)
    window = differs[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
    assert window.sum() == differs.sum() > 10
    shown = set()
    state = env.env_state.state
    for tile in range(len(Tile)):
        state["grid"][0, 10] = code_of(tile, Colour.RED)
        state["pose"][0] = 4 * 70
        shown.add(env.render(0)[CELL : 2 * CELL, CELL : 2 * CELL].tobytes())
    assert len(shown) >= len(Tile) - 1  # an empty cell looks like the floor
