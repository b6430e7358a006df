import pickle
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from yamame_envs.suites import metaworld_task
from yamame_envs.suites.metaworld import MetaWorld
from yamame_envs.suites.metaworld_task import MetaWorldTask, task_names

metaworld = pytest.importorskip("metaworld", reason="Meta-World is not installed")
policies = pytest.importorskip("metaworld.policies", reason="Meta-World is not installed")

ML10 = {
    "train": "reach push pick-place door-open drawer-close button-press-topdown "
    "peg-insert-side window-open "
    "sweep basketball",
    "test": "drawer-open door-close shelf-place sweep-into lever-pull",
}


@pytest.fixture
def empty(monkeypatch):
    """A process that has not played anything yet; returns its idle arms."""
    idle = {}
    monkeypatch.setattr(metaworld_task, "_idle", idle)
    metaworld_task._goal_lists.cache_clear()
    yield idle
    metaworld_task._goal_lists.cache_clear()


def plan(steps, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (steps, 4)).astype(np.float32)


def trajectory(env, seed, actions, meanwhile=lambda: None):
    seen = [env.reset(seed=seed)[0]]
    for action in actions:
        meanwhile()
        vector, reward, *_ = env.step(action)
        seen += [vector, [reward]]
    return np.concatenate(seen)


def goals_of(env, seeds):
    drawn = []
    for seed in seeds:
        env.reset(seed=seed)
        drawn.append(tuple(env.goal))
    return drawn


def official(tasks, name):
    """The goals of one task in an official list."""
    return np.array(
        [pickle.loads(task.data)["rand_vec"] for task in tasks if task.env_name == name]
    )


def test_benchmarks_have_their_published_tasks():
    for split, names in ML10.items():
        assert task_names("ML10", split) == tuple(f"{name}-v3" for name in names.split())
    assert [len(task_names(name, "train")) for name in ("ML25", "ML45")] == [25, 45]
    assert set(task_names("ML25", "test")) == {
        f"{name}-v3"
        for name in ("basketball", "door-close", "shelf-place", "sweep", "button-press")
    }
    assert set(task_names("ML45", "test")) == {
        f"{name}-v3"
        for name in ("bin-picking", "box-close", "hand-insert", "door-lock", "door-unlock")
    }
    assert task_names("ML1-door-open-v3", "test") == ("door-open-v3",)


@pytest.mark.parametrize(
    ("benchmark", "shared"), [("ML10", set()), ("ML25", {"basketball-v3"}), ("ML45", set())]
)
def test_no_task_of_the_test_split_is_trained_with_but_for_the_one_that_is_officially(
    benchmark, shared
):
    assert set(task_names(benchmark, "train")) & set(task_names(benchmark, "test")) == shared


@pytest.mark.parametrize("task", ["reach-v3", "door-open-v3"])
def test_goals_of_a_single_task_are_the_official_ones_of_their_seed(empty, task):
    expected = metaworld.ML1(task, seed=4)
    for split, tasks in (("train", expected.train_tasks), ("test", expected.test_tasks)):
        goals = metaworld_task._goal_lists(f"ML1-{task}", split, 4).of(task)
        assert np.array_equal(goals, official(tasks, task))
        assert not np.array_equal(
            metaworld_task._goal_lists(f"ML1-{task}", split, 5).of(task), goals
        )


def test_goals_of_several_tasks_are_drawn_one_after_the_other_as_officially(empty):
    names = ("faucet-open-v3", "push-v3")
    expected = metaworld.CustomML(list(names), ["reach-v3"], seed=6).train_tasks
    lists = metaworld_task._GoalLists(names, 6)
    for name in reversed(names):
        assert np.array_equal(lists.of(name), official(expected, name))


def test_goals_of_the_test_split_are_never_played_in_training():
    train = goals_of(MetaWorldTask("ML1-reach-v3", split="train"), range(60))
    test = goals_of(MetaWorldTask("ML1-reach-v3", split="test"), range(60))
    assert not set(train) & set(test)
    for drawn in (train, test):  # of 50 goals, 35.1 are expected to be seen, standard deviation 2.4
        assert 25 < len(set(drawn)) < 46
    assert set(train[:30]) & set(train[30:])


def test_a_family_is_played_from_its_own_split():
    for split in ("train", "test"):
        env = MetaWorldTask("ML10", split=split)
        seeds = [
            seed for seed in range(100) if np.random.default_rng(seed).integers(len(env._names)) < 2
        ][:6]
        played = set()
        for seed in seeds:
            env.reset(seed=seed)
            played.add(env.task_name)
        assert played == {f"{name}-v3" for name in ML10[split].split()[:2]}


def test_tasks_are_drawn_uniformly(empty, monkeypatch):
    still = SimpleNamespace(
        set_task=lambda _: None, reset=lambda: (np.zeros(39), {}), close=lambda: None
    )
    monkeypatch.setattr(metaworld_task, "_take", lambda name: still)
    monkeypatch.setattr(metaworld_task._GoalLists, "of", lambda self, name: np.zeros((50, 1)))
    env, played = MetaWorldTask("ML45"), []
    for seed in range(900):
        env.reset(seed=seed)
        played.append(env.task_name)
    counts = np.array([played.count(name) for name in task_names("ML45", "train")])
    assert counts.sum() == 900
    assert np.abs(counts - 20).max() < 4.5 * np.sqrt(
        20
    )  # four and a half standard deviations, 45 tasks


def test_the_arm_moves_and_pays_as_the_official_one_and_the_goal_is_hidden():
    env = MetaWorldTask("ML1-push-v3")
    seen, _ = env.reset(seed=2)
    assert env.observation_space.shape == seen.shape == (39,)
    goal = env.goal
    arm = metaworld.env_dict.ALL_V3_ENVIRONMENTS["push-v3"]()
    what = {"env_cls": type(arm), "rand_vec": goal, "partially_observable": True}
    arm.set_task(metaworld.types.Task("push-v3", pickle.dumps(what)))
    expected, _ = arm.reset()
    for action in plan(100):
        assert seen.dtype == np.float32
        assert np.array_equal(seen, expected.astype(np.float32))
        assert not seen[-3:].any()
        seen, reward, terminated, truncated, told = env.step(action)
        expected, pay, _, _, info = arm.step(action)
        assert reward == pay
        assert told == {"success": bool(info["success"])}
        assert not terminated
        assert not truncated


def test_versions_of_the_reward_differ_and_move_alike_whoever_had_the_arm_before(empty):
    def played(version):
        row = MetaWorldTask("ML1-push-v3", reward_function_version=version)
        seen = trajectory(row, 2, plan(30))[39:].reshape(30, 40)
        metaworld_task._give_back(row.task_name, row.arm)  # to the next row
        return seen[:, :39], seen[:, 39]

    official = metaworld.env_dict.ALL_V3_ENVIRONMENTS["push-v3"](reward_function_version="v1")
    official.set_task(metaworld.ML1("push-v3", seed=0).train_tasks[0])
    official.reset()
    first, second, third = played("v2"), played("v1"), played("v2")
    assert len(empty["push-v3"]) == 1
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], third[1])
    assert not np.isclose(first[1], second[1]).any()
    row = MetaWorldTask("ML1-push-v3", reward_function_version="v1")
    row.reset(seed=2)
    official._last_rand_vec = row.goal
    official.reset()
    for action, pay in zip(plan(30), second[1], strict=True):
        assert official.step(action)[1] == pytest.approx(pay, abs=1e-6)  # stored as float32


@pytest.mark.parametrize("lacks", ["ML25", "reward_function_version"])
def test_a_meta_world_without_ml25_or_versions_is_refused_by_one_line(lacks, monkeypatch):
    if lacks == "ML25":
        monkeypatch.delattr(metaworld.env_dict, "ML25_V3")
    else:
        monkeypatch.setitem(
            metaworld.env_dict.ALL_V3_ENVIRONMENTS, "reach-v3", lambda render_mode: None
        )
    message = (
        r"MetaWorld: metaworld must have ML25 and versions of the reward, run: pip "
        r"install .*\[metaworld\]"
    )
    with pytest.raises(ImportError, match=message) as error:
        MetaWorld()
    assert "\n" not in str(error.value)


def test_a_seed_decides_the_whole_attempt_whatever_else_is_played(empty):
    expected = trajectory(MetaWorldTask("ML10", split="test"), 3, plan(40))
    empty.clear()
    used, other = MetaWorldTask("ML10", split="test"), MetaWorldTask("ML10", split="test")
    before = random.getstate(), np.random.get_state()[1].copy()
    for seed in range(6):
        trajectory(used, seed, plan(20, seed))
    other.reset(seed=3)

    def meanwhile():
        other.step(np.ones(4, np.float32))

    assert np.array_equal(trajectory(used, 3, plan(40), meanwhile), expected)
    assert used.task_name == other.task_name
    assert used.arm is not other.arm
    assert not np.array_equal(trajectory(used, 4, plan(40)), expected)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])


def test_arms_are_built_when_needed_and_shared_by_the_rows_of_a_process(empty, monkeypatch):
    monkeypatch.setattr(metaworld_task, "_FEW", 2)
    rows = [MetaWorldTask("ML10", split="test") for _ in range(4)]
    assert not empty
    drawer = next(seed for seed in range(99) if np.random.default_rng(seed).integers(5) == 0)
    door = next(seed for seed in range(99) if np.random.default_rng(seed).integers(5) == 1)
    for row in rows:
        row.reset(seed=drawer)
    assert set(empty) == {"drawer-open-v3"}  # its arm has also drawn its goals
    assert not empty["drawer-open-v3"]
    arms = {id(row.arm) for row in rows}
    assert len(arms) == 4
    for row in rows:
        row.reset(seed=door)
    assert set(empty) == {"drawer-open-v3", "door-close-v3"}
    assert len(empty["drawer-open-v3"]) == 2  # more than a few are not kept
    rows[0].reset(seed=drawer)
    assert id(rows[0].arm) in arms
    assert [len(idle) for idle in empty.values()] == [1, 1]


def test_a_closed_row_takes_its_arm_with_it(empty):
    row = MetaWorldTask("ML1-reach-v3")
    row.reset(seed=0)
    row.close()
    assert row.arm is None
    assert not empty["reach-v3"]
    row.reset(seed=0)
    assert row.arm is not None


@pytest.mark.filterwarnings("ignore:Constant:UserWarning")  # of the scripted policy
@pytest.mark.parametrize("split", ["train", "test"])
def test_who_knows_the_goal_succeeds_and_the_attempt_goes_on(split):
    env = MetaWorld(split=split, num_envs=2, time_limit=100, seed=3)
    policy = policies.ENV_POLICY_MAP["reach-v3"]()
    td = env.reset()
    rows = env._play()._envs
    successes = []
    for _ in range(100):
        seen = td["observation"].double().numpy()
        for row, vector in zip(rows, seen, strict=True):
            vector[-3:] = row.arm._get_pos_goal()
        actions = np.array([policy.get_action(vector) for vector in seen]).clip(-1, 1)
        td["action"] = torch.tensor(actions, dtype=torch.float32)
        td = env.step(td)["next"]
        successes.append(td["success"])
    assert torch.cat(successes, 1).any(1).all()
    assert td["terminated"].all()
    assert not torch.cat(successes, 1)[:, 0].any()
    env.close()


def test_random_actions_return_what_others_measured_and_do_not_succeed():
    env = MetaWorldTask("ML1-reach-v3")
    returns, successes = [], 0
    for seed in range(16):
        env.reset(seed=seed)
        steps = [env.step(action) for action in plan(500, seed)]
        returns.append(sum(step[1] for step in steps))
        successes += any(step[4]["success"] for step in steps)
        assert steps[-1][3]
    # the official environment: 791, standard deviation 467, 200 episodes (others: 520 to 760, few
    # episodes)
    assert abs(np.mean(returns) - 791) < 3 * 467 * np.sqrt(1 / 16 + 1 / 200)
    assert successes <= 4


def test_attempts_follow_one_another():
    env = MetaWorld(num_envs=1, seed=1)
    played = env.rollout(502, break_when_any_done=False)
    ends = played["next", "terminated"].squeeze(-1)[0]
    assert ends.nonzero().flatten().tolist() == [499]
    assert not played["next", "truncated"].any()
    assert played["trial_start"].squeeze(-1)[0].nonzero().flatten().tolist() == [0, 500]
    assert played["time"][0, 499, 0] == pytest.approx(499 / 500)
    env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"benchmark": "ML1-reech-v3"}, r"benchmark must be .*ML1-reach-v3.*, got 'ML1-reech-v3'"),
        ({"benchmark": "ML11"}, r"benchmark must be one of ML10, .*, got 'ML11'"),
        ({"split": "valid"}, "split must be train or test, got 'valid'"),
        ({"reward_function_version": "v3"}, r"reward_function_version must be one of .*, got 'v3'"),
        ({"time_limit": 501}, r"time_limit must be in 1\.\.500, got 501"),
        ({"goal_seed": -1}, "goal_seed must be in .*, got -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"MetaWorld: {message}") as error:
        MetaWorld(**settings)
    assert "\n" not in str(error.value)
