import numpy as np
import pytest
import torch
from yamame_envs import MiniHack
from yamame_envs.suites.minihack_task import MiniHackTask

pytest.importorskip("minihack", reason="MiniHack is not installed")

ROOM = "MiniHack-Room-Random-5x5-v0"


def played(task, seed, actions):
    seen = [task.reset(seed=seed)[0]["chars"].copy()]
    for action in actions:
        view, reward, terminated, truncated, _ = task.step(int(action))
        seen += [view["chars"].copy(), np.full((21, 79), reward)]
        if terminated or truncated:
            break
    return np.stack(seen)


@pytest.mark.parametrize("id", [ROOM, "MiniHack-Memento-Short-F2-v0", "MiniHack-Corridor-R3-v0"])
def test_a_seed_decides_the_level_and_the_game_whatever_was_played_before(id):
    fresh, used = MiniHackTask(id, ["chars"]), MiniHackTask(id, ["chars"])
    levels = set()
    for seed in range(6):
        actions = np.random.default_rng(seed).integers(8, size=40)
        expected = played(fresh, seed, actions)
        played(used, 99 + seed, actions)
        assert np.array_equal(played(used, seed, actions), expected)
        levels.add(expected[0].tobytes())
    assert len(levels) > 1
    fresh.close()
    used.close()


def test_without_the_adapter_a_seed_decides_nothing():
    task = MiniHackTask(ROOM, ["chars"])
    starts = {task.env.reset(seed=0)[0]["chars"].tobytes() for _ in range(8)}
    assert len(starts) > 1
    task.close()


def stairs(seen):
    """The first step of a straight way to the stairs down."""
    here, there = np.argwhere(seen == ord("@"))[0], np.argwhere(seen == ord(">"))[0]
    way = tuple(np.sign(there - here).tolist())
    compass = [
        (-1, 0),
        (0, 1),
        (1, 0),
        (0, -1),
        (-1, 1),
        (1, 1),
        (1, -1),
        (-1, -1),
    ]  # k l j h and diagonals
    return compass.index(way)


def test_who_goes_to_the_stairs_has_success_and_who_waits_has_none():
    task = MiniHackTask(ROOM, ["chars"])
    seen, total = task.reset(seed=3)[0]["chars"], 0.0
    for _ in range(10):
        view, reward, terminated, _, told = task.step(stairs(seen))
        seen, total = view["chars"], total + reward
        if terminated:
            break
    assert told == {"success": True}
    assert total == pytest.approx(1.0)
    task.close()
    env = MiniHack(id=ROOM, time_limit=5)
    still = env.rollout(5, lambda td: td.set("action", torch.zeros(1, dtype=torch.int64)))
    assert still["next", "terminated"][0, -1]
    assert not still["next", "success"].any()
    env.close()


def test_what_is_punished_at_the_end_is_no_success():
    env = MiniHack(num_envs=8, seed=2, time_limit=500)
    torch.manual_seed(0)
    ended = env.rollout(900, break_when_any_done=False)["next"]
    last = ended["terminated"] & (ended["step_index"] < 500)
    assert torch.equal(ended["success"][last], ended["reward"][last] > 0)
    assert (ended["reward"][last] < 0).any()
    assert (ended["reward"][last] > 0).any()
    env.close()


def test_limits_are_the_levels_own_and_glyphs_are_tokens():
    env = MiniHack(id=ROOM, time_limit=None)
    assert env.time_limit == 100
    spec = env.observation_spec
    assert (spec["glyphs_crop"].shape, spec["glyphs_crop"].space.n) == ((1, 9, 9), 5977)
    assert (spec["message"].shape, spec["message"].dtype) == ((1, 256), torch.uint8)
    env.close()
