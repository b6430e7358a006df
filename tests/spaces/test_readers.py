"""One episode of plain Gymnasium is the same to the environment, to files of data and to an agent
that acts.
"""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from recorded_episodes import (
    ACTIONS,
    BOX,
    LENGTH,
    OBSERVATIONS,
    SHIFTED,
    act,
    changed,
    differences,
    hot,
    make_env,
    play,
    read,
    write,
)
from torchrl.envs import GymEnv, SerialEnv, TransformedEnv
from yamame.checks import UsageError
from yamame.data import TrajectoryFormat, hdf5, minari, npz, torchrl
from yamame.deploy import Interface
from yamame.transforms import ContextTransform


def all_differences(episode, folder):
    """`differences` of each source that reads files of plain Gymnasium."""
    sources = (npz, hdf5, minari)
    return {
        source.__name__: differences(source, write(source, episode, folder), episode)
        for source in sources
    }


SAME = {"npz": [], "hdf5": [], "minari": []}


quiet = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of Minari


@quiet
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_recorded_observations_are_read_as_the_collector_stores_them(name, tmp_path):
    assert all_differences(play(OBSERVATIONS[name], ACTIONS["discrete"]), tmp_path) == SAME


@quiet
@pytest.mark.parametrize("name", ACTIONS)
def test_recorded_actions_are_read_as_the_collector_stores_them(name, tmp_path):
    assert all_differences(play(OBSERVATIONS["float32"], ACTIONS[name]), tmp_path) == SAME


@quiet
@pytest.mark.parametrize("name", ["int16", "nested", "tuple"])
def test_entries_at_the_root_are_read_as_the_collector_stores_them(name, tmp_path):
    assert (
        all_differences(play(OBSERVATIONS[name], ACTIONS["start"], generic=False), tmp_path) == SAME
    )


FORMS = {
    "floats": lambda space, values: values.astype(np.float64),
    "small_integers": lambda space, values: values.astype(np.int8),
    "one_hots": hot,
    "one_hot_flags": lambda space, values: hot(space, values).astype(bool),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "space", [spaces.Discrete(50, start=1), SHIFTED], ids=["discrete", "multi_discrete"]
)
def test_choices_may_be_numbers_of_any_dtype_or_one_hots(space, form, tmp_path):
    episode = play(space, space)
    for key in ("observations", "actions"):
        given = FORMS[form](space, episode.recorded[key])
        assert read(changed(episode, **{key: given}), tmp_path) == []
        wrong = given.copy()
        wrong[0], wrong[1] = given[1], given[0]  # a negative control
        assert (
            read(changed(episode, **{key: wrong}), tmp_path) != [] or (given[0] == given[1]).all()
        )


def test_a_number_per_timestep_may_be_a_column(tmp_path):
    episode = play(OBSERVATIONS["start"], ACTIONS["start"])
    columns = {key: episode.recorded[key][:, None] for key in ("observations", "actions")}
    assert read(changed(episode, **columns), tmp_path) == []
    wide = {"actions": np.repeat(columns["actions"], 2, 1)}
    assert "(7, 2)" in read(changed(episode, **wide), tmp_path)


@pytest.mark.parametrize(
    ("key", "space", "value", "range_text"),
    [
        ("observation", spaces.Discrete(50, start=1), 0, "1..50"),
        ("observation", spaces.Discrete(50, start=1), 51, "1..50"),
        ("observation", spaces.Discrete(4, start=-2), 2, "-2..1"),
        ("observation", SHIFTED, 0, "[ 1 -2]..[4 2]"),
        ("observation", spaces.Discrete(50, start=1), 1.5, "1..50"),
        ("observation", BOX, np.nan, "finite"),
        ("action", spaces.Discrete(50, start=1), 0, "1..50"),
        ("action", spaces.Discrete(50, start=1), 51, "1..50"),
        ("action", spaces.Discrete(4, start=-2), 2, "-2..1"),
        ("action", SHIFTED, 0, "[ 1 -2]..[4 2]"),
        ("action", spaces.Box(-3, 30, (2,), np.int16), -4, "-3..30"),
        ("action", spaces.Discrete(50, start=1), 1.5, "1..50"),
        ("action", spaces.MultiBinary(4), 2, "0..1"),
        ("action", BOX, np.nan, "-1..1"),
    ],
)
def test_values_outside_the_space_are_refused_in_its_own_numbers(
    key, space, value, range_text, tmp_path
):
    pair = {"observation": OBSERVATIONS["float32"], "action": ACTIONS["discrete"], key: space}
    episode = play(pair["observation"], pair["action"])
    values = episode.recorded[f"{key}s"].astype(
        np.float64 if isinstance(value, float) else np.int64
    )
    values[2] = value
    told = read(changed(episode, **{f"{key}s": values}), tmp_path)
    assert f"entry '{key}'" in told
    assert range_text in told
    assert f"got {value} in row 2" in told


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3.0, 1e4])
def test_continuous_actions_outside_by_rounding_become_the_bound_and_others_are_refused(
    scale, tmp_path
):
    episode = play(OBSERVATIONS["float32"], spaces.Box(-scale, scale, (2,), np.float64))
    given = np.zeros((LENGTH, 2))
    given[1], given[2] = scale * (1 + 1e-6), [-scale * (1 + 1e-6), scale]
    path = write(npz, changed(episode, actions=given), tmp_path)
    try:
        actions = npz(path, format=episode.format).stores[0].get([0])["action"][0]
    except ValueError as error:
        actions = str(error)
    bound = episode.env.action_spec.space.high[0, 0]
    assert not isinstance(actions, str), actions
    assert torch.equal(actions[1:3].abs(), bound.expand(2, 2))
    given[4, 1] = scale * 1.01
    told = read(changed(episode, actions=given), tmp_path)
    assert "entry 'action'" in told
    assert f"got {scale * 1.01} in row 4" in told
    assert f"{scale:g}" in told


def test_steps_that_are_left_out_may_hold_anything(tmp_path):
    episode = play(OBSERVATIONS["start"], ACTIONS["start"])
    shown = episode.recorded["observations"]
    steps = {**episode.recorded, "observations": shown[:-1], "next_observations": shown[1:]}
    longer = {key: np.concatenate([part, np.zeros_like(part[:3])]) for key, part in steps.items()}
    assert "got 0 in row" in read(changed(episode, **longer), tmp_path)
    assert read(changed(episode, **longer), tmp_path, drop_unfinished=True) == []


def test_an_unknown_last_observation_is_zeros_whatever_the_numbers_of_the_space(tmp_path):
    episode = play(OBSERVATIONS["start"], ACTIONS["start"])
    flat = changed(episode, observations=episode.recorded["observations"][:-1])
    differing = read(flat, tmp_path)
    assert [key for key, *_ in differing] == ["observation"]
    _, got, expected = differing[0]
    assert got[:-1] == expected[:-1]
    assert set(got[-1]) == {0.0}


def test_where_specs_alone_say_one_hot_indices_are_as_good(tmp_path):
    env = TransformedEnv(SerialEnv(1, lambda: GymEnv("FrozenLake-v1")), ContextTransform())
    torch.manual_seed(0)
    steps = env.rollout(200)[0]
    format = TrajectoryFormat(env)
    expected = torchrl(steps, format=format).stores[0].get([0])[0]
    assert expected["observation"].shape[-1] == 16
    shown = torch.cat([steps["observation"], steps["next", "observation"][-1:]]).int().argmax(-1)
    done = {key: steps["next", key].numpy() for key in ("terminated", "truncated")}
    arrays = {
        "actions": steps["action"].int().argmax(-1),
        "rewards": steps["next", "reward"],
        **done,
    }
    np.savez(tmp_path / "episode.npz", observations=shown, **arrays)
    got = npz(str(tmp_path / "episode.npz"), format=format).stores[0].get([0])[0]
    assert [
        key for key in expected.keys(True, True) if not torch.equal(got[key], expected[key])
    ] == []
    assert all(got[key].dtype == expected[key].dtype for key in expected.keys(True, True))


def test_one_array_is_not_taken_for_several_entries(tmp_path):
    pair = spaces.Dict({"a": BOX, "b": BOX})
    episode = play(pair, ACTIONS["discrete"])
    told = read(changed(episode, observations=episode.recorded["observations"]["a"]), tmp_path)
    assert "must hold an array for each of" in str(told)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_an_agent_reads_values_of_the_space_as_the_collector_stores_them(name, deployed):
    episode = play(OBSERVATIONS[name], ACTIONS["discrete"])
    agent, seen = deployed(episode.env)
    actions = act(agent, *episode.shown)
    assert len(seen) == len(episode.shown), actions
    for key in agent.observation_spec.keys(True, True):
        assert torch.equal(torch.cat([entries[key] for entries in seen]), episode.stored[key]), key

    seen.clear()
    by_name = episode.stored.select(*agent.observation_spec.keys(True, True))
    assert act(agent, *by_name) == actions
    assert act(agent, *(entries.numpy() for entries in by_name)) == actions
    agent.reset(sessions=range(LENGTH + 1))
    seen.clear()
    agent.act(episode.recorded["observations"], sessions=range(LENGTH + 1))
    for key in agent.observation_spec.keys(True, True):
        assert torch.equal(seen[0][key], episode.stored[key]), key


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_of_an_agent_becomes_the_value_that_the_environment_takes(name, deployed):
    episode = play(OBSERVATIONS["float32"], ACTIONS[name])
    agent, _ = deployed(episode.env)
    actions = episode.stored["action"][:-1]
    for action, expected in zip(actions, episode.done, strict=True):
        value = agent.env_action(action.numpy()[()])
        assert ACTIONS[name].contains(value), value
        assert str(value) == str(expected) or np.all(value == expected)
    assert str(agent.env_action(actions.numpy())) == str(
        [agent.env_action(action) for action in actions]
    )
    played = agent.env_action(agent.act(episode.shown[0]))
    assert ACTIONS[name].contains(played), played


@pytest.mark.parametrize(
    ("space", "value", "range_text"),
    [(spaces.Discrete(50, start=1), 0, "1..50"), (SHIFTED, [1, 3], "[ 1 -2]..[4 2]")],
)
def test_an_agent_refuses_values_outside_the_space_in_its_own_numbers(
    space, value, range_text, deployed
):
    agent, _ = deployed(make_env(space, ACTIONS["discrete"]))
    told = act(agent, np.array(value))
    assert "'observation'" in told
    assert range_text in told
    assert told.endswith(f"got {np.ravel(value)[-1]}")


def test_an_agent_of_an_earlier_version_reads_stored_entries_as_before(deployed):
    def earlier(data):
        return {key: value for key, value in data.items() if key != "spaces"}

    episode = play(OBSERVATIONS["start"], ACTIONS["start"])
    agent, _ = deployed(episode.env, earlier)
    entries = episode.stored["observation"].numpy()
    assert len(act(agent, *entries)) == LENGTH + 1
    assert "(50,)" in act(agent, episode.shown[0])
    assert int(agent.env_action(np.int64(3))) == 3  # the file does not say where the space begins


@pytest.mark.parametrize(
    "damage",
    [
        {"observations": [{"kind": "one_hot"}]},
        {"action": {"kind": "discrete", "parts": [], "tree": 0, "box_dtype": "float32"}},
        {"observations": 3},
    ],
)
def test_a_damaged_description_is_refused(damage):
    data = Interface.of(make_env(OBSERVATIONS["start"], ACTIONS["start"])).encode()
    assert Interface.decode(data).encode() == data
    with pytest.raises(UsageError, match="interface must"):
        Interface.decode({**data, "spaces": {**data["spaces"], **damage}})
