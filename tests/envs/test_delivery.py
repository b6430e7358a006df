import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs
from yamame.goals import GOAL_COMPLETED, GOAL_PAD, completion_times, num_goals
from yamame_envs.delivery import PackageDelivery
from yamame_envs.rendering import CELL, Palette

FORWARD, LEFT, RIGHT, FIRST_BUTTON, NOTHING = 0, 1, 2, 3, 7


class Courier:
    """The rules for one road, step by step."""

    def __init__(self, length, branches, button, destinations, limit):
        self.length, self.branches, self.button, self.limit = length, branches, button, limit
        self.destinations, self.delivered = destinations, 0
        self.position, self.t, self.packages = 0, 0, 3 * len(destinations)
        self.placed, self.events = None, set()

    def step(self, action):
        self.t += 1
        self.placed, self.events = None, set()
        if self.position in self.branches:
            if action in (LEFT, RIGHT):
                right_way = self.branches[self.position] == action
                self.events.add("turned" if right_way else "strayed")
                self.position = self.position + 1 if right_way else 0
        elif action == FORWARD:
            self.position += 1
        elif FIRST_BUTTON <= action < NOTHING:
            self.press(action)
        if self.position == self.length:
            self.position = 0
            self.events.add("wrapped")
        reward = float(self.placed is not None and self.placed == self.destinations[self.delivered])
        if self.placed is not None:
            self.events.add("delivered" if reward else "wasted")
        self.delivered += int(reward)
        success = self.delivered == len(self.destinations)
        return reward, success, success or self.t == self.limit

    def press(self, action):
        if action == self.button and self.packages > 0 and self.position > 0:
            self.packages -= 1
            self.placed = self.position
        else:
            if action == self.button:
                self.events.add("pressed at 0" if self.packages > 0 else "ran out")
            self.position = 0

    def observation(self):
        return [float(self.position), float(self.packages), float(self.position in self.branches)]

    def shown(self, slots):
        goals = [[GOAL_COMPLETED]] * self.delivered
        goals += [[float(place)] for place in self.destinations[self.delivered :]]
        return goals + [[GOAL_PAD]] * (slots - len(goals))


def courier_of(env, row):
    task = env.env_state.task
    branches = {cell: action for cell, action in enumerate(task["onward"][row].tolist()) if action}
    destinations = [int(goal) for [goal] in task["instruction"][row].tolist() if goal != GOAL_PAD]
    return Courier(env._length, branches, int(task["button"][row]), destinations, env.time_limit)


def mixed_actions(env, generator):
    """Random actions, many of them such that something happens."""
    task, state = env.env_state.task, env.env_state.state
    n = env.batch_size[0]
    action = torch.randint(8, (n,), generator=generator)
    kind = torch.rand(n, generator=generator)
    onward = task["onward"].gather(1, state["position"][:, None])[:, 0]
    return torch.where(kind < 0.6, onward, torch.where(kind < 0.8, task["button"], action))


@pytest.mark.parametrize(
    "settings",
    [
        {"length": 30, "time_limit": 180},
        {"length": 10, "min_packages": 1, "max_packages": 2, "time_limit": 70},
        {"length": 3, "min_packages": 1, "max_packages": 2, "time_limit": 25},
    ],
)
def test_every_step_follows_the_rules(settings):
    n = 40
    env = PackageDelivery(num_envs=n, seed=3, **settings)
    slots = env._packages[1]
    td = env.reset()
    couriers = [courier_of(env, row) for row in range(n)]
    generator = torch.Generator().manual_seed(0)
    events, ends = set(), 0
    for _ in range(400):
        assert td["observation"].tolist() == [c.observation() for c in couriers]
        assert td["goal"].tolist() == [c.shown(slots) for c in couriers]
        step, td = env.step_and_maybe_reset(td.set("action", mixed_actions(env, generator)))
        after = step["next"]
        expected = [c.step(a) for c, a in zip(couriers, step["action"].tolist(), strict=True)]
        for name, values in zip(
            ("reward", "success", "terminated"), zip(*expected, strict=True), strict=True
        ):
            assert after[name][:, 0].tolist() == list(values), name
        assert after["observation"].tolist() == [c.observation() for c in couriers]
        assert after["goal"].tolist() == [c.shown(slots) for c in couriers]
        assert after["achieved_mask"][:, 0].tolist() == [c.placed is not None for c in couriers]
        for row, courier in enumerate(couriers):
            events |= courier.events
            if courier.placed is not None:
                assert after["achieved"][row].tolist() == [[float(courier.placed)]]
            if expected[row][2]:
                couriers[row] = courier_of(env, row)
                ends += 1
    assert ends > n
    wanted = {"wrapped", "delivered", "wasted", "ran out", "pressed at 0"}
    assert events == (wanted | {"turned", "strayed"} if env._length >= 5 else wanted)


def test_placing_at_a_fork_has_no_effect_and_forward_neither():
    env = PackageDelivery(num_envs=200, length=30)
    td = env.reset()
    fork = env.env_state.task["onward"].gt(0).to(torch.int64).argmax(1)
    env.env_state.state["position"] = fork
    env.env_state.state["onward"] = env.env_state.task["onward"].gather(1, fork[:, None])[:, 0]
    at_fork = fork > 0
    assert at_fork.any()
    for action in (
        FORWARD,
        FIRST_BUTTON,
        FIRST_BUTTON + 1,
        FIRST_BUTTON + 2,
        FIRST_BUTTON + 3,
        NOTHING,
    ):
        after = env.step(td.set("action", torch.full((200,), action)))["next"]
        assert torch.equal(after["observation"][at_fork, 0], fork[at_fork].float())
        assert (after["observation"][at_fork, 2] == 1).all()
        assert not after["achieved_mask"][at_fork].any()
        assert torch.equal(after["observation"][:, 1], td["observation"][:, 1])


def chi_square(counts):
    expected = counts.sum() / counts.numel()
    return ((counts - expected) ** 2 / expected).sum().item()


def test_roads_are_drawn_as_stated():
    n, length = 6000, 30
    task = PackageDelivery(length=length).draw_tasks(torch.arange(n))
    onward, goals = task["onward"], task["instruction"][..., 0].long()
    used = goals != GOAL_PAD
    assert not onward[:, 0].any()
    assert not (onward.gather(1, goals.clamp(min=0))[used] > 0).any()
    assert ((goals >= 1) & (goals < length))[used].all()
    later = used[:, 1:]
    assert (goals[:, 1:] > goals[:, :-1])[later].all()
    assert torch.equal(used, torch.arange(4) < used.sum(1)[:, None])
    forks = (onward > 0).sum(1)
    cases = {
        "forks 3..6": torch.bincount(forks, minlength=7)[3:],
        "packages 2..4": torch.bincount(used.sum(1), minlength=5)[2:],
        "branches": torch.bincount(onward[onward > 0], minlength=3)[1:],
        "buttons": torch.bincount(task["button"], minlength=7)[3:],
        "places of forks": (onward > 0).sum(0)[1:],
        "places of destinations": torch.bincount(goals[used], minlength=length)[1:],
    }
    assert forks.min() == 3
    assert forks.max() == 6
    for name, counts in cases.items():
        freedom = counts.numel() - 1
        # Places in one road exclude one another, which makes their counts more even than
        # independent ones.
        assert chi_square(counts.double()) < freedom + 5 * (2 * freedom) ** 0.5, name


@pytest.mark.parametrize("length", [2, 3, 4, 5, 9, 10, 11])
def test_the_largest_allowed_number_of_packages_always_fits(length):
    most = length - 1 - length // 5
    env = PackageDelivery(num_envs=300, length=length, min_packages=most, max_packages=most)
    env.reset()
    task = env.env_state.task
    goals = task["instruction"][..., 0].long()
    assert (goals >= 1).all()
    assert (goals < length).all()
    assert not task["onward"].gather(1, goals).any()
    assert (goals[:, 1:] > goals[:, :-1]).all()


def test_rewards_can_be_computed_again_from_what_was_achieved():
    n, steps = 200, 180
    env = PackageDelivery(num_envs=n, length=10, seed=5)
    td = env.reset()
    instruction = td["goal"].clone()
    generator = torch.Generator().manual_seed(0)
    running = torch.ones(n, dtype=torch.bool)
    real, rewards = [running], []
    achieved, achieved_mask = [td["achieved"]], [td["achieved_mask"]]
    for _ in range(steps):
        step, td = env.step_and_maybe_reset(td.set("action", mixed_actions(env, generator)))
        after = step["next"]
        real.append(running)
        rewards.append(running * after["reward"][:, 0])
        achieved.append(after["achieved"])
        achieved_mask.append(after["achieved_mask"])
        running = running & ~after["done"][:, 0]
    rewards, real = torch.stack(rewards, 1), torch.stack(real, 1)
    achieved, achieved_mask = torch.stack(achieved, 1), torch.stack(achieved_mask, 1)

    def paid(mask):
        times = completion_times(instruction, achieved, mask, real)
        return (times.unsqueeze(-1) == torch.arange(1, steps + 1)).any(1).float()

    assert torch.equal(paid(achieved_mask), rewards)
    assert rewards.sum() > n
    walked_over = torch.ones_like(achieved_mask)
    assert paid(walked_over).sum() > rewards.sum()


def test_specs_describe_what_is_returned():
    check_env_specs(PackageDelivery(num_envs=3, length=5, max_packages=3, time_limit=20))


def test_another_instruction_brings_its_own_packages():
    env = PackageDelivery(num_envs=2, length=4, min_packages=2, max_packages=2)
    wanted = torch.tensor([[[1.0], [GOAL_PAD]], [[1.0], [3.0]]])
    td = env.reset(TensorDict({"instruction": wanted}, [2]))
    assert td["observation"].tolist() == [[0.0, 3.0, 0.0], [0.0, 6.0, 0.0]]
    assert num_goals(td["goal"]).tolist() == [1, 2]
    td = env.step_and_maybe_reset(td.set("action", torch.zeros(2, dtype=torch.int64)))[1]
    after = env.step(td.set("action", env.env_state.task["button"]))["next"]
    assert after["reward"].tolist() == [[1.0], [1.0]]
    assert after["success"].tolist() == [[True], [False]]


def test_an_instruction_in_words_names_cells_where_packages_can_be_put_down():
    env = PackageDelivery(num_envs=1, length=10, min_packages=1, max_packages=2, seed=1)
    env.reset()
    task = env.env_state.task
    forks = set(task["onward"][0].nonzero().flatten().tolist())
    free = set(range(1, 10)) - forks
    again = TensorDict({"task_seed": task["task_seed"].view(1, 1)}, [1])
    for cell in (0, min(forks)):
        env.set_instruction(f"{min(free)} {cell}")
        with pytest.raises(
            ValueError, match=rf"instruction must name cells .*, got {cell}$"
        ) as caught:
            env.reset(again)
        near = str(caught.value).split("near it ")[1].split(")")[0]
        assert {int(found) for found in near.split()} <= free
    env.set_instruction(str(max(free)))
    assert env.reset(again)["goal"].flatten().tolist() == [float(max(free)), GOAL_PAD]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 1}, "PackageDelivery: length must be at least 2, got 1"),
        (
            {"max_packages": 0},
            r"PackageDelivery: max_packages must be at least 1, got 0",
        ),
        (
            {"max_packages": 24},
            r"PackageDelivery: max_packages must be in 1..23 at length 30, got 24",
        ),
        ({"min_packages": 0}, r"PackageDelivery: min_packages must be at least 1, got 0"),
        ({"min_packages": 5}, r"PackageDelivery: min_packages must be in 1..4, got 5"),
        ({"time_limit": 0}, "PackageDelivery: time_limit must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PackageDelivery(**settings)


def has(picture, cell, color):
    rows, columns = (slice(i * CELL, (i + 1) * CELL) for i in cell)
    return bool((picture[rows, columns] == color).all(-1).any())


def count(picture, row, color):
    columns = picture.shape[1] // CELL
    return sum(has(picture, (row, column), color) for column in range(columns))


def test_the_picture_shows_forks_destinations_packages_and_the_moving_agent():
    env = PackageDelivery(num_envs=1, length=12, min_packages=2, max_packages=2, seed=1)
    td = env.reset()
    task = env.env_state.task
    first, second = task["instruction"][0, :, 0].long().tolist()
    picture = env.render()
    assert picture.shape == (6 * CELL, 14 * CELL, 3)
    assert picture.dtype.name == "uint8"
    assert has(picture, (2, 1), Palette.AGENT)
    assert has(picture, (2, 1 + first), Palette.ACTIVE)
    assert has(picture, (2, 1 + second), Palette.FUTURE)
    assert count(picture, 4, Palette.FUTURE) == 6
    for cell, action in enumerate(task["onward"][0].tolist()):
        assert has(picture, (1, 1 + cell), Palette.FLOOR) == (action > 0)
        assert has(picture, (1, 1 + cell), Palette.COMPLETED) == (action == LEFT)
        assert has(picture, (3, 1 + cell), Palette.COMPLETED) == (action == RIGHT)
    assert (task["onward"] > 0).any()
    for _ in range(first):
        onward = task["onward"][0, env.env_state.state["position"]]
        td = env.step_and_maybe_reset(td.set("action", onward))[1]
    assert has(env.render(), (2, 1 + first), Palette.AGENT)
    td = env.step_and_maybe_reset(td.set("action", task["button"].clone()))[1]
    onward = task["onward"][0, env.env_state.state["position"]]
    env.step_and_maybe_reset(td.set("action", onward))
    picture = env.render()
    assert count(picture, 4, Palette.FUTURE) == 5
    assert has(picture, (2, 1 + first), Palette.COMPLETED)
    assert has(picture, (2, 2 + first), Palette.AGENT)


def test_a_long_road_is_shown_in_part_and_in_constant_size():
    env = PackageDelivery(num_envs=1, length=100, max_packages=6)
    env.reset()
    first = env.render()
    env.env_state.state["position"] += 50
    picture = env.render()
    assert picture.shape == first.shape == (6 * CELL, 43 * CELL, 3)
    assert has(picture, (2, 21), Palette.AGENT)


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_does_not_exist_is_not_drawn(row):
    env = PackageDelivery(num_envs=2)
    env.reset()
    with pytest.raises(
        ValueError, match=f"PackageDelivery: env_id must be an env that was reset, got {row}"
    ):
        env.render(row)
