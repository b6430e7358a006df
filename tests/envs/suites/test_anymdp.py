import random

import numpy as np
import pytest
from yamame_envs import AnyMDP, RepeatedTrials
from yamame_envs.suites import anymdp_task
from yamame_envs.suites.anymdp_task import AnyMDPTask

xenoverse = pytest.importorskip("xenoverse.anymdp", reason="xenoverse is not installed")

SMALL = {"num_states": 16, "num_actions": 3}


def plan(steps, seed=0):
    return np.random.default_rng(seed).integers(3, size=steps)


def test_a_seed_decides_a_task_and_nothing_else_is_drawn_from():
    before = random.getstate(), np.random.get_state()[1].copy()
    first, hashes = AnyMDPTask(**SMALL), []
    for seed in range(4):
        task = first.sample_task(seed)
        anymdp_task._drawn.cache_clear()
        again = AnyMDPTask(**SMALL).sample_task(seed)
        assert again is not task
        assert all(np.array_equal(task[name], again[name]) for name in task)
        assert first.task_hash(task) == first.task_hash(again)
        hashes.append(first.task_hash(task))
    assert len(set(hashes)) == 4
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])


def test_there_are_as_many_tasks_as_are_wanted():
    env = AnyMDPTask(**SMALL, num_tasks=3)
    hashes = [env.task_hash(env.sample_task(seed)) for seed in range(9)]
    assert len(set(hashes)) == 3
    assert hashes[:3] == hashes[3:6] == hashes[6:]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_attempt_is_the_official_one_number_for_number():
    ours, theirs = AnyMDPTask(**SMALL), xenoverse.AnyMDPEnv(max_steps=1)
    ends = set()
    for seed in range(6):
        task = ours.sample_task(seed)
        ours.set_task(task)
        theirs.set_task(task)
        seen, _ = ours.reset(seed=seed)
        theirs.reset()
        np.random.seed(seed)
        theirs._state = np.random.choice(task["s_0"], p=task["s_0_prob"])
        assert theirs.get_observation == seen
        for action in plan(120, seed):
            expected, outcome = theirs.step(action), ours.step(action)
            assert outcome[:4] == expected[:4]
            if outcome[2] or outcome[3]:
                ends.add("terminated" if outcome[2] else "truncated")
                break
    assert ends == {"terminated", "truncated"}


def test_a_policy_that_knows_the_task_earns_more_than_a_random_one():
    env = AnyMDPTask(**SMALL)
    returns = {"random": [], "knows": []}
    for seed in range(24):
        task = env.sample_task(seed)
        env.set_task(task)
        values = np.zeros((16, 3))
        for _ in range(400):
            after = task["reward"] + 0.99 * values.max(1)
            values = (task["transition"] * after).sum(-1)
        for name, total in returns.items():
            env.reset(seed=seed)
            earned = 0.0
            for action in plan(100, seed):
                chosen = action if name == "random" else values[env.state].argmax()
                _, reward, terminated, _, _ = env.step(chosen)
                earned += reward
                if terminated:
                    break
            total.append(earned)
    better = np.array(returns["knows"]) - np.array(returns["random"])
    assert better.mean() > 3 * better.std() / np.sqrt(24)


def test_both_sides_of_the_split_are_all_tasks_and_share_none():
    played = {}
    for split in ("train", "test"):
        env = AnyMDP(**SMALL, num_tasks=16, split=split, time_limit=2, num_envs=6, seed=3)
        env.rollout(8, break_when_any_done=False)
        rows = [row.unwrapped for row in env._play()._envs]
        played[split] = {row.task_hash(row.task) for row in rows}
        env.close()
    assert not played["train"] & played["test"]
    assert len(played["train"]) > 1


def test_trials_play_one_task_with_other_noise():
    env = RepeatedTrials(AnyMDP(**SMALL, num_tasks=4, time_limit=6, seed=1), num_trials=3)
    row, tasks, starts = env.env, set(), []
    td = env.reset()
    for _ in range(18):
        inner = row._play()._envs[0].unwrapped
        tasks.add(inner.task_hash(inner.task))
        if td["trial_start"].all():
            starts.append(inner._stream.get_state()[1][:4].tolist())
        td = env.step(td.set("action", env.action_spec.zero()))["next"]
        if td["done"].all():
            break
    assert len(tasks) == 1
    assert len(starts) == 3
    assert starts[0] != starts[1] != starts[2]
    env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_states": 7}, "num_states must be at least 8, got 7"),
        ({"num_actions": 1}, "num_actions must be at least 2, got 1"),
        ({"num_tasks": 0}, "num_tasks must be at least 1, got 0"),
        ({"split": "both"}, "split must be one of .*, got 'both'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"AnyMDP: {message}"):
        AnyMDP(**settings)
