import gymnasium
import numpy as np
import pytest
import torch
from torchrl.envs import check_env_specs
from yamame_envs import Gym
from yamame_envs.adapters.extras import MissingExtra


def test_cartpole_is_the_environment_played_by_hand():
    env = Gym(id="CartPole-v1", num_envs=2, seed=3)
    check_env_specs(env)
    td = env.reset(seed=None)
    hand = []
    for row in range(2):
        single = gymnasium.make("CartPole-v1")
        task = int(env.state_dict()["task_seed"][row]) & (2**31 - 1)
        hand.append((single, single.reset(seed=task)[0]))
    over = [False, False]
    for t in range(30):
        action = torch.tensor([t % 2, 1])
        played, td = env.step_and_maybe_reset(td.set("action", action))
        for row, (single, before) in enumerate(hand):
            if over[row]:
                continue
            assert torch.equal(played["observation"][row], torch.from_numpy(before))
            after, reward, over[row], _, _ = single.step(int(action[row]))
            hand[row] = (single, after)
            assert torch.equal(played["next", "observation"][row], torch.from_numpy(after))
            assert played["next", "terminated"][row] == over[row]
            assert played["next", "reward"][row] == reward
    assert over == [False, True] or over == [True, True]


@pytest.mark.parametrize(
    ("time_limit", "shown", "ends", "terminated"),
    [("registered", True, 200, True), (7, True, 7, True), (None, False, 200, False)],
)
def test_the_limit_of_an_episode(time_limit, shown, ends, terminated):
    env = Gym(id="Pendulum-v1", time_limit=time_limit)
    assert ("time" in env.observation_spec.keys()) == shown
    played = env.rollout(300)
    assert played.shape == (1, ends)
    assert played["next", "terminated"][0, -1] == terminated
    assert played["next", "truncated"][0, -1] == (not terminated)
    assert env.action_spec.space.high.item() == 2.0


def test_settings_reach_the_environment():
    env = Gym(id="FrozenLake-v1", settings={"map_name": "8x8", "is_slippery": False}, num_envs=2)
    check_env_specs(env)
    assert env.observation_spec["observation"].shape == (2, 64)
    td = env.reset()
    assert (td["observation"].argmax(-1) == 0).all()
    assert (
        env.step(td.set("action", torch.tensor([1, 2])))["next", "observation"].argmax(-1)
    ).tolist() == [
        8,
        1,
    ]


def test_a_tuple_is_nested_below_observation():
    env = Gym(id="Blackjack-v1", num_envs=3)
    check_env_specs(env)
    assert env.reset()["observation", "0"].shape == (3, 32)
    assert env.reset()["observation", "2"].shape == (3, 2)


def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "registers_it.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('from_module/Walk-v0', entry_point='faulty_envs:Walk', "
        "max_episode_steps=3,\n"
        "    kwargs={'num_actions': 3})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = Gym(id="registers_it:from_module/Walk-v0", time_limit=None)
    played = env.rollout(5)
    assert played.shape[1] <= 3
    assert "time" not in env.observation_spec.keys()
    del gymnasium.registry["from_module/Walk-v0"]


def test_a_wrong_id_is_one_line():
    with pytest.raises(
        ValueError, match=r"^Gym: id must be registered with Gymnasium .* got 'CartPoll-v1'"
    ) as error:
        Gym(id="CartPoll-v1")
    assert "\n" not in str(error.value)
    with pytest.raises(
        MissingExtra,
        match=r"^Gym: id must be of a package that is installed or in this directory, got "
        r"'not_there:A-v0': No mod",
    ):
        Gym(id="not_there:A-v0")


def test_a_missing_package_and_wrong_settings_are_one_line():
    pytest.importorskip("gymnasium")
    if _installed("Box2D"):
        pytest.skip("needs an environment whose package is missing")
    with pytest.raises(
        MissingExtra, match=r"^Gym\('LunarLander-v3'\): its packages must be installed: "
    ):
        Gym(id="LunarLander-v3")


def test_wrong_settings_are_one_line():
    with pytest.raises(
        ValueError, match=r"^Gym\('CartPole-v1'\): settings must .* got {'gravitas': 3}; "
    ):
        Gym(id="CartPole-v1", settings={"gravitas": 3})


def test_a_space_that_cannot_be_used_names_the_environment_and_the_remedy():
    class Unbounded(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))

    gymnasium.register("unbounded/Here-v0", entry_point=Unbounded)
    with pytest.raises(
        ValueError,
        match=r"^Gym\('unbounded/Here-v0'\): action_space must have finite bounds.*TransformAction",
    ):
        Gym(id="unbounded/Here-v0")
    del gymnasium.registry["unbounded/Here-v0"]


def test_drawing_without_the_package_for_it_says_so():
    env = Gym(id="CartPole-v1")
    env.reset()
    if _installed("pygame"):
        assert env.render().dtype == np.uint8
    else:
        with pytest.raises(
            NotImplementedError, match=r"^Gym\('CartPole-v1'\): env 0 cannot be drawn: .*pygame"
        ):
            env.render()


def _installed(name):
    from importlib.util import find_spec

    return find_spec(name) is not None
