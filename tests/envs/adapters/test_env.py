import threading
from functools import partial

import numpy as np
import pytest
import torch
from faulty_envs import CUT, END, FINE, Echo, Walk
from gymnasium import spaces
from tensordict import TensorDict
from torchrl.envs import check_env_specs
from yamame_envs import HostedEnv, Workers
from yamame_envs.streams import fold

MASK = 2**31 - 1


def _actions(steps, rows, seed=0):
    """Mostly fine ones, with ends in between that differ between rows."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(steps, rows, generator=generator)
    return torch.where(drawn < 0.1, END, torch.where(drawn < 0.2, CUT, FINE))


def _naive(seed, row, actions, time_limit):
    """One row, played by hand: the list of (observation, reward, terminated, truncated, success,
    first).
    """
    env, episode, seen = Walk(), 0, []
    stream = fold(fold(torch.tensor(seed), row), 0)
    observation = None
    for action in actions:
        if observation is None:
            stream = fold(fold(torch.tensor(seed), row), episode)
            observation, _ = env.reset(seed=int(stream) & MASK)
            taken, episode = 0, episode + 1
        before = observation
        observation, reward, end, cut, info = env.step(int(action))
        taken += 1
        over = time_limit is not None and taken >= time_limit
        seen.append(
            (before, observation, reward, end or over, cut and not over, info["success"], taken)
        )
        if end or cut or over:
            observation = None
    return seen


@pytest.mark.parametrize("time_limit", [None, 7])
@pytest.mark.parametrize("fused", [True, False])
def test_every_row_is_the_environment_played_by_hand(walks, steps, time_limit, fused):
    env = walks(3, seed=5, time_limit=time_limit)
    actions = _actions(60, 3)
    played, _ = steps(env, actions, fused=fused)
    for row in range(3):
        hand = _naive(5, row, actions[:, row].tolist(), time_limit)
        for t, (before, after, reward, end, cut, success, taken) in enumerate(hand):
            now = played[row, t]
            following = now["next"]
            assert torch.equal(now["observation"], torch.from_numpy(before))
            assert torch.equal(following["observation"], torch.from_numpy(after))
            assert following["reward"] == following["prev_reward"] == np.float32(reward)
            assert (following["terminated"], following["truncated"]) == (end, cut)
            assert following["done"] == (end or cut)
            assert following["success"] == success
            assert (now["step_index"], following["step_index"]) == (taken - 1, taken)
            assert now["is_init"] == now["trial_start"] == (taken == 1)
            assert not following["is_init"]
            assert not following["aborted"]
            if time_limit is not None:
                assert following["time"] == np.float32(taken) / np.float32(time_limit)
    assert ("time" in env.observation_spec.keys()) == (time_limit is not None)
    assert played["next", "truncated"].any()
    assert played["next", "terminated"].any()


def test_reaching_the_time_limit_terminates_even_if_the_environment_truncates_there(walks, steps):
    env = walks(1, time_limit=3)
    played, _ = steps(env, torch.tensor([[FINE], [FINE], [CUT], [FINE], [CUT]]))
    assert played["next", "terminated"][0, :, 0].tolist() == [False, False, True, False, False]
    assert played["next", "truncated"][0, :, 0].tolist() == [False, False, False, False, True]


def test_fused_steps_are_those_of_torchrl(walks, steps, equal):
    actions = _actions(50, 4)
    fused, after = steps(walks(4, time_limit=9), actions)
    plain, after_plain = steps(walks(4, time_limit=9), actions, fused=False)
    equal(fused, plain)
    equal(after, after_plain, skip=("action",))


@pytest.mark.parametrize("time_limit", [None, 4])
@pytest.mark.parametrize("tells_success", [True, False])
def test_the_specs_hold(walks, time_limit, tells_success):
    env = walks(
        3, time_limit=time_limit, tells_success=tells_success, num_actions=3
    )  # random ones: no faults
    check_env_specs(env)
    assert ("success" in env.observation_spec.keys()) == tells_success


def test_nested_entries_hold_their_specs_and_play():
    space = spaces.Dict(
        {
            "observation": spaces.Dict(
                {"view": spaces.Box(0, 255, (2, 3), np.uint8), "place": spaces.Discrete(4)}
            ),
            "goal": spaces.Box(-3, 5, (2, 1)),
            "achieved": spaces.Box(0, 5, (1, 1)),
            "achieved_mask": spaces.MultiBinary(1),
            "trial_start": spaces.MultiBinary(1),
        }
    )
    env = HostedEnv(partial(Echo, space), num_envs=3)
    check_env_specs(env)
    td = env.reset()
    assert td["observation", "place"].shape == (3, 4)
    assert td["observation", "view"].dtype == torch.uint8
    starts = [td["trial_start"]]
    for _ in range(10):
        _, td = env.step_and_maybe_reset(env.rand_action(td))
        starts.append(td["trial_start"])
        assert not td["is_init"].any()
    flags = torch.cat(starts, -1)
    assert 0 < flags.sum() < flags.numel()  # as the environment says, not only at the start


def test_the_same_seed_replays_and_another_does_not(walks, steps, equal):
    actions = _actions(30, 3)
    first, _ = steps(walks(3, seed=1), actions)
    equal(first, steps(walks(3, seed=1), actions)[0])
    other, _ = steps(walks(3, seed=2), actions)
    assert not torch.equal(first["observation"], other["observation"])
    again = walks(3, seed=2)
    steps(again, actions)
    again.set_seed(1)
    equal(first, steps(again, actions)[0])


def test_rows_do_not_depend_on_one_another(walks, steps, equal):
    actions = _actions(40, 4)
    many, _ = steps(walks(4), actions)
    few, _ = steps(walks(2), actions[:, :2])
    equal(many[:2], few)
    changed = actions.clone()
    changed[3, 3] = END
    varied, _ = steps(walks(4), changed)
    equal(many[:3], varied[:3])
    assert not torch.equal(many["observation"][3], varied["observation"][3])


def test_a_partial_reset_touches_its_rows_alone(walks, steps):
    env = walks(4)
    played, td = steps(env, torch.full((3, 4), FINE))
    mask = torch.tensor([[False], [True], [False], [True]])
    after = env.reset(td.clone().set("_reset", mask))
    assert after["is_init"][:, 0].tolist() == [False, True, False, True]
    assert torch.equal(after["observation"][[0, 2]], td["observation"][[0, 2]])
    assert (after["observation"][[1, 3], 1] == 0).all()
    assert (after["observation"][[1, 3], 3] != td["observation"][[1, 3], 3]).all()  # another task
    assert torch.equal(
        played["next", "observation"][:, -1], td["observation"]
    )  # what was shown stays


def test_a_task_seed_chooses_the_task_and_numbered_episodes_wait(walks):
    env, other = walks(3), walks(3)
    chosen = torch.tensor([[7], [2**40 + 7], [-3]])
    first = env.reset(TensorDict({"task_seed": chosen}, [3]))["observation"]
    for row, seed in enumerate(chosen.flatten().tolist()):
        assert torch.equal(first[row], torch.from_numpy(Walk().reset(seed=seed & MASK)[0]))
    assert torch.equal(env.reset()["observation"], other.reset()["observation"])
    with pytest.raises(ValueError, match=r"task_seed must be int64 \(3, 1\), got 'torch.int32"):
        env.reset(TensorDict({"task_seed": chosen.int()}, [3]))


def test_a_row_that_is_over_stays_where_it_is_until_it_is_reset(walks):
    env = walks(2, time_limit=4)
    td = env.reset().set("action", torch.tensor([END, FINE]))
    first = env.step(td)["next"]
    second = env.step(first.clone().set("action", torch.tensor([FINE, FINE])))["next"]
    assert torch.equal(second["observation"][0], first["observation"][0])
    assert second["step_index"].flatten().tolist() == [1, 2]
    assert second["terminated"].flatten().tolist() == [True, False]
    assert second["success"].flatten().tolist() == [True, False]
    assert second["reward"].flatten().tolist() == [0.0, float(second["observation"][1, 0])]
    assert env.num_aborted == 0


def test_what_was_shown_is_never_changed_later(walks, steps):
    env = walks(2)
    td = env.reset()
    kept, copies = [], []
    for action in _actions(20, 2):
        played, td = env.step_and_maybe_reset(td.set("action", action))
        kept.append(played)
        copies.append(played.clone())
    assert all((a == b).all() for a, b in zip(kept, copies, strict=True))


def test_a_row_can_be_drawn(walks, steps):
    env = walks(2)
    with pytest.raises(ValueError, match=r"HostedEnv: env_id must be an env that was reset, got 0"):
        env.render()
    steps(env, torch.tensor([[FINE, FINE], [FINE, END]]))
    assert env.render(0).shape == (2, 3, 3)
    assert (env.render(0) == 2).all()
    assert (env.render(1) == 0).all()
    with pytest.raises(ValueError, match=r"env_id must be an env that was reset, got 2"):
        env.render(2)


def test_what_cannot_be_drawn_says_why():
    env = HostedEnv(partial(Echo, spaces.Discrete(2)), num_envs=1)
    env.reset()
    with pytest.raises(
        NotImplementedError, match=r"^HostedEnv: env 0 cannot be drawn: it has no method render"
    ):
        env.render()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 0}, r"HostedEnv: num_envs must be at least 1, got 0"),
        ({"time_limit": 0}, r"HostedEnv: time_limit must be at least 1, got 0"),
        (
            {"workers": Workers(num_processes=1), "good_resets": threading.Lock().acquire},
            r"HostedEnv: make must be picklable .* a function of a module",
        ),
    ],
)
def test_wrong_settings_are_refused(walks, settings, message):
    with pytest.raises(ValueError, match=message):
        walks(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_processes": -1}, r"Workers: num_processes must be at least 0, got -1"),
        (
            {"on_error": "ignore"},
            r"Workers: on_error must be one of \('raise', 'continue'\), got 'ignore'",
        ),
        ({"max_errors": -1}, r"Workers: max_errors must be at least 0, got -1"),
        ({"timeout": 0.0}, r"Workers: timeout must be above 0 .*got 0.0"),
    ],
)
def test_wrong_workers_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Workers(**settings)


def test_a_step_needs_a_reset_and_a_closed_environment_is_closed(walks):
    env = walks(1)
    with pytest.raises(RuntimeError, match=r"HostedEnv: reset must be called before step"):
        env.step(TensorDict({"action": torch.tensor([0])}, [1]))
    env.reset()
    env.close()
    assert env.is_closed
    env.close(raise_if_closed=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_live_on_the_device(walks, steps, equal):
    actions = _actions(20, 3)
    here, _ = steps(walks(3), actions)
    there, _ = steps(walks(3, device="cuda"), actions.cuda())
    assert there["observation"].is_cuda
    equal(here, there.cpu())


def test_an_environment_without_success_can_be_moved_before_its_first_reset(walks):
    env = walks(tells_success=False)
    assert "success" not in env.observation_spec.keys()
    env.float()  # as a move to another device
    assert "success" not in env.reset().keys()
