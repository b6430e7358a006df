"""Every kind of space trains, is saved, acts in the numbers of the environment and is read from
data.
"""

import contextlib
import io

import gymnasium
import pytest
import yamame
from recorded_episodes import Echo, changed, differences, play, read, write
from space_matrix import UNWRITABLE, actions, observations, pairs
from yamame.data import hdf5, minari, npz

PAIRS = pairs()
SMALL = (
    "debug=tiny",
    "logger=none",
    "encoder=gru",
    "encoder.hidden_size=8",
    "encoder.out_features=8",
    "agent.critic.hidden_size=8",
)
SMALL += ("timestep_encoder.hidden_size=8", "agent.actor.hidden_size=8")


def test_each_space_is_in_a_pair():
    names = [name.split("-") for name in PAIRS]
    assert {observation for observation, _ in names} == set(observations())
    assert {action for _, action in names} == set(actions())


def register(name):
    """Registers an environment of a pair; returns its id."""
    id = f"matrix/{name}-v0"
    shown, done = PAIRS[name]
    if id not in gymnasium.registry:
        gymnasium.register(id, entry_point=lambda: Echo(shown, done), max_episode_steps=9)
    return id


@pytest.mark.filterwarnings("ignore:.*Casting input")  # of numbers that Gymnasium itself samples
@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_trains_and_its_saved_agent_acts_in_the_numbers_of_the_environment(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()):
        run = yamame.train("env=gym", f"env.id={register(name)}", *SMALL)
    assert run.progress.updates == 2
    agent = yamame.load(run.path)
    env = gymnasium.make(register(name), disable_env_checker=True)
    observation, reward = env.reset(seed=3)[0], None
    for _ in range(3):
        # Echo itself asserts that its action space contains the action.
        action = agent.env_action(agent.act(observation, reward=reward))
        assert type(action) is type(env.action_space.sample())
        observation, reward, *_ = env.step(action)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of Minari
@pytest.mark.parametrize("name", PAIRS)
def test_an_episode_of_plain_gymnasium_is_read_as_the_collector_stores_it(name, tmp_path, capsys):
    episode = play(*PAIRS[name])
    found = {}
    for source in (npz, hdf5, minari):
        if not any(text in f"{name}-" for text in UNWRITABLE.get(source.__name__, ())):
            found[source.__name__] = differences(source, write(source, episode, tmp_path), episode)
    assert not any(found.values()), found


def test_a_file_may_have_the_names_of_entries_where_it_cannot_hold_a_key(tmp_path):
    space = observations()["dict_of_awkward_keys"]
    episode = play(space, actions()["discrete"])
    named = {}
    for entry in episode.env.spaces.observations:
        named[entry.name[1]] = episode.recorded["observations"][entry.path[0]]
    assert {"_", "__", "shape_", "shape__"} <= set(named)
    for source in (npz, hdf5):
        assert read(changed(episode, observations=named), tmp_path, source) == []


def test_a_shifted_recording_is_found(tmp_path):
    """A negative control of the comparison."""
    (name,) = [name for name in PAIRS if name.startswith("discrete_start-")]
    episode = play(*PAIRS[name])
    assert read(episode, tmp_path) == []
    shifted = changed(episode, observations=episode.recorded["observations"][::-1].copy())
    assert read(shifted, tmp_path) != []
