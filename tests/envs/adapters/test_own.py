"""Environments of one's own: success in the info, goals in dictionaries, tasks apart from seeds."""

import gymnasium
import numpy as np
import own_envs
import pytest
import torch
from torchrl.envs import check_env_specs
from yamame.goals import GOAL_COMPLETED, GOAL_PAD
from yamame.replay import Relabel, pack
from yamame.system.messages import begin_lines
from yamame_envs import Gym, GymGoals, RepeatedTrials, Workers
from yamame_envs.adapters.goals import SingleGoal
from yamame_envs.adapters.task import TaskWrapper

REACH, SLOT = "own_envs:own/PointReach-v0", "own_envs:own/Slot-v0"


@pytest.fixture(autouse=True)
def a_run_of_its_own():
    begin_lines()


def lever(number):
    """A task as a function of one's own draws it."""
    return 100.0 + number % 7


@pytest.mark.parametrize("key", ["success", "is_success"])
@pytest.mark.parametrize("num_processes", [0, 1])
def test_success_is_found_in_the_info(key, num_processes):
    workers = Workers(num_processes=num_processes)
    env = Gym(id=SLOT, settings={"key": key}, num_envs=2, workers=workers)
    played = env.rollout(4)
    assert played["next", "success"][..., 0].int().tolist() == [[0, 0, 1, 1]] * 2
    env.close()


def test_another_key_may_be_named_and_none_shows_no_success():
    named = Gym(id=SLOT, settings={"key": "won"}, success="won")
    assert named.rollout(4)["next", "success"].any()
    assert "success" not in Gym(id=SLOT, settings={"key": "won"}).observation_spec.keys()
    assert "success" not in Gym(id=SLOT, success=None).observation_spec.keys()
    assert "success" not in Gym(id="CartPole-v1").observation_spec.keys()


@pytest.mark.parametrize("num_processes", [0, 2])
def test_success_that_no_info_tells_is_told_once(num_processes, capsys):
    workers = Workers(num_processes=num_processes)
    for key, times in (("wun", 1), ("won", 0)):
        env = Gym(id=SLOT, settings={"key": "won"}, success=key, num_envs=4, workers=workers)
        for _ in range(6):
            env.rollout(4)
        told = capsys.readouterr().err
        assert (
            told.count(
                "success=wun: no info of 12 episodes has had 'wun', and success counts as false"
            )
            == times
        )
        assert told.count("\n") == times
        env.close()


class Late(gymnasium.Env):
    """Tells success where an episode ends, as SB3's Monitor wants it."""

    observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == 3
        return np.zeros(1, np.float32), 0.0, over, False, {"is_success": True} if over else {}


@pytest.mark.parametrize("num_processes", [0, 2])
def test_success_that_only_last_steps_have_is_reported_once(num_processes, capsys):
    if "own/Late-v0" not in gymnasium.registry:
        gymnasium.register("own/Late-v0", Late)
    workers = Workers(num_processes=num_processes)
    for success, times in (("auto", 1), ("is_success", 0), (None, 0)):
        env = Gym(id="own/Late-v0", success=success, num_envs=3, workers=workers)
        for _ in range(2):
            played = env.rollout(3)
        told = capsys.readouterr().err
        assert told.count("set env.success=is_success") == told.count("\n") == times
        assert ("success" in played["next"].keys()) == (success == "is_success")
        env.close()


# Goals.


def towards(td):
    """Goes straight for the goal."""
    way = td["goal"][:, 0] - td["achieved"][:, 0]
    return td.set("action", (0.1 * way / 0.15).clamp(-1.0, 1.0))


def test_a_goal_pays_once_and_ends_the_episode_with_success():
    env = GymGoals(id=REACH, num_envs=3)
    check_env_specs(env)
    assert env.goal_radius == 1.0
    td = env.reset()
    assert td["goal"].shape == td["achieved"].shape == (3, 1, 2)
    assert td["achieved_mask"].all()
    total, ended = torch.zeros(3), torch.zeros(3, dtype=torch.bool)
    for _ in range(20):
        played = env.step(towards(td))["next"]
        near = (played["achieved"] - td["goal"]).norm(dim=-1).squeeze(-1) <= 1.0
        new = near & ~ended
        assert torch.equal(played["reward"][:, 0] > 0, new)
        assert torch.equal(played["success"][:, 0][new], torch.ones_like(near)[new])
        assert torch.equal(played["terminated"][:, 0][new], torch.ones_like(near)[new])
        assert (played["goal"][new] == GOAL_COMPLETED).all()
        total, ended = total + played["reward"][:, 0], ended | near
        td = played.exclude("reward")
    assert total.tolist() == [1.0] * 3


def test_a_reward_that_needs_more_than_the_goals_is_named():
    message = (
        r"a test: compute_reward must .* goals alone, got .*KeyError.*bonus.*; leave out .* info"
    )
    with pytest.raises(ValueError, match=message) as caught:
        SingleGoal(own_envs.PaidByInfo(), radius=None, owner="a test")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_relabelled_trajectory_is_what_the_environment_would_have_shown(monkeypatch):
    env = GymGoals(id=REACH, num_envs=8, seed=4)
    env.reset()
    batch = pack(env.rollout(20, break_when_any_done=False))
    out = Relabel("all", radius=env.goal_radius, generator=torch.Generator().manual_seed(0))(batch)
    changed = (out["goal"][:, 0] != batch["goal"][:, 0]).flatten(1).any(-1)
    assert changed.sum() >= 4
    for row in changed.nonzero().flatten().tolist():
        goal = out["goal"][row, 0, 0].double().numpy()
        assert any(
            np.allclose(goal, place) for place in batch["achieved"][row, 1:, 0].double().numpy()
        )
        single = SingleGoal(own_envs.PointReach(), radius=None, owner="a test")
        single.reset(seed=0)
        single.unwrapped.goal = 0.1 * goal
        for t in range(int(out["mask"][row].sum()) - 1):
            shown, reward, terminated, _, info = single.step(out["action"][row, t].numpy())
            assert reward == out["next", "reward"][row, t].item()
            assert terminated == out["next", "terminated"][row, t].item()
            assert info["success"] == bool(reward)
            assert np.allclose(shown["goal"], out["goal"][row, t + 1].numpy(), atol=1e-5)
        assert out["next", "terminated"][row].any()


@pytest.mark.parametrize(
    ("settings", "radius", "message"),
    [
        ({"told": False}, None, r"radius must be given and positive, as env\.radius=0\.05"),
        (
            {"sparse": False},
            None,
            "radius must be the distance within which compute_reward pays its best",
        ),
        ({}, 0.2, r"radius must be the distance within which compute_reward .* got '0\.2, where"),
        ({}, 0.0, "radius must be given and positive"),
    ],
)
def test_a_radius_that_is_not_the_environments_is_refused(settings, radius, message):
    with pytest.raises(ValueError, match=message):
        GymGoals(id=REACH, settings=settings, radius=radius)
    assert GymGoals(id=REACH, settings={"told": False}, radius=0.1).goal_radius == 1.0


def test_an_environment_without_goals_is_refused():
    with pytest.raises(
        ValueError, match=r"GymGoals\('CartPole-v1'\): observation_space must have the entries"
    ):
        GymGoals(id="CartPole-v1")


def test_a_goal_that_looks_like_an_unused_slot_is_told_apart():
    single = SingleGoal(own_envs.PointReach(), radius=None, owner="a test")
    single.reset(seed=0)
    single.unwrapped.goal = np.full(2, 0.1 * GOAL_PAD)
    shown = single.step(np.zeros(2, np.float32))[0]
    assert (shown["goal"] != GOAL_PAD).all()
    assert np.allclose(shown["goal"], GOAL_PAD)


# Tasks.


def trials(num_envs=2, **settings):
    return RepeatedTrials(
        Gym(id=SLOT, num_envs=num_envs, seed=5, **settings), num_trials=3, horizon=12
    )


def rewards_of(env, steps=12):
    td, seen = env.reset(), []
    for _ in range(steps):
        played, td = env.step_and_maybe_reset(
            td.set("action", torch.zeros(env.batch_size, dtype=torch.int64))
        )
        seen.append(played["next", "reward"][:, 0])
    return torch.stack(seen, 1).unflatten(1, (3, 4))


@pytest.mark.parametrize("takes", ["options", "set_task"])
def test_trials_keep_the_task_and_differ_in_their_noise(takes):
    played = rewards_of(trials(tasks="own", settings={"takes": takes}))
    assert not torch.equal(played[:, 0], played[:, 1])
    assert not torch.equal(played[:, 1], played[:, 2])
    assert torch.equal(
        played, rewards_of(trials(tasks="own", settings={"takes": takes}))
    )  # by the seed
    env = trials(tasks="own", settings={"takes": takes})
    tasks = []
    td = env.reset()
    for _ in range(12):
        td = env.step_and_maybe_reset(td.set("action", torch.zeros(2, dtype=torch.int64)))[1]
        tasks.append([single.unwrapped.task for single in env.env._play()._envs])
    assert len({tuple(pair) for pair in tasks[:-1]}) == 1
    assert tasks[-1] != tasks[0]  # another episode


def test_without_tasks_trials_repeat_their_noise():
    played = rewards_of(trials())
    assert torch.equal(played[:, 0], played[:, 1])


def test_a_function_of_ones_own_draws_tasks():
    assert (rewards_of(trials(tasks=lever)) > 90.0).all()


def test_a_resumed_episode_has_the_noise_of_its_trial():
    env, again = trials(tasks="own"), trials(tasks="own")
    td = env.reset()
    action = torch.zeros(2, dtype=torch.int64)
    for _ in range(6):  # in the second trial
        td = env.step_and_maybe_reset(td.set("action", action))[1]
    again.load_state_dict(env.state_dict())
    other = (
        again.present().set("action", action)
        if callable(getattr(again, "present", None))
        else td.clone()
    )
    for _ in range(6):
        first, td = env.step_and_maybe_reset(td.set("action", action))
        second, other = again.step_and_maybe_reset(other.set("action", action))
        assert torch.equal(first["next", "reward"], second["next", "reward"])
        assert torch.equal(first["next", "done"], second["next", "done"])


def test_an_environment_that_draws_no_tasks_is_refused():
    with pytest.raises(
        ValueError, match=r"tasks must be a function \(seed\) -> task, as env\.tasks"
    ):
        Gym(id="CartPole-v1", tasks="own")
    assert gymnasium.spec("own/Slot-v0").id == "own/Slot-v0"


class Door(gymnasium.Env):
    """One of fifty doors is the right one; the noise of an episode is no part of its task."""

    observation_space = gymnasium.spaces.Box(0.0, 50.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def sample_task(self, seed):
        return int(np.random.default_rng(seed).integers(50))

    def task_hash(self, task):
        return task

    def set_task(self, task):
        self.task = task

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.task], np.float32), {}

    def step(self, action):
        return np.array([self.task], np.float32), 0.0, True, False, {}


def doors(split, seed):
    """The doors of many episodes."""
    if "own/Door-v0" not in gymnasium.registry:
        gymnasium.register("own/Door-v0", Door)
    env = Gym(id="own/Door-v0", tasks="own", split=split, num_envs=8, time_limit=None, seed=seed)
    return set(env.rollout(40, break_when_any_done=False)["observation"].flatten().int().tolist())


def test_tasks_of_ones_own_are_held_out_by_their_hash():
    assert len(doors("all", 0)) == len(doors("all", 1)) == 50
    train, test = doors("train", 0), doors("test", 1)
    assert train | test == set(range(50))
    assert train & test == set()
    assert 3 < len(test) < 25
    assert doors("train", 2) == train
    assert Gym(id="own/Door-v0", tasks="own", split="train").novelty == "new tasks"
    assert Gym(id="own/Door-v0", tasks="own").novelty is None


def test_what_cannot_tell_its_tasks_apart_holds_none_out():
    with pytest.raises(
        ValueError, match=r"split must be 'all', or the environment must have task_hash\(task\)"
    ):
        Gym(id="own/Slot-v0", tasks="own", split="train")
    with pytest.raises(ValueError, match="split must be 'all' where tasks is None, got 'test'"):
        Gym(id="CartPole-v1", split="test")


def test_too_few_tasks_of_ones_own_are_named():
    apart = TaskWrapper(Door(), draw=lambda seed: 7, split="train", held_out=0.25)
    other = TaskWrapper(Door(), draw=lambda seed: 7, split="test", held_out=0.25)
    with pytest.raises(ValueError, match="split must be 'all' where there are so few tasks"):
        [env.reset(seed=0) for env in (apart, other)]
