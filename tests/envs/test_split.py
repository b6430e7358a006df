"""Held-out tasks: training never draws them, by construction; nothing else changes."""

import pytest
import torch
from scipy import stats
from tensordict import TensorDict
from torchrl.data import Categorical
from yamame.checks import ArgumentError
from yamame_envs import (
    BatchedEnv,
    DarkKeyDoor,
    MazeRunner,
    MetaFrozenLake,
    PackageDelivery,
    RepeatedTrials,
    XLand,
)
from yamame_envs.split import HELD_OUT, candidates, hash_of, is_held_out
from yamame_envs.streams import fold, integers

ENVS = {
    "maze": (MazeRunner, {"size": 9, "num_goals": 1}),
    "shuffled maze": (MazeRunner, {"size": 9, "num_goals": 2, "randomize_actions": True}),
    "pair of maze and goals": (
        MazeRunner,
        {"size": 7, "num_goals": 1, "split_by": "walls_and_goals"},
    ),
    "road": (PackageDelivery, {"length": 11, "min_packages": 3, "max_packages": 3}),
    "pair of road and goals": (
        PackageDelivery,
        {"length": 6, "min_packages": 3, "max_packages": 3, "split_by": "roads_and_goals"},
    ),
    "room": (DarkKeyDoor, {"size": 3}),
    "lake": (MetaFrozenLake, {"size": 4, "num_trials": 2}),
    "hard lake": (MetaFrozenLake, {"size": 3, "num_trials": 2, "hard": True}),
    "ruleset": (XLand, {"level": "small", "num_trials": 1}),
}
SEEDS = fold(torch.arange(3000), 0)


@pytest.fixture(params=ENVS, ids=str)
def make(request):
    """Builds an environment of one side."""
    kind, settings = ENVS[request.param]
    return lambda split="all", **more: kind(split=split, **settings, **more)


def known(env, task):
    """What tells tasks apart, written out: a set of tuples of numbers."""
    names = [name for name in env.identity if name in task]
    rows = torch.cat([task[name].reshape(len(SEEDS), -1).double() for name in names], 1)
    return list(map(tuple, rows.tolist()))


def test_training_and_evaluation_share_no_task_though_they_share_their_seeds(make):
    train, test = (set(known(env, env.tasks_of(SEEDS))) for env in (make("train"), make("test")))
    assert len(train) > 30
    assert len(test) > 10
    assert train & test == set()


def test_without_it_most_tasks_of_the_lake_are_met_in_training():
    """The negative control of the test above: other seeds are no other tasks."""
    env = MetaFrozenLake(size=4)
    train = set(known(env, env.tasks_of(SEEDS)))
    test = known(env, env.tasks_of(fold(SEEDS, 1)))
    assert sum(task in train for task in test) / len(test) > 0.5


def test_without_it_tasks_are_those_of_their_seeds(make):
    env = make()
    task, drawn = env.tasks_of(SEEDS), env.draw_tasks(SEEDS)
    assert all(torch.equal(task[name], value) for name, value in drawn.items())


def test_the_task_of_a_seed_is_the_first_of_its_side_whatever_else_is_drawn(make):
    for split in ("train", "test"):
        env, others = make(split), make()
        together = env.tasks_of(SEEDS[:40])
        for index, seed in enumerate(SEEDS[:40]):
            for number in range(255):
                (each,) = candidates(seed.view(1), number, number + 1)
                task = others.tasks_of(each)
                if bool(is_held_out(env.task_hash(task))) == (split == "test"):
                    break
            for name, value in task.items():
                assert torch.equal(together[name][index], value[0]), (split, index, name)


def test_about_the_share_is_held_out_and_a_side_says_so(make):
    env = make()
    share = float(is_held_out(env.task_hash(env.tasks_of(SEEDS))).double().mean())
    assert abs(share - HELD_OUT) < 0.12  # few tasks weigh much; of the room there are 729
    for split in ("train", "test"):
        hashed = make(split).task_hash(make(split).tasks_of(SEEDS))
        assert is_held_out(hashed).all() if split == "test" else not is_held_out(hashed).any()


class Dice(BatchedEnv):
    """As many tasks as a die has sides, the higher ones likelier; and noise that is no part of
    them.
    """

    identity = ("side",)

    def __init__(self, sides=60, split="all", **settings):
        self._sides = sides
        self.hold_out(split)
        super().__init__(
            num_envs=1, time_limit=3, action=Categorical(2), observations={}, seed=0, device="cpu"
        )

    def draw_tasks(self, task_seed):
        throws = torch.stack([integers(fold(task_seed, i), self._sides) for i in range(2)])
        return {"side": throws.max(0).values, "noise": fold(task_seed, 2)}

    def begin(self, task):
        return {}

    def transition(self, task, state, action):
        is_even = task["side"] % 2 == 0
        guessed = (action.view(-1) == 0) == is_even
        return {}, guessed.float().unsqueeze(1), guessed.unsqueeze(1)

    def observe(self, task, state):
        return {}


@pytest.mark.parametrize("split", ["train", "test", "all"])
def test_episodes_play_the_tasks_of_their_side(split):
    dice = Dice(split=split)
    held_out = []
    dice.rollout(
        200,
        break_when_any_done=False,
        callback=lambda env, _: held_out.append(bool(is_held_out(env.task_hashes()))),
    )
    assert len(held_out) > 100
    assert set(held_out) == {"train": {False}, "test": {True}, "all": {False, True}}[split]


@pytest.mark.parametrize("split", ["train", "test"])
def test_within_a_side_tasks_are_as_frequent_as_they_were(split):
    side = Dice(split=split)
    found = side.tasks_of(fold(torch.arange(20_000), 5))["side"].bincount(minlength=60)
    chance = (2 * torch.arange(60) + 1) / 60**2
    held_out = is_held_out(side.task_hash({"side": torch.arange(60)}))
    kept = held_out == (split == "test")
    assert 5 < int(kept.sum()) < 55
    assert found[~kept].sum() == 0
    conditional = chance[kept].double() / chance[kept].double().sum()
    assert stats.chisquare(found[kept].numpy(), (conditional * 20_000).numpy()).pvalue > 1e-3
    # The negative control: were all of the side equally likely, it would show.
    assert stats.chisquare(found[kept].numpy()).pvalue < 1e-6


def test_noise_makes_no_other_task():
    dice = Dice()
    task = dice.tasks_of(SEEDS)
    assert dice.task_hash(task).unique().numel() == task["side"].unique().numel()
    lake = MetaFrozenLake(size=3, hard=True)
    task = lake.tasks_of(SEEDS)
    assert task["looks"].unique().numel() == len(SEEDS)
    assert lake.task_hash(task).unique().numel() < 1000


def test_equal_values_have_equal_hashes_whatever_their_shape_and_other_ones_other_hashes():
    rows = fold(torch.arange(500), 3).remainder(2).view(-1, 1) * torch.ones(1, 4, dtype=torch.int64)
    rows[:, 2] = torch.arange(500)
    hashed = hash_of({"a": rows})
    assert hashed.unique().numel() == 500
    assert torch.equal(hash_of({"a": rows.view(500, 2, 2)}), hashed)
    assert torch.equal(hash_of({"a": rows.to(torch.int16)}), hashed)
    assert not torch.equal(
        hash_of({"a": rows.flip(1)}), hashed
    )  # which place a value stands at counts
    names = {"a": rows[:, :2], "b": rows[:, 2:]}
    assert not torch.equal(hash_of(names), hash_of({"a": rows[:, 2:], "b": rows[:, :2]}))
    assert torch.equal(hash_of(dict(reversed(names.items()))), hash_of(names))
    halves = hash_of({"a": rows.float() + 0.5})
    assert halves.unique().numel() == 500
    assert torch.equal(hash_of({"a": rows.double() + 0.5}), halves)
    assert torch.equal(hash_of({"a": rows[:3]}), hashed[:3])


def test_negative_zero_is_zero_and_no_other_value_has_another_hash_than_before():
    values = torch.tensor([[0.0, 1.5], [-0.0, 1.5], [-1.5, 0.0]])
    hashed = hash_of({"a": values})
    assert hashed[0] == hashed[1]
    assert hashed[0] != hashed[2]
    known = torch.tensor(
        [
            *(6235967106033911276, 1642033367394437983, 1476666600926391474),
            *(-7713759002381833555, 1792736230230788992),
        ]
    )
    values = torch.tensor([0.0, 1.5, -1.5, torch.inf, torch.nan], dtype=torch.float64)
    assert torch.equal(hash_of({"a": values}), known)


def played(env, num_steps):
    """The hashes of all tasks that an environment plays in so many steps of action 0."""
    inner, hashes = getattr(env, "env", env), set()
    timestep = env.reset()
    for _ in range(num_steps):
        hashes |= set(inner.task_hash(inner.env_state.task).tolist())
        timestep.set("action", torch.zeros(env.batch_size, dtype=torch.int64))
        timestep = env.step_and_maybe_reset(timestep)[1]
    return torch.tensor(sorted(hashes))


def test_episodes_are_of_one_side_alone_and_trials_too():
    settings = {"size": 3, "num_trials": 1}
    for split in ("train", "test"):
        lake = MetaFrozenLake(num_envs=16, split=split, **settings)
        repeated = RepeatedTrials(
            MetaFrozenLake(num_envs=16, split=split, **settings), num_trials=2
        )
        for env in (lake, repeated):
            hashes = played(env, 60)
            assert len(hashes) > 8
            assert (is_held_out(hashes) == (split == "test")).all()
    hashes = played(MetaFrozenLake(num_envs=16, **settings), 60)
    assert 0 < is_held_out(hashes).sum() < len(hashes)


def test_a_task_seed_of_a_reset_is_of_the_side_and_an_instruction_is_as_asked():
    env = MazeRunner(num_envs=4, size=7, num_goals=1, split="test", split_by="walls_and_goals")
    asked = TensorDict({"task_seed": torch.arange(4).view(4, 1)}, [4])
    env.reset(asked)
    assert is_held_out(env.task_hash(env.env_state.task)).all()
    goal = torch.full((4, 1, 2), 5.0)
    env.reset(TensorDict({"task_seed": torch.arange(4).view(4, 1), "instruction": goal}, [4]))
    assert torch.equal(env.env_state.task["instruction"], goal)


def test_an_environment_of_one_side_is_resumed_exactly_and_one_of_the_other_is_refused():
    def lake(split, seed=0):
        return MetaFrozenLake(num_envs=8, size=4, num_trials=2, split=split, seed=seed)

    def go_on(env, timestep):
        seen = []
        for _ in range(80):
            timestep.set("action", torch.full((8,), 3))
            step, timestep = env.step_and_maybe_reset(timestep)
            seen.append(step["next", "observation"])
        return torch.stack(seen)

    env = lake("train")
    env.reset()
    for _ in range(5):
        env.step_and_maybe_reset(env.present().set("action", torch.full((8,), 1)))
    saved = env.state_dict()
    expected = go_on(env, env.present())
    same_side = lake("train", seed=9)
    same_side.load_state_dict(saved)
    assert torch.equal(go_on(same_side, same_side.present()), expected)
    with pytest.raises(ArgumentError, match="of an environment with the same tasks"):
        lake("test", seed=9).load_state_dict(saved)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("sides", [1, 3])
def test_too_few_tasks_are_named(sides, split):
    dice = Dice(sides, split)
    with pytest.raises(
        ValueError, match=rf"Dice: split must be all, .* too few .*\({sides}\) .* got '{split}'"
    ):
        dice.tasks_of(SEEDS[:3])
    assert Dice(sides).tasks_of(SEEDS[:3])["side"].max() < sides


def test_a_side_without_a_task_is_named():
    class Loaded(Dice):
        """The first tasks that are looked at are many, all others the same one."""

        def draw_tasks(self, task_seed):
            task = super().draw_tasks(task_seed)
            return {
                **task,
                "side": task["side"] if len(task_seed) == 64 else torch.zeros_like(task["side"]),
            }

    first = bool(is_held_out(Dice().task_hash({"side": torch.zeros(1, dtype=torch.int64)})))
    kept, missing = ("test", "train") if first else ("train", "test")
    assert Loaded(split=kept).tasks_of(SEEDS[:3])["side"].tolist() == [0, 0, 0]
    with pytest.raises(
        ValueError, match=f"Loaded: split must be all where .* so few tasks, got '{missing}'"
    ):
        Loaded(split=missing).tasks_of(SEEDS[:3])


@pytest.mark.parametrize(
    ("kind", "settings", "remedy"),
    [
        (MazeRunner, {"size": 7}, "all or have split_by=walls_and_goals,"),
        (MazeRunner, {"size": 5, "num_goals": 1}, "all,"),
        (
            PackageDelivery,
            {"length": 4, "max_packages": 2},
            "all or have split_by=roads_and_goals,",
        ),
        (MetaFrozenLake, {"size": 2}, "all,"),
    ],
)
def test_an_environment_with_too_few_tasks_is_refused_as_it_is_built(kind, settings, remedy):
    with pytest.raises(
        ValueError, match=f"{kind.__name__}: split must be {remedy} .*, got 'train'"
    ):
        kind(split="train", **settings)
    kind(**settings)


def test_another_word_is_refused(make):
    with pytest.raises(
        ValueError, match=r"split must be one of \('all', 'train', 'test'\), got 'held-out'"
    ):
        make("held-out")


@pytest.mark.parametrize("shape", [(0,), (1,)])
def test_any_number_of_seeds_has_tasks(make, shape):
    for split in ("train", "test"):
        task = make(split).tasks_of(torch.zeros(shape, dtype=torch.int64))
        assert {len(value) for value in task.values()} == {shape[0]}
