import pytest
import torch
from torchrl.envs.utils import check_env_specs
from yamame_envs.darkroom import DarkKeyDoor
from yamame_envs.rendering import CELL, Palette

WEST, NORTH, EAST, SOUTH, STAY = range(5)
MOVES = [(0, -1), (-1, 0), (0, 1), (1, 0), (0, 0)]
CONVENTIONS = ["soft_reset", "reset_step"]


class Room:
    """The rules for one room, step by step."""

    def __init__(self, env, row):
        task = env.env_state.task
        self.size, self.trial_limit, self.time_limit = env._size, env._trial_limit, env.time_limit
        self.soft = env._attempts == "soft_reset"
        self.start, self.key, self.door = (
            divmod(int(task[name][row]), self.size) for name in ("start", "key", "door")
        )
        self.actions = task["actions"][row].tolist() if "actions" in task else list(range(5))
        self.total, self.opened, self.attempt_is_over = 0, False, False
        self.begin_attempt()

    def begin_attempt(self):
        self.place, self.has_key, self.clock, self.trial_start = self.start, False, 0, True

    def walk(self, action):
        """Moves; returns the reward and whether the door was opened."""
        move = MOVES[self.actions[action]]
        self.place = tuple(
            min(max(p + m, 0), self.size - 1) for p, m in zip(self.place, move, strict=True)
        )
        self.trial_start = False
        if self.has_key:
            return float(self.place == self.door), self.place == self.door
        self.has_key = self.place == self.key
        return float(self.has_key), False

    def step(self, action):
        self.total += 1
        reward = self.soft_step(action) if self.soft else self.hard_step(action)
        done = self.total == self.time_limit
        return reward, done and self.opened, done

    def soft_step(self, action):
        """The limit is tested before the step is counted."""
        reward, opened = self.walk(action)
        too_long = self.clock >= self.trial_limit
        self.clock += 1
        if opened or too_long:
            self.opened = opened
            self.begin_attempt()
        return reward

    def hard_step(self, action):
        """An attempt ends with its last step, and one more step begins the next."""
        if self.attempt_is_over:
            self.attempt_is_over = False
            self.begin_attempt()
            return 0.0
        reward, opened = self.walk(action)
        self.clock += 1
        if opened or self.clock >= self.trial_limit:
            self.opened, self.attempt_is_over = opened, True
        return reward

    def observation(self, light):
        seen = [*self.place, self.size * self.has_key, self.size * self.clock / self.trial_limit]
        return [x / self.size for x in (*seen, *self.door, *self.key)[: 8 if light else 4]]


@pytest.mark.parametrize("attempts", CONVENTIONS)
@pytest.mark.parametrize(
    "settings",
    [
        {"size": 3, "trial_limit": 6, "time_limit": 40},
        {"size": 2, "trial_limit": 1, "time_limit": 15, "light": True},
        {"size": 4, "trial_limit": 12, "time_limit": 50, "light": True, "randomize_actions": True},
        {"size": 4, "trial_limit": 30, "time_limit": 20},
    ],
)
def test_every_step_follows_the_rules(attempts, settings):
    n = 50
    env = DarkKeyDoor(num_envs=n, attempts=attempts, seed=3, **settings)
    light = settings.get("light", False)
    td = env.reset()
    rooms = [Room(env, row) for row in range(n)]
    generator = torch.Generator().manual_seed(0)
    rewards = starts = won = 0
    for _ in range(110):
        seen = td["observation"].tolist()
        assert seen == [pytest.approx(room.observation(light)) for room in rooms]
        assert td["trial_start"][:, 0].tolist() == [room.trial_start for room in rooms]
        action = torch.randint(5, (n,), generator=generator)
        step, td = env.step_and_maybe_reset(td.set("action", action))
        after = step["next"]
        expected = [room.step(a) for room, a in zip(rooms, action.tolist(), strict=True)]
        for name, values in zip(
            ("reward", "success", "terminated"), zip(*expected, strict=True), strict=True
        ):
            assert after[name][:, 0].tolist() == list(values), name
        assert after["observation"].tolist() == [
            pytest.approx(room.observation(light)) for room in rooms
        ]
        assert after["trial_start"][:, 0].tolist() == [room.trial_start for room in rooms]
        rewards += after["reward"].sum()
        starts += after["trial_start"].sum()
        won += after["success"].sum()
        rooms = [Room(env, row) if expected[row][2] else room for row, room in enumerate(rooms)]
    assert rewards > n
    assert starts > n or settings["trial_limit"] > settings["time_limit"]
    assert won > 0 or settings["trial_limit"] == 1


def in_a_row(attempts, *, start, key, door, size=3, **settings):
    """An environment whose only room is the given one."""
    env = DarkKeyDoor(num_envs=1, size=size, attempts=attempts, **settings)
    td = env.reset()
    for name, cell in {"start": start, "key": key, "door": door}.items():
        env.env_state.task[name] = torch.tensor([cell[0] * size + cell[1]])
    env.env_state.state["cell"] = env.env_state.task["start"].clone()
    return env, td


def follow(env, td, actions):
    steps = []
    for action in actions:
        step, td = env.step_and_maybe_reset(td.set("action", torch.tensor([action])))
        steps.append(step["next"])
    return steps


def test_a_key_under_the_agent_and_a_door_under_the_key_take_a_step_each():
    env, td = in_a_row("soft_reset", start=(1, 1), key=(1, 1), door=(1, 1), trial_limit=9)
    steps = follow(env, td, [STAY, STAY, STAY])
    assert [s["reward"].item() for s in steps] == [1, 1, 1]
    assert [s["observation"][0, 2].item() for s in steps] == [1, 0, 1]
    assert [s["trial_start"].item() for s in steps] == [False, True, False]


def test_the_door_does_not_open_without_the_key_and_the_key_is_found_once():
    env, td = in_a_row("soft_reset", start=(1, 0), key=(1, 2), door=(1, 1), trial_limit=9)
    steps = follow(env, td, [EAST, EAST, STAY, EAST, WEST])
    assert [s["reward"].item() for s in steps] == [0, 1, 0, 0, 1]


def test_after_a_soft_reset_the_next_attempt_is_shown_at_once():
    env, td = in_a_row("soft_reset", start=(0, 0), key=(0, 1), door=(0, 2), trial_limit=4)
    steps = follow(env, td, [EAST, EAST, STAY])
    assert steps[1]["reward"].item() == 1
    assert steps[1]["observation"].tolist() == [[0, 0, 0, 0]]
    assert [s["trial_start"].item() for s in steps] == [False, True, False]
    assert steps[1]["prev_action"].argmax().item() == EAST
    assert steps[1]["prev_reward"].item() == 1
    assert not any(s["is_init"].item() or s["success"].item() for s in steps)


def test_a_step_of_its_own_begins_the_next_attempt_whatever_its_action():
    for action in range(5):
        env, td = in_a_row("reset_step", start=(0, 0), key=(0, 1), door=(0, 2), trial_limit=4)
        steps = follow(env, td, [EAST, EAST, action, EAST])
        assert [s["reward"].item() for s in steps] == [1, 1, 0, 1]
        torch.testing.assert_close(steps[1]["observation"], torch.tensor([[0, 2 / 3, 1, 2 / 4]]))
        assert steps[2]["observation"].tolist() == [[0, 0, 0, 0]]
        assert [s["trial_start"].item() for s in steps] == [False, False, True, False]


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [("soft_reset", [5, 10, 15]), ("reset_step", [5, 10, 15])],
)
def test_a_failed_attempt_takes_one_step_more_than_its_limit(attempts, expected):
    env, td = in_a_row(attempts, start=(0, 0), key=(2, 2), door=(2, 2), trial_limit=4)
    steps = follow(env, td, [STAY] * 16)
    assert [t for t, s in enumerate(steps, 1) if s["trial_start"].item()] == expected
    clock = [round(4 * s["observation"][0, 3].item()) for s in steps[:5]]
    assert clock == [1, 2, 3, 4, 0]
    # Only a soft reset lets the last of these steps move: it can still reach the key.
    env, td = in_a_row(attempts, start=(0, 0), key=(0, 1), door=(2, 2), trial_limit=4)
    last = follow(env, td, [STAY] * 4 + [EAST])[-1]
    assert last["reward"].item() == (1 if attempts == "soft_reset" else 0)
    assert last["observation"][0, 2].item() == 0


@pytest.mark.parametrize("attempts", CONVENTIONS)
def test_success_is_that_of_the_last_completed_attempt_and_shown_at_the_end(attempts):
    opening = [EAST, EAST] if attempts == "soft_reset" else [EAST, EAST, STAY]
    failing = [STAY] * 5

    def successes(actions):
        env, td = in_a_row(
            attempts, start=(0, 0), key=(0, 1), door=(0, 2), trial_limit=4, time_limit=len(actions)
        )
        steps = follow(env, td, actions)
        assert [s["done"].item() for s in steps] == [False] * (len(actions) - 1) + [True]
        return [s["success"].item() for s in steps]

    def at_the_end(actions, value):
        assert successes(actions) == [False] * (len(actions) - 1) + [value]

    at_the_end(failing + opening, True)
    at_the_end([*failing, EAST, EAST], True)
    at_the_end([*opening, STAY], True)  # an attempt that was not completed does not count
    at_the_end(opening + failing, False)
    at_the_end([EAST], False)


def test_start_key_and_door_are_drawn_independently_and_evenly():
    task = DarkKeyDoor(size=4).draw_tasks(torch.arange(16_000))
    for first, second in (("start", "key"), ("start", "door"), ("key", "door")):
        counts = torch.bincount(16 * task[first] + task[second], minlength=256).double()
        expected = 16_000 / 256
        # 255 degrees of freedom: the standard deviation is 22.6.
        assert abs((((counts - expected) ** 2) / expected).sum() - 255) < 5 * 22.6


def test_actions_are_permuted_anew_in_every_episode_and_kept_within_it():
    env = DarkKeyDoor(num_envs=64, size=3, trial_limit=2, randomize_actions=True)
    td = env.reset()
    first = env.env_state.task["actions"].clone()
    assert torch.equal(first.sort(-1).values, torch.arange(5).expand(64, 5))
    assert first.unique(dim=0).shape[0] > 30
    for _ in range(10):
        td = env.step_and_maybe_reset(td.set("action", torch.zeros(64, dtype=torch.int64)))[1]
    assert torch.equal(env.env_state.task["actions"], first)
    env.reset()
    assert (env.env_state.task["actions"] != first).any(1).sum() > 50


def play(env, choose):
    """Plays one episode: returns ``[N]``."""
    td = env.reset()
    total = torch.zeros(env.batch_size[0])
    for _ in range(env.time_limit):
        step, td = env.step_and_maybe_reset(td.set("action", choose(td)))
        total += step["next", "reward"][:, 0]
    assert step["next", "done"].all()
    return total


@pytest.mark.parametrize(
    ("settings", "published", "reference", "error"),
    [
        ({"attempts": "soft_reset"}, 2.58, 2.629, 0.025),
        ({"attempts": "reset_step"}, 2.55, 2.579, 0.026),
        ({"attempts": "reset_step", "size": 8}, 3.1, 3.309, 0.029),
        ({"attempts": "reset_step", "time_limit": 50}, 0.24, 0.2754, 0.0041),
    ],
)
def test_random_play_earns_the_known_return(settings, published, reference, error):
    """``reference`` and its standard ``error`` were measured with the rules in plain Python.

    The errors of the published returns are not known: they are allowed those of 1,000 episodes, and
    half a unit of their last digit.
    """
    n = 4000
    env = DarkKeyDoor(num_envs=n, seed=1, **settings)
    generator = torch.Generator().manual_seed(0)
    total = play(env, lambda td: torch.randint(5, (n,), generator=generator))
    own = total.std() / n**0.5
    assert abs(total.mean() - reference) < 3 * (own**2 + error**2) ** 0.5
    assert abs(total.mean() - published) < 0.05 + 3 * (own**2 + total.var() / 1000) ** 0.5


def towards(place, target):
    """A shortest way: rows first, then columns."""
    row, column = (target - place).unbind(-1)
    along = torch.where(column < 0, WEST, torch.where(column > 0, EAST, STAY))
    return torch.where(row < 0, NORTH, torch.where(row > 0, SOUTH, along))


@pytest.mark.parametrize(
    ("settings", "published", "spread"),
    [
        ({"attempts": "soft_reset"}, 100, 53),
        ({"attempts": "reset_step", "light": True}, 89, 39),
        ({"attempts": "soft_reset", "size": 8, "light": True}, 114, None),
        ({"attempts": "reset_step", "size": 8}, 100, None),
    ],
)
def test_who_knows_the_room_earns_the_known_return(settings, published, spread):
    n, light = 2000, settings.get("light", False)
    env = DarkKeyDoor(num_envs=n, seed=2, **settings)
    size = env._size

    def choose(td):
        seen = td["observation"]
        if light:
            door, key = (seen[:, 4:] * size).round().view(-1, 2, 2).unbind(1)
        else:
            cells = (env.env_state.task[name] for name in ("door", "key"))
            door, key = (torch.stack([cell // size, cell % size], -1) for cell in cells)
        return towards((seen[:, :2] * size).round(), torch.where(seen[:, 2:3] > 0, door, key))

    total = play(env, choose)
    # The published figure may stem from as few as 1,000 rooms.
    assert abs(total.mean() - published) < 0.5 + 3 * (total.var() / n + total.var() / 1000) ** 0.5
    if spread is not None:
        assert abs(total.std() - spread) < 5


@pytest.mark.parametrize("attempts", CONVENTIONS)
def test_specs_describe_what_is_returned(attempts):
    for light in (False, True):
        env = DarkKeyDoor(
            num_envs=3, size=3, trial_limit=4, time_limit=15, attempts=attempts, light=light
        )
        check_env_specs(env)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 1}, "DarkKeyDoor: size must be at least 2, got 1"),
        ({"trial_limit": 0}, "DarkKeyDoor: trial_limit must be at least 1, got 0"),
        ({"time_limit": 0}, "DarkKeyDoor: time_limit must be at least 1, got 0"),
        ({"attempts": "hard"}, r"DarkKeyDoor: attempts must be one of .*reset_step.*, got 'hard'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DarkKeyDoor(**settings)


def has(picture, cell, color):
    rows, columns = (slice((i + 1) * CELL, (i + 2) * CELL) for i in cell)
    return bool((picture[rows, columns] == color).all(-1).any())


def test_the_picture_shows_the_agent_and_what_it_has_to_reach():
    env, td = in_a_row("reset_step", start=(0, 0), key=(0, 1), door=(2, 2))
    before = env.render()
    assert before.shape == (5 * CELL, 5 * CELL, 3)
    assert before.dtype.name == "uint8"
    assert has(before, (0, 0), Palette.AGENT)
    assert has(before, (0, 1), Palette.ACTIVE)
    assert has(before, (2, 2), Palette.FUTURE)
    assert has(before, (-1, 0), Palette.WALL)
    follow(env, td, [EAST, SOUTH])
    after = env.render()
    assert has(after, (1, 1), Palette.AGENT)
    assert has(after, (0, 1), Palette.COMPLETED)
    assert has(after, (2, 2), Palette.ACTIVE)
    assert not has(after, (2, 2), Palette.FUTURE)


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_does_not_exist_is_not_drawn(row):
    env = DarkKeyDoor(num_envs=2)
    env.reset()
    with pytest.raises(
        ValueError, match=f"DarkKeyDoor: env_id must be an env that was reset, got {row}"
    ):
        env.render(row)
