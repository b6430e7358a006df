import numpy as np
import pytest
import torch
from torchrl.envs.utils import check_env_specs
from yamame_envs.frozenlake import MetaFrozenLake, crossable, draw_lakes
from yamame_envs.rendering import CELL, Palette
from yamame_envs.streams import fold, uniform

MOVES = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
MODES = [
    {},
    {"hard": True},
    {"recover": True},
    {"slip": 0.3},
    {"hard": True, "recover": True, "slip": 0.2},
]
NAMES = ["easy", "hard", "recover", "slip", "all"]


class Walker:
    """The rules for one lake, step by step. Chance is asked for by name."""

    def __init__(self, size, trials, holes, swapped, chance, hard=False, recover=False, slip=0.0):
        self.size, self.trials, self.holes, self.chance = size, trials, holes, chance
        self.hard, self.recover, self.slip = hard, recover, slip
        self.moves = [MOVES[i] for i in ([0, 3, 2, 1, 4] if swapped else range(5))]
        self.limit = round(size * size * (2 if hard else 1) / (1 - slip))
        self.t, self.trial = 0, 0
        self.begin()

    def begin(self):
        self.ice = [list(row) for row in self.holes]
        self.place, self.trial_step, self.begins = (0, 0), 0, True

    def inside(self, i, j):
        return min(max(i, 0), self.size - 1), min(max(j, 0), self.size - 1)

    def step(self, action):
        move = self.moves[action]
        if self.chance("slip", self.t) < self.slip:
            move = (0, 0)
        target = self.inside(self.place[0] + move[0], self.place[1] + move[1])
        if self.hard and target != self.place and self.chance("crack", self.t) < 0.33:
            self.ice[self.place[0]][self.place[1]] = True
        reward, over = 0.0, False
        crossed = target == (self.size - 1, self.size - 1)
        if crossed:
            reward, over = 1.0, True
        if self.ice[target[0]][target[1]]:
            if self.recover:
                reward, target = -0.1, self.place
            else:
                over = True
        self.place, self.begins = target, False
        self.t += 1
        self.trial_step += 1
        if self.trial_step == self.limit:
            over = True
        done = False
        if over:
            self.trial += 1
            done = self.trial == self.trials
            if not done:
                self.begin()
        return reward, done and crossed, done

    def observation(self):
        i, j = self.place
        if self.hard and self.chance("look", self.t) < 0.25:
            error = [int(3 * self.chance(name, self.t)) - 1 for name in ("row", "column")]
            i, j = self.inside(i + error[0], j + error[1])
        return [i / self.size, j / self.size, float(self.begins), self.trial / self.trials]


def walker_of(env, row, size, trials, mode):
    seed = env.env_state.task["task_seed"][row].clone()
    holes = env.env_state.task["holes"][row].view(size, size).tolist()
    t = torch.arange(env.time_limit + 1)
    steps, looks = uniform(fold(seed, 3, t), 2).tolist(), uniform(fold(seed, 2, t), 3).tolist()
    places = {
        "slip": (steps, 0),
        "crack": (steps, 1),
        "look": (looks, 0),
        "row": (looks, 1),
        "column": (looks, 2),
    }

    def chance(name, t):
        table, index = places[name]
        return table[t][index]

    swapped = mode.get("hard", False) and uniform(fold(seed, 1)).item() < 0.5
    return Walker(size, trials, holes, swapped, chance, **mode)


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_specs_describe_what_is_returned(mode):
    env = MetaFrozenLake(num_envs=3, size=3, num_trials=2, **mode)
    check_env_specs(env, break_when_any_done="both")


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
def test_every_step_follows_the_rules(mode):
    n, size, trials = 12, 4, 3
    env = MetaFrozenLake(num_envs=n, size=size, num_trials=trials, seed=5, **mode)
    td = env.reset()
    walkers = [walker_of(env, row, size, trials, mode) for row in range(n)]
    seen = {"crossed": 0, "fell": 0, "won": 0, "done": 0, "lost": 0}
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor([0.1, 0.3, 0.15, 0.3, 0.15]).expand(n, 5)
    for _ in range(300):
        assert td["observation"].numpy() == pytest.approx(
            np.array([w.observation() for w in walkers])
        )
        assert td["trial_start"][:, 0].tolist() == [w.begins for w in walkers]
        action = torch.multinomial(weights, 1, generator=generator)[:, 0]
        step, td = env.step_and_maybe_reset(td.set("action", action))
        after = step["next"]
        outcomes = [walker.step(a) for walker, a in zip(walkers, action.tolist(), strict=True)]
        rewards, successes, dones = (list(column) for column in zip(*outcomes, strict=True))
        assert after["reward"][:, 0].tolist() == pytest.approx(rewards)
        assert after["success"][:, 0].tolist() == successes
        assert after["terminated"][:, 0].tolist() == dones
        assert not after["truncated"].any()
        assert after["observation"].numpy() == pytest.approx(
            np.array([w.observation() for w in walkers])
        )
        begins = [w.begins and not done for w, done in zip(walkers, dones, strict=True)]
        assert after["trial_start"][:, 0].tolist() == begins
        for row, (reward, success, done) in enumerate(outcomes):
            seen["crossed"] += reward == 1
            seen["fell"] += reward == pytest.approx(-0.1)
            seen["won"] += success
            seen["done"] += done
            seen["lost"] += done and not success
            if done:
                walkers[row] = walker_of(env, row, size, trials, mode)
    assert seen["crossed"] > seen["won"] > 0
    assert seen["done"] > 10
    assert seen["lost"] > 0
    assert (seen["fell"] > 50) == mode.get("recover", False)


def test_lakes_can_be_crossed_exactly_where_gymnasium_says_so():
    frozen_lake = pytest.importorskip(
        "gymnasium.envs.toy_text.frozen_lake", reason="needs gymnasium"
    )
    holes = uniform(torch.arange(400), 6, 6) < 0.35
    holes[:, 0, 0] = holes[:, -1, -1] = False
    boards = [[["FH"[cell] for cell in row] for row in lake] for lake in holes.int().tolist()]
    for board in boards:
        board[-1][-1] = "G"
    expected = [frozen_lake.is_valid(board, 6) for board in boards]
    assert crossable(holes).tolist() == expected
    assert 100 < sum(expected) < 300


def test_a_winding_way_is_found():
    rows = ["..........", "#########.", "..........", ".#########", ".........."]
    holes = torch.tensor(
        [[cell == "#" for cell in row] for row in rows + ["#########."] + [".........."] * 4]
    )
    assert crossable(holes[None]).tolist() == [True]
    holes[4, 5] = True
    assert crossable(holes[None]).tolist() == [False]


@pytest.mark.parametrize("size", [4, 5, 8])
def test_lakes_are_distributed_as_gymnasiums(size):
    frozen_lake = pytest.importorskip(
        "gymnasium.envs.toy_text.frozen_lake", reason="needs gymnasium"
    )
    n = 3000
    other = torch.tensor(
        [
            [[c == "H" for c in row] for row in frozen_lake.generate_random_map(size, seed=s)]
            for s in range(n)
        ]
    ).double()
    ours = draw_lakes(torch.arange(n), size)
    assert crossable(ours).all()
    ours = ours.double()
    for statistic in (
        lambda lakes: lakes.flatten(1),  # every cell
        lambda lakes: lakes.sum((1, 2)).unsqueeze(-1),
        lambda lakes: (lakes.sum((1, 2)).unsqueeze(-1) == torch.arange(6)).double(),
        lambda lakes: (lakes[:, 0, 1] * lakes[:, 2, 2]).unsqueeze(-1),
        lambda lakes: (lakes[:, 1:] * lakes[:, :-1]).sum((1, 2)).unsqueeze(-1),
    ):
        a, b = statistic(ours), statistic(other)
        error = ((a.var(0) + b.var(0)) / n).sqrt()
        assert ((a.mean(0) - b.mean(0)).abs() <= 4.5 * error).all()


def test_a_lake_depends_on_its_seed_alone():
    keys = torch.arange(200)
    lakes = draw_lakes(keys, 5)
    assert torch.equal(draw_lakes(keys[[150, 3]], 5), lakes[[150, 3]])
    assert len(lakes.flatten(1).unique(dim=0)) > 190


def assert_probability(flags, p):
    assert abs(flags.double().mean() - p) < 4.5 * (p * (1 - p) / flags.numel()) ** 0.5


def test_hard_mode_swaps_two_actions_in_half_of_the_episodes():
    env = MetaFrozenLake(num_envs=4000, hard=True)
    env.reset()
    effects = env.env_state.task["effects"]
    swapped = (effects == torch.tensor([0, 3, 2, 1, 4])).all(1)
    assert ((effects == torch.arange(5)).all(1) | swapped).all()
    assert_probability(swapped, 0.5)


def test_hard_mode_misreads_a_quarter_of_the_places_within_the_lake():
    n = 6000
    env = MetaFrozenLake(num_envs=n, size=5, hard=True, recover=True)
    td = env.reset()
    rows = td["observation"][:, :2] * 5
    # Of a wrong place at the corner, each coordinate is 0 with probability 2/3 and 1 with
    # probability 1/3.
    for flags, p in (
        (rows[:, 0] > 0, 0.25 / 3),
        (rows[:, 1] > 0, 0.25 / 3),
        ((rows > 0).all(1), 0.25 / 9),
    ):
        assert_probability(flags, p)
    assert rows.max().round() == 1
    stay = torch.zeros(n, dtype=torch.int64)
    again = env.step(td.set("action", stay))["next"]["observation"][:, :2] * 5
    assert_probability(
        ((rows > 0) & (again > 0)).any(1), 2 * (1 / 12) ** 2 - (1 / 36) ** 2
    )  # anew every time


def test_hard_mode_cracks_the_ice_behind_a_third_of_the_moves_and_heals_it():
    n = 6000
    env = MetaFrozenLake(num_envs=n, hard=True, num_trials=2)
    td = env.reset()
    lake = env.env_state.task["holes"].clone()
    stay = torch.zeros(n, dtype=torch.int64)
    td = env.step_and_maybe_reset(td.set("action", stay))[1]
    up = torch.full((n,), 2)
    td = env.step_and_maybe_reset(td.set("action", up))[1]
    assert torch.equal(env.env_state.state["holes"], lake)  # no real move, no crack
    down = (env.env_state.task["effects"] == 1).int().argmax(1)
    td = env.step_and_maybe_reset(td.set("action", down))[1]
    walking = env.env_state.state["trial"] == 0
    assert_probability(env.env_state.state["holes"][walking, 0], 0.33)
    assert torch.equal(env.env_state.state["holes"][:, 1:], lake[:, 1:])
    for _ in range(2 * 25 - 3):
        td = env.step_and_maybe_reset(td.set("action", stay))[1]
    assert (env.env_state.state["trial"] == 1).all()
    assert torch.equal(env.env_state.state["holes"], lake)


def test_actions_slip_as_often_as_stated_and_attempts_may_take_longer():
    env = MetaFrozenLake(num_envs=6000, slip=0.2, recover=True)
    assert env.time_limit == 10 * 31
    td = env.reset()
    frozen = ~env.env_state.task["holes"][:, 5]
    down = torch.ones(6000, dtype=torch.int64)
    moved = env.step(td.set("action", down))["next", "observation"][:, 0] > 0
    assert_probability(~moved[frozen], 0.2)
    assert not moved[~frozen].any()


def test_an_attempt_ends_after_its_time_and_the_next_begins_at_once():
    env = MetaFrozenLake(num_envs=1, size=3, num_trials=2)
    td = env.reset()
    stay = torch.zeros(1, dtype=torch.int64)
    starts, shown, done = [], [], []
    for _ in range(18):
        step, td = env.step_and_maybe_reset(td.set("action", stay))
        starts.append(step["next", "trial_start"].item())
        shown.append(step["next", "observation"][0, 2:].tolist())
        done.append(step["next", "done"].item())
    assert [t for t, begins in enumerate(starts) if begins] == [8]
    assert [t for t, ended in enumerate(done) if ended] == [17]
    assert shown == [[0.0, 0.0]] * 8 + [[1.0, 0.5]] + [[0.0, 0.5]] * 8 + [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 1}, "MetaFrozenLake: size must be at least 2, got 1"),
        ({"num_trials": 0}, "MetaFrozenLake: num_trials must be at least 1, got 0"),
        ({"slip": 1.0}, r"MetaFrozenLake: slip must be in \[0, 1\), got 1.0"),
        ({"slip": -0.1}, r"MetaFrozenLake: slip must be in \[0, 1\), got -0.1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MetaFrozenLake(**settings)


def has(picture, cell, color):
    i, j = cell[0] + 1, cell[1] + 1  # the picture has a border
    part = picture[i * CELL : (i + 1) * CELL, j * CELL : (j + 1) * CELL]
    return bool((part == color).all(-1).any())


def test_the_picture_shows_holes_the_goal_and_the_moving_agent():
    env = MetaFrozenLake(num_envs=3, size=4)
    td = env.reset()
    picture, lake = env.render(1), env.env_state.task["holes"][1].view(4, 4)
    assert picture.shape == (6 * CELL, 6 * CELL, 3)
    for i in range(4):
        for j in range(4):
            assert has(picture, (i, j), Palette.WALL) == lake[i, j]
    assert has(picture, (3, 3), Palette.ACTIVE)
    assert has(picture, (0, 0), Palette.AGENT)
    action = 3 if lake[1, 0] else 1
    env.step_and_maybe_reset(td.set("action", torch.full((3,), action)))
    assert has(env.render(1), MOVES[action], Palette.AGENT)
    assert not has(env.render(1), (0, 0), Palette.AGENT)


def test_the_picture_shows_where_the_agent_is_told_to_be():
    env = MetaFrozenLake(num_envs=200, size=4, hard=True)
    misread = (env.reset()["observation"][:, :2] > 0).any(1)
    assert 0 < misread.sum() < 200
    for row in range(200):
        rings = sum(has(env.render(row), (i, j), Palette.AGENT) for i in range(2) for j in range(2))
        assert rings == 1 + misread[row]


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_does_not_exist_is_not_drawn(row):
    env = MetaFrozenLake(num_envs=2)
    env.reset()
    with pytest.raises(
        ValueError, match=f"MetaFrozenLake: env_id must be an env that was reset, got {row}"
    ):
        env.render(row)
