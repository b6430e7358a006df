"""One episode of plain Gymnasium is the same to the environment, to files of data and to an agent that acts."""

import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from torchrl.envs import GymEnv, SerialEnv, TransformedEnv
from yamame import conf_dir
from yamame.checks import UsageError
from yamame.cli.nodes import plain
from yamame.data import TrajectoryFormat, hdf5, minari, npz, torchrl
from yamame.deploy import DeployedAgent, Interface, SavedAgent
from yamame.deploy.build import build_agent
from yamame.replay import pack
from yamame.transforms import ContextTransform
from yamame_envs import Gym, HostedEnv

LENGTH, SEED = 7, 5
BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
SHIFTED = spaces.MultiDiscrete([4, 5], start=[1, -2])
OBSERVATIONS = {
    "discrete": spaces.Discrete(5),
    "start": spaces.Discrete(50, start=1),
    "negative_start": spaces.Discrete(50, start=-20),
    "one_value": spaces.Discrete(1, start=3),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_discrete_start": SHIFTED,
    "table": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [-1, 7]])),
    "multi_binary": spaces.MultiBinary(3),
    "bit_table": spaces.MultiBinary((2, 2)),
    "float32": BOX,
    "float64": spaces.Box(-0.1, 0.1, (2, 2), np.float64),
    "int64": spaces.Box(-3, 5, (2,), np.int64),
    "int16": spaces.Box(0, 6, (4,), np.int16),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "few_bytes": spaces.Box(0, 3, (2,), np.uint8),
    "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "unbounded": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "number": spaces.Box(0.0, 1.0, (), np.float32),
    "nested": spaces.Dict(
        {"a": spaces.Discrete(30, start=4), "inner": spaces.Dict({"b": SHIFTED, "c": BOX})}
    ),
    "named_observation": spaces.Dict({"observation": BOX, "phase": spaces.Discrete(30, start=-1)}),
    "tuple": spaces.Tuple([spaces.Discrete(30, start=2), spaces.Tuple([spaces.MultiBinary(2), BOX])]),
}
ACTIONS = {
    "discrete": spaces.Discrete(5),
    "start": spaces.Discrete(50, start=1),
    "negative_start": spaces.Discrete(50, start=-20),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_discrete_start": SHIFTED,
    "table": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [-1, 7]])),
    "multi_binary": spaces.MultiBinary(4),
    "bit_table": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(np.array([[-2.0], [0.0]], np.float32), np.array([[1.0], [9.0]], np.float32)),
    "float64": spaces.Box(-0.1, 0.1, (3,), np.float64),
    "whole": spaces.Box(-3, 30, (2,), np.int16),
    "tuple": spaces.Tuple([spaces.Discrete(30, start=3), spaces.Discrete(2)]),
    "boxes": spaces.Tuple([BOX, spaces.Box(0.0, 5.0, (1,), np.float32)]),
    "dict": spaces.Dict({"b": spaces.Discrete(20, start=1), "a": spaces.MultiBinary(2)}),
}


class Echo(gymnasium.Env):
    """Shows samples of its observation space that its seed determines, for `LENGTH` steps."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        over = self.steps == LENGTH
        return self.observation_space.sample(), self.steps / 2, over, False, {}


gymnasium.register("SpacesEcho-v0", entry_point=Echo)


def own_value(space, numbers):
    """The value of an action space for the numbers of a stored action, which count from 0; takes them off a list."""
    if isinstance(space, spaces.Dict):
        return {key: own_value(part, numbers) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(own_value(part, numbers) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return space.start + int(numbers.pop(0))
    flat = np.array([numbers.pop(0) for _ in range(int(np.prod(space.shape)))]).reshape(space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        flat = flat + space.start
    elif isinstance(space, spaces.Box) and space.dtype.kind == "i":
        flat = flat + space.low
    return flat.astype(space.dtype)


def stacked(values):
    """Values of timesteps as arrays in the structure of the space."""
    if isinstance(values[0], dict):
        return {key: stacked([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(stacked(list(part)) for part in zip(*values, strict=True))
    return np.stack([np.asarray(value) for value in values])


def paths(tree, name):
    """Arrays by the names that a file has of them."""
    if isinstance(tree, dict | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {path: array for key, part in items for path, array in paths(part, f"{name}/{key}").items()}
    return {name: tree}


def make_env(observation_space, action_space, generic=True):
    settings = {"observation_space": observation_space, "action_space": action_space}
    if generic:
        return Gym(id="SpacesEcho-v0", settings=settings, num_envs=1)
    return HostedEnv(lambda: Echo(**settings), num_envs=1)


def play(observation_space, action_space, generic=True):
    """One episode twice: as an environment and its collector store it, and as plain Gymnasium records it."""
    env = make_env(observation_space, action_space, generic)
    torch.manual_seed(0)
    actions = [env.action_spec.rand() for _ in range(LENGTH)]
    timestep, steps = env.reset(TensorDict({"task_seed": torch.tensor([[SEED]])}, [1])), []
    timestep = timestep.exclude("task_seed")
    for action in actions:
        steps.append(env.step(timestep.set("action", action)).clone())
        timestep = steps[-1]["next"].exclude("reward")
    format = TrajectoryFormat(env)
    stored = pack(torch.stack(steps, 1))[0].select(*format.entries)

    made = Echo(observation_space, action_space)
    shown, done, rewards = [made.reset(seed=SEED)[0]], [], []
    for action in actions:
        done.append(own_value(action_space, action.flatten().tolist()))
        observation, reward, *_ = made.step(done[-1])
        shown.append(observation)
        rewards.append(reward)
    recorded = {
        "observations": stacked(shown),
        "actions": stacked(done),
        "rewards": np.array(rewards),
        "terminated": np.arange(LENGTH) == LENGTH - 1,
        "truncated": np.zeros(LENGTH, bool),
    }
    own = {"observation_space": observation_space, "action_space": action_space}
    return SimpleNamespace(
        env=env, format=format, stored=stored, recorded=recorded, shown=shown, done=done, spaces=own
    )


def write(source, episode, folder):
    """Writes the recorded episode; returns its path as the source takes it."""
    named = {name: paths(part, name) for name, part in episode.recorded.items()}
    arrays = {path: array for part in named.values() for path, array in part.items()}
    if source is npz:
        np.savez(folder / "episode.npz", **arrays)
        return str(folder / "episode.npz")
    if source is hdf5:
        with pytest.importorskip("h5py").File(folder / "episode.hdf5", "w") as file:
            for path, array in arrays.items():
                file[path] = array
        return str(folder / "episode.hdf5")
    library = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer  # what collects for Minari needs more packages

    names = {"terminated": "terminations", "truncated": "truncations"}
    buffer = EpisodeBuffer(id=0, **{names.get(key, key): part for key, part in episode.recorded.items()})
    author = {"author": "a", "author_email": "a@b.c", "code_permalink": "a", "algorithm_name": "a"}
    library.create_dataset_from_buffers("test/echo-v0", [buffer], **episode.spaces, **author)
    return "test/echo-v0"


def differences(source, path, episode, **options):
    """Entries that a source reads differently from what the collector stored, or why it refuses them."""
    try:
        dataset = source(path, format=episode.format, **options)
    except ValueError as error:
        return str(error)
    got = dataset.stores[0].get([0])[0]
    assert set(got.keys(True, True)) == {*episode.stored.keys(True, True), "mask"}
    return [
        (key, got[key].tolist(), expected.tolist())
        for key, expected in episode.stored.items(True, True)
        if got[key].dtype != expected.dtype or not torch.equal(got[key], expected)
    ]


def all_differences(episode, folder):
    """`differences` of each source that reads files of plain Gymnasium."""
    sources = (npz, hdf5, minari)
    return {
        source.__name__: differences(source, write(source, episode, folder), episode) for source in sources
    }


@pytest.fixture(autouse=True)
def minari_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


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
    assert all_differences(play(OBSERVATIONS[name], ACTIONS["start"], generic=False), tmp_path) == SAME


def changed(episode, **arrays):
    return SimpleNamespace(**{**vars(episode), "recorded": {**episode.recorded, **arrays}})


def read(episode, folder, source=npz, **options):
    return differences(source, write(source, episode, folder), episode, **options)


def hot(space, values):
    """One-hots of values, one group for each choice."""
    sizes, low = np.atleast_1d(getattr(space, "nvec", getattr(space, "n", 0))), np.atleast_1d(space.start)
    groups = [
        np.eye(size)[column - first]
        for size, first, column in zip(sizes, low, values.reshape(len(values), -1).T, strict=True)
    ]
    return np.concatenate(groups, 1)


FORMS = {
    "floats": lambda space, values: values.astype(np.float64),
    "small_integers": lambda space, values: values.astype(np.int8),
    "one_hots": hot,
    "one_hot_flags": lambda space, values: hot(space, values).astype(bool),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("space", [spaces.Discrete(50, start=1), SHIFTED], ids=["discrete", "multi_discrete"])
def test_choices_may_be_numbers_of_any_dtype_or_one_hots(space, form, tmp_path):
    episode = play(space, space)
    for key in ("observations", "actions"):
        given = FORMS[form](space, episode.recorded[key])
        assert read(changed(episode, **{key: given}), tmp_path) == []
        wrong = given.copy()
        wrong[0], wrong[1] = given[1], given[0]  # a negative control
        assert read(changed(episode, **{key: wrong}), tmp_path) != [] or (given[0] == given[1]).all()


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
def test_values_outside_the_space_are_refused_in_its_own_numbers(key, space, value, range_text, tmp_path):
    pair = {"observation": OBSERVATIONS["float32"], "action": ACTIONS["discrete"], key: space}
    episode = play(pair["observation"], pair["action"])
    values = episode.recorded[f"{key}s"].astype(np.float64 if isinstance(value, float) else np.int64)
    values[2] = value
    told = read(changed(episode, **{f"{key}s": values}), tmp_path)
    assert f"entry '{key}'" in told
    assert range_text in told
    assert told.endswith(f"got {value} in row 2")


@pytest.mark.parametrize("scale", [1e-3, 1.0, 3.0, 1e4])
def test_continuous_actions_outside_by_rounding_become_the_bound_and_others_are_refused(scale, tmp_path):
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


def test_actions_that_count_from_0_in_a_file_are_read_so_if_asked_and_told_otherwise(tmp_path, capsys):
    episode = play(OBSERVATIONS["start"], ACTIONS["start"])
    exported = changed(episode, actions=episode.stored["action"][:-1].numpy())
    capsys.readouterr()
    read(exported, tmp_path)
    told = capsys.readouterr().err
    assert "count from 1" in told
    assert "+data.source.indices=true" in told
    assert read(exported, tmp_path, indices=True) == []
    assert read(episode, tmp_path) == []
    plain_episode = play(OBSERVATIONS["start"], ACTIONS["discrete"])
    capsys.readouterr()
    assert read(plain_episode, tmp_path) == read(plain_episode, tmp_path, indices=True) == []
    assert capsys.readouterr().err == ""


def test_rollouts_of_torchrl_hold_actions_as_the_environment_takes_them():
    env = make_env(OBSERVATIONS["start"], ACTIONS["start"])
    steps = env.rollout(LENGTH)[0]
    read_steps = torchrl(steps, format=TrajectoryFormat(env)).stores[0].get([0])[0]
    assert torch.equal(read_steps["action"][:-1], steps["action"])
    own = steps.clone().set("action", steps["action"] + 1)
    read_own = torchrl(own, format=TrajectoryFormat(env), indices=False).stores[0].get([0])[0]
    assert torch.equal(read_own["action"], read_steps["action"])


def test_where_specs_alone_say_one_hot_indices_are_as_good(tmp_path):
    env = TransformedEnv(SerialEnv(1, lambda: GymEnv("FrozenLake-v1")), ContextTransform())
    torch.manual_seed(0)
    steps = env.rollout(200)[0]
    format = TrajectoryFormat(env)
    expected = torchrl(steps, format=format).stores[0].get([0])[0]
    assert expected["observation"].shape[-1] == 16
    shown = torch.cat([steps["observation"], steps["next", "observation"][-1:]]).int().argmax(-1)
    done = {key: steps["next", key].numpy() for key in ("terminated", "truncated")}
    arrays = {"actions": steps["action"].int().argmax(-1), "rewards": steps["next", "reward"], **done}
    np.savez(tmp_path / "episode.npz", observations=shown, **arrays)
    got = npz(str(tmp_path / "episode.npz"), format=format).stores[0].get([0])[0]
    assert [key for key in expected.keys(True, True) if not torch.equal(got[key], expected[key])] == []
    assert all(got[key].dtype == expected[key].dtype for key in expected.keys(True, True))


def test_columns_side_by_side_of_a_space_that_does_not_count_from_0_are_refused(tmp_path):
    episode = play(OBSERVATIONS["float32"], ACTIONS["tuple"])
    flat = np.stack(episode.recorded["actions"], 1)
    assert "entry 'action' must have the shape" in read(changed(episode, actions=flat), tmp_path)
    assert read(changed(episode, actions=flat - [3, 0]), tmp_path, indices=True) == []
    counted = play(OBSERVATIONS["float32"], spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]))
    flat = np.stack(counted.recorded["actions"], 1)
    assert read(changed(counted, actions=flat), tmp_path) == []


def test_one_array_is_not_taken_for_several_entries(tmp_path):
    pair = spaces.Dict({"a": BOX, "b": BOX})
    episode = play(pair, ACTIONS["discrete"])
    told = read(changed(episode, observations=episode.recorded["observations"]["a"]), tmp_path)
    assert "must hold an array for each of" in str(told)


@pytest.fixture(scope="module")
def config():
    """The configuration of a small agent."""
    widths = [
        f"{part}.hidden_size=16" for part in ("encoder", "timestep_encoder", "agent.actor", "agent.critic")
    ]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return plain(compose("train", overrides=["encoder=gru", "encoder.out_features=16", *widths]))


@pytest.fixture
def deployed(config):
    """Makes an agent with new weights from the file of an environment, and the list of entries that it has read."""

    def make(env, change=lambda data: data):
        interface = Interface.decode(json.loads(json.dumps(change(Interface.of(env).encode()))))
        weights = build_agent(config, interface).state_dict()
        agent = DeployedAgent(SavedAgent("a test", config, interface, weights), greedy=True)
        seen = []
        agent.step.register_forward_hook(lambda module, given, answer: seen.append(given[0].clone()))
        return agent, seen

    return make


def act(agent, *observations):
    """Shows an agent observations one after the other; returns the actions, or why one is refused."""
    agent.reset()
    try:
        return [
            agent.act(observation, reward=float(step > 0)) for step, observation in enumerate(observations)
        ]
    except ValueError as error:
        return str(error)


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
    assert str(agent.env_action(actions.numpy())) == str([agent.env_action(action) for action in actions])
    played = agent.env_action(agent.act(episode.shown[0]))
    assert ACTIONS[name].contains(played), played


@pytest.mark.parametrize(
    ("space", "value", "range_text"),
    [(spaces.Discrete(50, start=1), 0, "1..50"), (SHIFTED, [1, 3], "[ 1 -2]..[4 2]")],
)
def test_an_agent_refuses_values_outside_the_space_in_its_own_numbers(space, value, range_text, deployed):
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
