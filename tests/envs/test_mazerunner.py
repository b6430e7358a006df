import pytest
import torch
from tensordict import TensorDict
from yamame.goals import GOAL_COMPLETED, GOAL_PAD
from yamame.timestep.specs import inputs_from_spec
from yamame_envs import MazeRunner
from yamame_envs.rendering import CELL, Palette

MOVES = [(0, -1), (-1, 0), (0, 1), (1, 0), (0, 0)]


class Walker:
    """The rules for one maze, step by step."""

    def __init__(self, walls, goals, limit):
        self.walls, self.goals, self.limit = walls, goals, limit
        self.place, self.active, self.t = (len(walls) - 2, len(walls) // 2), 0, 0

    def step(self, action):
        i, j = self.place[0] + MOVES[action][0], self.place[1] + MOVES[action][1]
        if not self.walls[i][j]:
            self.place = (i, j)
        self.t += 1
        reward = float(list(self.place) == self.goals[self.active])
        self.active += int(reward)
        success = self.active == len(self.goals)
        return reward, success, success or self.t == self.limit

    def observation(self):
        counts = []
        for di, dj in MOVES[:4]:
            i, j, steps = *self.place, 0
            while not self.walls[i + di][j + dj]:
                i, j, steps = i + di, j + dj, steps + 1
            counts.append(steps)
        return [x / len(self.walls) for x in (*self.place, *counts)]

    def shown(self, slots):
        goals = [[GOAL_COMPLETED] * 2] * self.active + self.goals[self.active :]
        return goals + [[GOAL_PAD] * 2] * (slots - len(goals))


def walker_of(env, row):
    task = env.env_state.task
    walls = task["walls"][row].view(env._size, env._size).tolist()
    goals = [goal for goal in task["instruction"][row].tolist() if goal[0] != GOAL_PAD]
    return Walker(walls, goals, env.time_limit)


@pytest.mark.parametrize("randomize", [False, True])
def test_every_step_follows_the_rules(randomize):
    env = MazeRunner(
        num_envs=6,
        size=7,
        num_goals=3,
        min_goals=1,
        time_limit=40,
        randomize_actions=randomize,
        seed=2,
    )
    td = env.reset()
    walkers = [walker_of(env, row) for row in range(6)]
    completed = 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        for row, walker in enumerate(walkers):
            assert td["observation"][row].tolist() == pytest.approx(walker.observation())
            assert td["goal"][row].tolist() == walker.shown(3)
            assert td["achieved"][row].tolist() == [list(walker.place)]
            assert td["achieved_mask"][row].tolist() == [True]
        action = torch.randint(5, (6,), generator=generator)
        effect = (
            env.env_state.task["actions"].gather(1, action[:, None])[:, 0] if randomize else action
        )
        step, td = env.step_and_maybe_reset(td.set("action", action))
        for row, walker in enumerate(walkers):
            reward, success, done = walker.step(int(effect[row]))
            after = step["next"][row]
            assert after["reward"].item() == reward
            assert after["success"].item() == success
            assert after["terminated"].item() == done
            assert after["observation"].tolist() == pytest.approx(walker.observation())
            assert after["goal"].tolist() == walker.shown(3)
            completed += int(reward)
            if done:
                walkers[row] = walker_of(env, row)
    assert completed > 20


def test_goals_are_distinct_free_cells_other_than_the_start():
    env = MazeRunner(num_envs=500, size=9, num_goals=4, min_goals=2)
    env.reset()
    instruction = env.env_state.task["instruction"]
    used = instruction[..., 0] != GOAL_PAD
    count = used.sum(1)
    assert torch.equal(used, torch.arange(4) < count[:, None])
    for row in range(500):
        walls = env.env_state.task["walls"][row].view(9, 9)
        goals = [tuple(goal) for goal in instruction[row, : count[row]].int().tolist()]
        assert len(set(goals)) == len(goals)
        assert (7, 4) not in goals
        assert not any(walls[goal] for goal in goals)
    # 500 draws of three numbers: the standard deviation of a count is 10.5.
    counts = torch.bincount(count, minlength=5)
    assert counts[:2].tolist() == [0, 0]
    assert ((counts[2:] - 500 / 3).abs() < 5 * 10.5).all()


def test_every_free_cell_is_a_goal_equally_often():
    env = MazeRunner(num_envs=2, size=9, num_goals=1)
    seed = torch.tensor([77])
    walls = env.draw_tasks(seed)["walls"]
    allowed = ~walls[0]
    allowed[7 * 9 + 4] = False
    goals = env._draw_goals(torch.arange(20_000), walls.expand(20_000, -1))[:, 0]
    counts = torch.bincount((goals[:, 0] * 9 + goals[:, 1]).long(), minlength=81).double()
    assert (counts[~allowed] == 0).all()
    expected, freedom = 20_000 / allowed.sum(), int(allowed.sum()) - 1
    assert ((counts[allowed] - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5


def test_actions_are_permuted_anew_in_every_episode_and_kept_within_it():
    env = MazeRunner(num_envs=64, randomize_actions=True)
    td = env.reset()
    first = env.env_state.task["actions"].clone()
    assert torch.equal(first.sort(-1).values, torch.arange(5).expand(64, 5))
    assert first.unique(dim=0).shape[0] > 30
    td = env.step(td.set("action", torch.zeros(64, dtype=torch.int64)))
    assert torch.equal(env.env_state.task["actions"], first)
    env.reset()
    assert (env.env_state.task["actions"] != first).any(1).sum() > 50


def test_reset_takes_an_instruction():
    env = MazeRunner(num_envs=2, size=9, num_goals=2)
    wanted = torch.tensor([[[6.0, 4.0], [7.0, 4.0]], [[6.0, 4.0], [GOAL_PAD, GOAL_PAD]]])
    td = env.reset(TensorDict({"instruction": wanted}, [2]))
    assert torch.equal(td["goal"], wanted)
    north = torch.ones(2, dtype=torch.int64)
    after = env.step(td.set("action", north))["next"]
    assert after["reward"].tolist() == [[1.0], [1.0]]
    assert after["success"].tolist() == [[False], [True]]
    restored = MazeRunner(num_envs=2, size=9, num_goals=2)
    restored.load_state_dict(env.state_dict())
    assert torch.equal(restored.env_state.task["instruction"], wanted)
    # The next episodes have goals of their own again.
    assert not torch.equal(env.reset()["goal"], wanted)


def test_a_goal_that_holds_at_the_start_is_not_paid_there():
    env = MazeRunner(num_envs=1, size=9, num_goals=1)
    td = env.reset(TensorDict({"instruction": torch.tensor([[[7.0, 4.0]]])}, [1]))
    assert not td["success"].item()
    assert td["goal"].tolist() == [[[7.0, 4.0]]]
    assert env.step(td.set("action", torch.tensor([4])))["next", "reward"].item() == 1.0


def test_a_masked_reset_takes_the_instruction_of_its_rows_only():
    env = MazeRunner(num_envs=2, size=9, num_goals=1)
    td = env.reset()
    before = td["goal"].clone()
    wanted = torch.full((2, 1, 2), 6.0)
    td = env.reset(td.set("_reset", torch.tensor([[False], [True]])).set("instruction", wanted))
    assert torch.equal(td["goal"], torch.stack([before[0], wanted[1]]))


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (
            torch.zeros(2, 3, 2),
            r"MazeRunner: instruction must be float32 \(2, 2, 2\), got 'torch.float32 \(2, 3, 2\)",
        ),
        (torch.zeros(2, 2, 2).double(), "got 'torch.float64"),
        (
            torch.full((2, 2, 2), GOAL_PAD),
            r"MazeRunner: instruction must hold .*, got 'no goal in envs \[0, 1\]'",
        ),
    ],
)
def test_an_instruction_of_another_form_is_refused(instruction, message):
    with pytest.raises(ValueError, match=message):
        MazeRunner(num_envs=2, num_goals=2).reset(TensorDict({"instruction": instruction}, [2]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 8}, "MazeRunner: size must be odd and at least 5, got 8"),
        ({"size": 3}, "MazeRunner: size must be at least 5, got 3"),
        ({"num_goals": 0}, r"MazeRunner: num_goals must be at least 1, got 0"),
        ({"num_goals": 22}, r"MazeRunner: num_goals must be in 1..21 at size 9, got 22"),
        ({"num_goals": 2, "min_goals": 3}, r"MazeRunner: min_goals must be in 1..2, got 3"),
        ({"num_goals": 2, "min_goals": 0}, r"MazeRunner: min_goals must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MazeRunner(**settings)


@pytest.mark.parametrize("size", [5, 7, 9])
def test_the_largest_allowed_number_of_goals_always_fits(size):
    most = 2 if size == 5 else 4 * (size - 2) - 7
    env = MazeRunner(num_envs=300, size=size, num_goals=most)
    env.reset()
    walls, goals = env.env_state.task["walls"], env.env_state.task["instruction"].long()
    assert not walls.gather(1, goals[..., 0] * size + goals[..., 1]).any()


@pytest.mark.parametrize(
    ("goals", "known", "tolerance"),
    [(1, 0.45, 0.005), (3, 0.65, 0.005)],
)
def test_random_play_earns_the_known_return(goals, known, tolerance):
    """The published returns are rounded to two digits; their own standard errors are not known."""
    env = MazeRunner(num_envs=1500, size=11, num_goals=goals, time_limit=250, seed=1)
    td = env.reset()
    generator = torch.Generator().manual_seed(0)
    total, running = torch.zeros(1500, 1), torch.ones(1500, 1)
    for _ in range(250):
        step, td = env.step_and_maybe_reset(
            td.set("action", torch.randint(5, (1500,), generator=generator))
        )
        total += running * step["next", "reward"]
        running *= ~step["next", "done"]
    assert not running.any()
    error = total.std() / 1500**0.5
    # Both are estimates: the known one is allowed as large an error as a run of 1,000 episodes.
    other = total.std() / 1000**0.5
    assert abs(total.mean() - known) < tolerance + 3 * (error**2 + other**2) ** 0.5


def cell_of(picture, cell):
    return picture[cell[0] * CELL : (cell[0] + 1) * CELL, cell[1] * CELL : (cell[1] + 1) * CELL]


def has(picture, cell, color):
    return bool((cell_of(picture, cell) == color).all(-1).any())


def test_the_picture_shows_walls_goals_and_the_moving_agent():
    env = MazeRunner(num_envs=2, size=9, num_goals=3)
    goals = torch.tensor([[6.0, 4.0], [4.0, 4.0], [4.0, 2.0]]).expand(2, 3, 2)
    td = env.reset(TensorDict({"instruction": goals.contiguous()}, [2]))
    before = env.render(1)
    assert before.shape == (9 * CELL, 9 * CELL, 3)
    assert before.dtype.name == "uint8"
    assert has(before, (7, 4), Palette.AGENT)
    assert has(before, (6, 4), Palette.ACTIVE)
    assert has(before, (4, 4), Palette.FUTURE)
    assert has(before, (0, 0), Palette.WALL)
    assert not has(before, (7, 4), Palette.WALL)
    td = env.step_and_maybe_reset(td.set("action", torch.ones(2, dtype=torch.int64)))[1]
    assert has(env.render(1), (6, 4), Palette.AGENT)
    assert not has(env.render(1), (7, 4), Palette.AGENT)
    env.step_and_maybe_reset(td.set("action", torch.ones(2, dtype=torch.int64)))
    after = env.render(1)
    assert has(after, (6, 4), Palette.COMPLETED)
    assert has(after, (4, 4), Palette.ACTIVE)
    assert has(after, (5, 4), Palette.AGENT)


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_does_not_exist_is_not_drawn(row):
    env = MazeRunner(num_envs=2)
    env.reset()
    with pytest.raises(
        ValueError, match=f"MazeRunner: env_id must be an env that was reset, got {row}"
    ):
        env.render(row)


def test_without_a_position_nothing_that_a_policy_reads_tells_where_the_agent_is():
    """An agent reads the same of two places with the same four sights, and other things of other
    places with it.
    """
    for position, differ in ((False, False), (True, True)):
        env = MazeRunner(num_envs=64, size=9, num_goals=2, position=position, seed=3)
        inputs = inputs_from_spec(env.observation_spec, batch_dims=1)
        assert inputs["observation"].shape == ((6,) if position else (4,))
        torch.manual_seed(0)
        steps = env.rollout(40, break_when_any_done=False)
        sights = steps["observation"][..., -4:]
        read = torch.cat(
            [steps[key].flatten(2).float() for key in ("observation", "prev_reward")], -1
        )
        told = {"time", "step_index", "prev_action", "trial_start", "observation", "prev_reward"}
        assert set(inputs) <= told  # the time, actions and rewards are those of the agent itself
        cells = (
            torch.cat([steps["achieved"][:, :, 0], sights, steps["prev_reward"]], -1)
            .flatten(0, 1)
            .unique(dim=0)
        )
        seen = torch.cat([sights, steps["prev_reward"]], -1).flatten(0, 1).unique(dim=0)
        number = len(read.flatten(0, 1).unique(dim=0))
        assert number == (len(cells) if differ else len(seen))
        assert len(cells) > len(seen) + 10


def test_a_position_changes_nothing_but_what_is_seen():
    settings = {"num_envs": 8, "size": 9, "num_goals": 2, "seed": 5}
    rollouts = []
    for position in (False, True):
        torch.manual_seed(1)
        rollouts.append(
            MazeRunner(**settings, position=position).rollout(50, break_when_any_done=False)
        )
    blind, seeing = rollouts
    for key in blind.keys(True, True):
        ours = seeing[key][..., 2:] if "observation" in key else seeing[key]
        assert torch.equal(blind[key], ours), key


class Everywhere(MazeRunner):
    """Maze in which every place is within the radius of every goal."""

    goal_radius = 100.0


@pytest.mark.parametrize(("maze", "first"), [(Everywhere, 1.0), (MazeRunner, 0.0)])
def test_a_goal_is_reached_within_the_radius_of_the_environment(maze, first):
    env = maze(size=11, num_goals=2, time_limit=20, num_envs=4, seed=3)
    steps = env.rollout(2, break_when_any_done=False)["next"]
    assert steps["reward"].flatten(1).eq(first).all()
    assert steps["success"][:, 1].eq(first == 1.0).all()
