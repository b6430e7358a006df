import hashlib
import inspect
import os
import subprocess
import sys

import numpy as np
import pytest

gymnasium = pytest.importorskip(
    "gymnasium", reason="environments of other libraries are Gymnasium's"
)
crafter = pytest.importorskip("crafter", reason="pip install 'yamame[crafter]'")

import torch  # noqa: E402
import yamame.goals  # noqa: E402
from gymnasium.utils.env_checker import check_env  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from torchrl.envs.utils import check_env_specs  # noqa: E402
from yamame_envs.adapters.workers import Workers  # noqa: E402
from yamame_envs.suites.crafter import Crafter  # noqa: E402
from yamame_envs.suites.crafter_env import CrafterEnv  # noqa: E402
from yamame_envs.suites.crafter_game import Game  # noqa: E402
from yamame_envs.suites.crafter_goals import parse_goal  # noqa: E402
from yamame_envs.suites.crafter_pictures import Painter  # noqa: E402

MODES = ("textures", "crop", "render")
NOOP, LEFT, RIGHT, UP, DOWN, DO, SLEEP = range(7)
PLACE_STONE, PLACE_TABLE = 7, 8


def make(**settings):
    defaults = {"observation": "textures", "num_goals": 5, "min_goals": 1, "instruction": None}
    return CrafterEnv(**{**defaults, "task": "instructions", **settings})


def asking(*goals, **settings):
    env = make(instruction=list(goals), **settings)
    env.reset(seed=3)
    return env


def random_actions(seed, count):
    return np.random.default_rng(seed).integers(17, size=count).tolist()


def digest(env, seed, steps):
    """A fingerprint of everything seen and paid; the player is healed so that much happens."""
    seen, _ = env.reset(seed=seed)
    sums = hashlib.md5()
    for action in random_actions(seed, steps):
        env.game.player.health = 9
        for name in sorted(seen):
            sums.update(np.ascontiguousarray(seen[name]).tobytes())
        seen, reward, *_ = env.step(action)
        sums.update(np.float64(reward).tobytes())
    sums.update(env.game.world._obj_map.tobytes())
    return sums.hexdigest()


def library_game(seed):
    """The package's own game without its pictures; creatures of a chunk are in the order of their
    places.
    """
    game = crafter.Env(seed=seed, length=None)
    game._obs = lambda: None
    balance = game._balance_chunk
    game._balance_chunk = lambda chunk, objects: balance(
        chunk, sorted(objects, key=lambda thing: tuple(thing.pos))
    )
    return game


def library_picture(library, game, size=None):
    own, library._world.random = library._world.random, game.noise()
    picture = library.render(size)
    library._world.random = own
    return picture


@pytest.fixture(scope="module")
def played():
    """900 steps, day and night, of the package's game and ours; what differed, and what was
    compared.
    """
    library, game = library_game(5), Game()
    game.begin(11)  # another world before it
    for _ in range(30):
        game.step(RIGHT)
    library.reset()
    game.begin(5)
    small, large = Painter(game, 7), Painter(game, 48)
    gaps, nights, sleeps = [], 0, 0
    for step, action in enumerate(random_actions(0, 900)):
        _, reward, _, info = library.step(action)
        _, own = game.step(action)
        x, y = game.position
        outside = np.pad(info["semantic"].astype(int) + 1, 4)
        gaps.append(
            {
                "materials": np.array_equal(library._world._mat_map, game.world._mat_map),
                "objects": np.array_equal(library._world._obj_map, game.world._obj_map),
                "inventory": info["inventory"] == game.player.inventory,
                "achievements": info["achievements"] == game.player.achievements,
                "reward": reward == own,
                "textures": np.array_equal(outside[x : x + 9, y + 1 : y + 8].T, game.textures()),
            }
        )
        if step % 10 == 0:
            drawn = small.picture()
            picture = library_picture(library, game)
            gaps[-1]["picture"] = (
                np.array_equal(picture[:63, :63], drawn) and not picture[63:].any()
            )
            nights += game.world.daylight < 0.5
            sleeps += game.player.sleeping
        if step % 100 == 0:
            gaps[-1]["large"] = np.array_equal(
                library_picture(library, game, (432, 432)), large.picture()
            )
        if info["inventory"]["health"] < 5:
            library._player.health = game.player.health = 9
            library._last_health = game.library._last_health = 9
    return gaps, nights, sleeps


@pytest.mark.parametrize(
    "what",
    ["materials", "objects", "inventory", "achievements", "reward", "textures", "picture", "large"],
)
def test_the_game_is_the_package_s_own(played, what):
    gaps, _, _ = played
    found = [gap[what] for gap in gaps if what in gap]
    assert len(found) >= 9
    assert all(found)


def test_the_comparison_saw_the_night_and_sleep(played):
    _, nights, sleeps = played
    assert nights > 10
    assert sleeps > 3


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_plays_the_same_episode_in_a_used_object_too(mode):
    fresh, used = make(observation=mode), make(observation=mode)
    other = digest(used, 8, 40)
    assert digest(used, 7, 120) == digest(fresh, 7, 120) != other


def digest_elsewhere(hash_seed, seed=5):
    """The digest of a process with other addresses in memory, which does no more than play."""
    code = [
        "import hashlib, numpy as np",
        "from yamame_envs.suites.crafter_env import CrafterEnv",
        f"litter = [object() for _ in range({hash_seed * 7919})]",
        *(inspect.getsource(function) for function in (make, random_actions, digest)),
        f"print(digest(make(), {seed}, 400))",
    ]
    variables = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "\n".join(code)]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True, timeout=200
    )
    return done.stdout.strip()


def test_the_same_seed_plays_the_same_episode_in_every_process():
    here = digest(make(), 5, 400)
    assert digest_elsewhere(1) == here
    assert digest_elsewhere(2) == here
    assert digest(make(), 6, 400) != here


def test_looking_changes_nothing_that_happens():
    def play(look):
        env = make(render_mode="rgb_array")
        env.reset(seed=1)
        env.game.library._step = 180  # night
        for action in random_actions(1, 60):
            env.game.player.health = 9
            env.step(action)
            if look:
                assert np.array_equal(env.render(), env.render())
        assert env.game.world.daylight < 0.5
        return env.game.world._obj_map.copy(), env.game.world.random.randint(2**30)

    (seen, after), (unseen, also) = play(True), play(False)
    assert np.array_equal(seen, unseen)
    assert after == also


def test_the_modes_show_the_same_game():
    envs = {mode: make(observation=mode) for mode in MODES}
    for env in envs.values():
        env.reset(seed=2)
    for action in random_actions(2, 50):
        shown = {mode: env.step(action) for mode, env in envs.items()}
        seen = {mode: step[0] for mode, step in shown.items()}
        assert len({step[1:3] for step in shown.values()}) == 1
        assert np.array_equal(seen["crop"]["image"], seen["render"]["image"][:48])
        assert np.array_equal(seen["crop"]["inventory"], seen["textures"]["status"][2:18])
        assert np.array_equal(seen["crop"]["achieved"], seen["textures"]["achieved"])


def test_textures_are_seen_as_on_the_screen():
    env = asking("eat cow")
    game = env.game
    ids = {name: number + 1 for number, name in game.world._mat_names.items()}
    x, y = game.position
    game.world[x, y - 2] = "diamond"  # above
    game.world[x + 4, y] = "lava"  # at the right border
    textures = env.step(NOOP)[0]["textures"]
    assert textures.shape == (7, 9)
    assert textures[3, 4] == game.materials + 1  # the player, first of the objects
    assert textures[1, 4] == ids["diamond"]
    assert textures[3, 8] == ids["lava"]
    assert textures.min() > 0
    game.world.move(game.player, (1, 62))
    corner = env.step(NOOP)[0]["textures"]
    assert not corner[:, :3].any()
    assert not corner[5:].any()
    assert corner[:5, 3:].all()


def test_the_status_is_direction_items_place_and_daylight():
    env = asking("eat cow")
    env.game.player.inventory["iron_sword"] = 1
    status = env.step(LEFT)[0]["status"]
    x, y = env.game.position
    assert status[:2].tolist() == [-1, 0]
    assert status[2:6] == pytest.approx(0.9)
    assert status[17] == pytest.approx(0.1)
    assert status[18:20] == pytest.approx([(x - 30) / 60, (y - 30) / 60])
    assert status[20] == pytest.approx(env.game.world.daylight)


def test_goals_pay_in_order_and_the_last_ends_the_episode():
    env = asking("place table", "collect wood", "place table")
    goal = env.reset(seed=3)[0]["goal"]
    table, wood = parse_goal("place table"), parse_goal("collect wood")
    assert goal.tolist() == [list(table), list(wood), list(table), [-1] * 3, [-1] * 3]
    player, world = env.game.player, env.game.world
    ahead = tuple(int(c) for c in player.pos + np.array(player.facing))

    def work(material, action):
        world[ahead] = material
        player.inventory["wood"] = 5
        seen, reward, terminated, truncated, info = env.step(action)
        assert not truncated
        assert info == {"success": terminated}
        return seen, reward, terminated

    seen, reward, terminated = work("tree", DO)  # not asked yet
    assert (reward, terminated) == (0.0, False)
    assert seen["achieved"][0].tolist() == list(wood)
    assert seen["achieved_mask"].tolist() == [1, 0, 0]
    seen, reward, terminated = work("grass", PLACE_TABLE)
    assert (reward, terminated) == (1.0, False)
    assert (seen["goal"][0] == -3).all()
    assert seen["goal"][1].tolist() == list(wood)
    assert work("grass", PLACE_TABLE)[1:] == (0.0, False)  # asked, but not now
    assert work("tree", DO)[1:] == (1.0, False)
    seen, reward, terminated = work("grass", PLACE_TABLE)
    assert (reward, terminated) == (1.0, True)
    assert (seen["goal"][:3] == -3).all()
    assert (seen["goal"][3:] == -1).all()


def test_a_goal_twice_in_a_row_needs_two_steps():
    env = asking("travel 30m 30m", "travel 30m 30m")
    assert not env.reset(seed=3)[0]["achieved_mask"].any()
    env.game.world.move(env.game.player, (31, 31))
    assert [env.step(NOOP)[1:3] for _ in range(2)] == [(1.0, False), (1.0, True)]


def test_three_goals_can_hold_at_once_and_only_one_completes():
    env = asking("wake up", "place stone", "travel 30m 30m")
    player, world = env.game.player, env.game.world
    world.move(player, (31, 31))
    world[(31, 32)] = "grass"
    player.facing, player.sleeping = (0, 1), True
    player.inventory["stone"] = 1
    seen, reward, terminated, *_ = env.step(PLACE_STONE)
    held = {tuple(goal) for goal in seen["achieved"].astype(int).tolist()}
    assert held == {parse_goal(goal) for goal in ("wake up", "place stone", "travel 30m 30m")}
    assert seen["achieved_mask"].tolist() == [1, 1, 1]
    assert (reward, terminated) == (1.0, False)
    assert (seen["goal"] == -3).all(-1).tolist() == [True, False, False, False, False]


def test_death_ends_an_episode_without_success():
    env = asking("eat cow")
    env.game.world[tuple(env.game.player.pos + np.array([1, 0]))] = "lava"
    seen, reward, terminated, truncated, info = env.step(RIGHT)
    assert (reward, terminated, truncated, info) == (0.0, True, False, {"success": False})
    assert (seen["goal"][0] >= 0).all()


def test_without_instructions_the_game_pays_its_own_reward():
    env, library = make(task="undirected"), library_game(9)
    library.reset()
    seen, _ = env.reset(seed=9)
    total = 0.0
    for action in random_actions(9, 300):
        _, expected, done, _ = library.step(action)
        seen, reward, terminated, *_ = env.step(action)
        total += reward
        assert (reward, terminated) == (expected, bool(done))
        assert (seen["goal"] == -1).all()
        if done:
            break
    assert total > 0


def test_the_environment_of_one_row_needs_no_torch():
    code = (
        "import sys; from yamame_envs.suites.crafter_env import Game; Game(); "
        "assert not {'torch', 'tensordict'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.parametrize("task", ["instructions", "tech_tree"])
def test_the_seed_decides_the_instruction(task):
    env = make(task=task, min_goals=2)
    drawn = {}
    for seed in (*range(6), *range(6)):
        env.reset(seed=seed)
        assert drawn.setdefault(seed, env.instruction) == env.instruction
        assert 2 <= len(env.instruction) <= 5
    assert len(set(map(tuple, drawn.values()))) > 4


@pytest.mark.parametrize("mode", MODES)
def test_the_environment_of_one_row_keeps_gymnasium_s_rules(mode):
    check_env(make(observation=mode, render_mode="rgb_array"), skip_render_check=True)


def test_the_picture_is_the_game_alone():
    env = make(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (432, 432, 3)
    assert env.render().dtype == np.uint8
    assert make().render() is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"observation": "pixels"},
            "observation must be one of textures, crop, render, got 'pixels'",
        ),
        ({"task": "free"}, "task must be one of instructions, tech_tree, undirected, got 'free'"),
        ({"num_goals": 0}, "num_goals must be at least 1, got 0"),
        ({"min_goals": 0}, r"min_goals must be in 1\.\.5, got 0"),
        ({"min_goals": 6}, r"min_goals must be in 1\.\.5, got 6"),
        (
            {"min_goals": 13, "num_goals": 20, "task": "tech_tree"},
            r"min_goals must be in 1\.\.12, got 13",
        ),
        ({"instruction": "eat cow"}, r"instruction must be a list of 1\.\.5 .*, got 'eat cow'"),
        ({"instruction": []}, r"instruction must be a list of 1\.\.5 .*, got \[\]"),
        (
            {"instruction": ["eat cow"] * 2, "num_goals": 1},
            r"instruction must be a list of 1\.\.1 .*",
        ),
        ({"instruction": ["fly"]}, "goal must be one of collect drink, .*, got 'fly'"),
        (
            {"instruction": ["eat cow"], "task": "undirected"},
            "task must be 'instructions' .*'undirected'",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"Crafter: {message}"):
        Crafter(**settings)


def play(env, seed):
    """One episode of random actions: rows of what was seen, ``[L, ...]``, and the rewards on
    arrival, ``[L]``.
    """
    seen, _ = env.reset(seed=seed)
    rows, rewards = [seen], [0.0]
    for action in random_actions(seed + 10**6, 2500):
        seen, reward, terminated, _, info = env.step(action)
        rows.append(seen)
        rewards.append(reward)
        if terminated:
            break
    return (
        {name: np.stack([row[name] for row in rows]) for name in rows[0]},
        np.array(rewards),
        info,
    )


@pytest.mark.parametrize(
    "goals",
    [
        ["travel 30m 30m", "collect sapling", "travel 30m 35m"],
        ["travel 30m 30m"] * 3,
        ["collect sapling", "place plant"],
    ],
)
def test_rewards_are_those_that_the_achieved_goals_give(goals):
    env = make(instruction=goals)
    paid = 0
    for seed in range(8):
        rows, rewards, info = play(env, seed)
        tensors = {
            name: torch.from_numpy(rows[name])[None]
            for name in ("goal", "achieved", "achieved_mask")
        }
        mask = torch.ones(tensors["goal"].shape[:2], dtype=torch.bool)
        times = yamame.goals.completion_times(
            tensors["goal"][:, 0], tensors["achieved"], tensors["achieved_mask"].bool(), mask
        )
        done = times[times < len(rewards)].tolist()
        assert np.flatnonzero(rewards).tolist() == done
        assert info["success"] == (
            len(done) == yamame.goals.num_goals(tensors["goal"][0, 0]).item()
        )
        active = torch.tensor(
            [[sum(time <= step for time in done) for step in range(len(rewards))]]
        )
        assert torch.equal(yamame.goals.show(tensors["goal"][:, :1], active), tensors["goal"])
        paid += len(done)
    assert paid > 0


def random_policy(episodes):
    env = make()
    played = [play(env, seed) for seed in range(episodes)]
    returns = np.array([rewards.sum() for _, rewards, _ in played])
    lengths = np.array([len(rewards) - 1 for _, rewards, _ in played])
    return returns, lengths


def check_random_policy(returns, lengths):
    """Within 3 combined standard errors of 500 episodes of the source: return 0.10 +- 0.34, length
    169.
    """
    noise = (1 / 500 + 1 / len(returns)) ** 0.5
    assert abs(returns.mean() - 0.10) < 3 * 0.34 * noise
    assert abs((returns > 0).mean() - 0.09) < 3 * (0.09 * 0.91) ** 0.5 * noise
    assert abs(lengths.mean() - 169) < 3 * lengths.std() * noise


def test_a_random_policy_fares_as_published():
    check_random_policy(*random_policy(40))


@pytest.mark.slow
def test_many_random_episodes_fare_as_published():
    returns, lengths = random_policy(500)
    check_random_policy(returns, lengths)
    with pytest.raises(AssertionError):
        check_random_policy(returns + 0.1, lengths)
    with pytest.raises(AssertionError):
        check_random_policy(returns, lengths * 1.2)


@pytest.mark.parametrize("mode", MODES)
def test_the_batched_environment_keeps_its_specs(mode):
    env = Crafter(observation=mode, num_goals=3, time_limit=4, num_envs=2)
    check_env_specs(env)
    env.close()


def test_the_batched_environment_plays_the_task_seeds_and_ends_at_the_limit():
    env = Crafter(instruction=["eat cow"], time_limit=20, num_envs=2)
    seeds = torch.tensor([[3], [4]])
    start = env.reset(TensorDict({"task_seed": seeds}, [2]))
    row = make(instruction=["eat cow"])
    assert start["textures"].dtype == torch.int64
    for index, seed in enumerate(seeds.flatten().tolist()):
        assert np.array_equal(row.reset(seed=seed)[0]["textures"], start["textures"][index])
    played = env.rollout(20, lambda td: td.set("action", torch.zeros_like(env.action_spec.zero())))
    assert played["next", "terminated"][:, -1].all()
    assert not played["next", "terminated"][:, :-1].any()
    assert played["next", "time"][0, -1] == 1
    assert env.render(1).shape == (432, 432, 3)
    env.close()


def test_success_is_told_where_there_is_an_instruction():
    directed, undirected = Crafter(num_goals=1), Crafter(task="undirected")
    assert "success" in directed.observation_spec
    assert "success" not in undirected.observation_spec


def test_worker_processes_play_the_same_game():
    settings = {"num_envs": 2, "time_limit": 30, "num_goals": 2, "seed": 5}
    here, there = Crafter(**settings), Crafter(**settings, workers=Workers(num_processes=1))
    torch.manual_seed(0)
    expected = here.rollout(40, break_when_any_done=False)
    torch.manual_seed(0)
    played = there.rollout(40, break_when_any_done=False)
    there.close()
    for name in (
        "textures",
        "status",
        "goal",
        "achieved",
        "action",
        ("next", "reward"),
        ("next", "done"),
    ):
        assert torch.equal(expected[name], played[name]), name


def test_an_instruction_may_be_set_and_holds_for_all_rows_until_goals_are_drawn_again():
    env = Crafter(num_envs=2, num_goals=2, seed=5)
    drawn = env.reset()
    env.set_instruction("eat cow, travel 10m 20m")
    with pytest.raises(RuntimeError, match="reset must be called before step"):
        env.step(env.rand_action(TensorDict({}, [2])))
    env.set_seed(5)
    asked = env.reset()
    assert (
        asked["goal"].tolist()
        == [[list(parse_goal("eat cow")), list(parse_goal("travel 10m 20m"))]] * 2
    )
    assert torch.equal(asked["textures"], drawn["textures"])
    env.set_instruction(None)
    env.set_seed(5)
    assert torch.equal(env.reset()["goal"], drawn["goal"])
    with pytest.raises(ValueError, match=r"instruction must be a list of 1..2 \(num_goals\) goals"):
        env.set_instruction("eat cow, eat cow, eat cow")
    with pytest.raises(ValueError, match=r"task must be 'instructions'"):
        Crafter(task="undirected").set_instruction("eat cow")
