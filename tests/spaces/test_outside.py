"""Numbers out of the bounds of their space: the same setting for an environment, for data and for
an agent.
"""

import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces
from recorded_episodes import (
    ACTIONS,
    LENGTH,
    OBSERVATIONS,
    act,
    changed,
    make_env,
    play,
    read,
    write,
)
from straying import Straying
from yamame.checks import UsageError
from yamame.data import npz, torchrl
from yamame.data.format import TrajectoryFormat
from yamame.files.identity import compare_config
from yamame.system.messages import OutsideError
from yamame_envs import Gym, HostedEnv, Workers
from yamame_envs.adapters.spaces import read_observation

BOX = spaces.Box(-1.5, 1.5, (2,), np.float32)


def hosted(bounds, shown, *, num_envs=2, num_processes=0, space=BOX):
    workers = Workers(num_processes=num_processes)
    make = Straying.maker(space, shown)
    return HostedEnv(make, num_envs=num_envs, bounds=bounds, workers=workers)


@pytest.mark.parametrize("num_processes", [0, 2])
def test_values_out_of_bounds_are_kept_and_reported_once_by_default(num_processes, capsys):
    env = hosted("warn", [1.0, 99.0], num_envs=3, num_processes=num_processes)
    assert (env.rollout(4)["observation"] == torch.tensor([1.0, 99.0])).all()
    env.close()
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "HostedEnv: in env 0 at the start of task" in told
    assert "observation must be in -1.5..1.5" in told
    assert "env.bounds=clip" in told
    assert "env.bounds=raise" in told


def test_each_entry_is_reported_where_it_first_strays(capsys):
    space = spaces.Dict({"a": BOX, "b": BOX, "c": spaces.Box(0, 9, (2,), np.uint8)})
    shown = {"a": np.zeros(2), "b": np.full(2, 2.0), "c": np.full(2, 10, np.uint8)}
    hosted("warn", shown, space=space).rollout(3)
    told = capsys.readouterr().err.splitlines()
    assert ["b must" in line or "c must" in line for line in told] == [True, True]


def test_clipped_values_are_the_bounds_and_nothing_is_said(capsys):
    env = hosted("clip", [-9.0, 1.6])
    assert (env.rollout(3)["observation"] == torch.tensor([-1.5, 1.5])).all()
    whole = hosted("clip", [-9, 4], space=spaces.Box(-3, 3, (2,), np.int64))
    assert (whole.rollout(3)["observation"] == torch.tensor([-3.0, 3.0])).all()
    half = spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, 0.0]), dtype=np.float64)
    assert (
        hosted("clip", [-1.0, 1e9], space=half).rollout(2)["observation"] == torch.zeros(2)
    ).all()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("num_processes", [0, 1])
def test_values_out_of_bounds_are_errors_if_asked_that_name_the_setting(num_processes):
    env = hosted("raise", [0.0, 1.6], num_processes=num_processes)
    with pytest.raises(OutsideError, match=r"in env 0 .* must be in -1\.5\.\.1\.5, .*env\.bounds="):
        env.rollout(3)
    env.close()


@pytest.mark.parametrize("bounds", ["warn", "clip", "raise"])
def test_rounding_is_never_out_of_bounds_and_nan_always_an_error(bounds, capsys):
    env = hosted(bounds, [1.5 * (1 + 9e-6), -1.5 - 1e-6])
    assert env.rollout(3)["observation"].abs().allclose(torch.tensor(1.5))
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(OutsideError, match="observation must be finite"):
            hosted(bounds, [0.0, wrong]).rollout(2)
    # Discrete values out of their range have no one-hot.
    with pytest.raises(OutsideError, match=r"must be in 1\.\.4, got 5"):
        hosted(bounds, 5, space=spaces.Discrete(4, start=1)).rollout(2)
    assert capsys.readouterr().err == ""


def test_another_setting_is_refused():
    with pytest.raises(ValueError, match=r"Gym\('CartPole-v1'\): bounds must be one of .*'error'"):
        Gym(bounds="error")


# Data.


def strayed(bounds, value):
    """An episode whose file has a value in its place."""
    env = make_env(OBSERVATIONS["float32"], ACTIONS["float64"], bounds=bounds)
    episode = play(OBSERVATIONS["float32"], ACTIONS["float64"])
    shown = episode.recorded["observations"].copy()
    shown[2, 0] = value
    return changed(episode, observations=shown), TrajectoryFormat(env)


def observed(episode, format, folder):
    path = write(npz, episode, folder)
    return npz(path, format=format).stores[0].get([0])["observation"][0]


def test_observations_in_files_follow_the_setting(tmp_path, capsys):
    episode, format = strayed("raise", 1e6)
    with pytest.raises(ValueError, match=r"entry 'observation' must be in -1\.\.1.*env\.bounds="):
        observed(episode, format, tmp_path)

    episode, format = strayed("clip", 1e6)
    assert observed(episode, format, tmp_path)[2, 0] == 1.0
    assert capsys.readouterr().err == ""

    episode, format = strayed("warn", 1e6)
    for _ in range(2):
        assert observed(episode, format, tmp_path)[2, 0] == 1e6
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "episode.npz: entry 'observation' must be in -1..1" in told
    assert "env.bounds=clip" in told


@pytest.mark.parametrize("bounds", ["warn", "clip", "raise"])
def test_files_have_the_slack_of_the_environment(bounds, tmp_path, capsys):
    episode, format = strayed(bounds, 1.0 + 9e-6)
    assert observed(episode, format, tmp_path)[2, 0] == pytest.approx(1.0, abs=1e-5)
    for wrong in (np.nan, np.inf):
        episode, format = strayed(bounds, wrong)
        with pytest.raises(ValueError, match="must be finite"):
            observed(episode, format, tmp_path)
    assert capsys.readouterr().err == ""


def test_zeros_of_an_unknown_observation_are_in_bounds(tmp_path, capsys):
    space = spaces.Box(1.0, 2.0, (2,), np.float32)
    episode = play(space, ACTIONS["discrete"])
    shown = episode.recorded["observations"]
    following = np.concatenate([shown[1:-1], np.zeros_like(shown[:1])])
    flat = changed(episode, observations=shown[:-1], next_observations=following)
    assert [key for key, *_ in read(flat, tmp_path)] == ["observation"]
    following[0, 0] = 0.0
    assert "must be" in str(read(flat, tmp_path))


def test_actions_in_files_are_refused_or_clipped(tmp_path):
    episode = play(OBSERVATIONS["float32"], ACTIONS["float64"])
    given = np.zeros((LENGTH, 3))
    given[1], given[2, 0] = 0.1 * (1 + 1e-6), 0.3
    path = write(npz, changed(episode, actions=given), tmp_path)
    for bounds in ("warn", "raise"):
        format = TrajectoryFormat(
            make_env(OBSERVATIONS["float32"], ACTIONS["float64"], bounds=bounds)
        )
        with pytest.raises(ValueError, match=r"entry 'action' must be in .*0\.3.*env\.bounds=clip"):
            npz(path, format=format)
    env = make_env(OBSERVATIONS["float32"], ACTIONS["float64"], bounds="clip")
    actions = npz(path, format=TrajectoryFormat(env)).stores[0].get([0])["action"][0]
    high = env.action_spec.space.high[0]
    assert torch.equal(actions[1], high)
    assert actions[2, 0] == high[0]

    given[4, 1] = np.nan
    path = write(npz, changed(episode, actions=given), tmp_path)
    with pytest.raises(ValueError, match="got nan"):
        npz(path, format=TrajectoryFormat(env))


def test_own_rollouts_of_kept_values_are_read_again():
    env = hosted("warn", [0.0, 9.0], num_envs=1)
    steps = env.rollout(3)[0]
    steps["next", "truncated"][-1] = True
    assert torchrl(steps, format=TrajectoryFormat(env)).stores[0].get([0])["observation"].max() == 9


# Agents.


def test_an_agent_follows_the_setting_of_its_training(deployed):
    agents = {}
    for bounds in ("raise", "clip", "warn"):
        agents[bounds], seen = deployed(make_env(BOX, ACTIONS["discrete"], bounds=bounds))
        agents[bounds].seen = seen
    assert "must be in -1.5..1.5" in act(agents["raise"], [9.0, 0.0])
    assert len(act(agents["clip"], [9.0, 0.0])) == 1
    assert agents["clip"].seen[-1]["observation"].tolist() == [[1.5, 0.0]]
    with pytest.warns(UserWarning, match=r"must be in -1\.5\.\.1\.5.*got 9"):
        assert len(act(agents["warn"], [9.0, 0.0])) == 1
    assert agents["warn"].seen[-1]["observation"].tolist() == [[9.0, 0.0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(act(agents["warn"], [8.0, 0.0])) == 1
    for agent in agents.values():
        assert "finite" in act(agent, [np.nan, 0.0])


# Runs.


def test_a_run_that_strayed_goes_on_with_another_setting():
    saved = {"env": {"_target_": "yamame_envs.Gym", "id": "Lander-v0", "bounds": "raise"}}
    earlier = {"env": {"_target_": "yamame_envs.Gym", "id": "Lander-v0"}}
    for bounds in ("warn", "clip"):
        current = {"env": {**saved["env"], "bounds": bounds}}
        compare_config(saved, current)
        compare_config(earlier, current)
    with pytest.raises(UsageError, match="env"):
        compare_config(saved, {"env": {**saved["env"], "id": "Other-v0"}})


def test_bounds_are_checked_once_per_batch():
    (entry,) = read_observation(BOX, owner="Room", generic=True, outside="warn")
    raw = np.array([[0.0, 9.0], [0.0, 0.0], [7.0, 0.0]], np.float32)
    stored, faults, remarks = entry.finish(raw)
    assert (faults, sorted(remarks)) == ({}, [0, 2])
    assert np.array_equal(stored, raw)
    assert entry.finish(raw, reports=False)[2] == {}
