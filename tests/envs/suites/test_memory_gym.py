import numpy as np
import pytest
import torch
from yamame_envs import MemoryGym
from yamame_envs.suites.memory_gym_task import names

pytest.importorskip("memory_gym", reason="Memory Gym is not installed")

LIMITS = {
    "MortarMayhem-Grid": 119,
    "MysteryPath-Grid": 128,
    "SearingSpotlights": 256,
    "Endless-MysteryPath": None,
}


def knows(row):
    """The action of who knows the commands and where to go: turn towards the target, go there,
    wait.
    """
    here, target = row.agent.grid_position, row._target_pos
    way = (target[0] - here[0], target[1] - here[1])
    if row._command_visualization or way == (0, 0):
        return 0
    wanted = {(0, -1): 0, (-1, 0): 1, (0, 1): 2, (1, 0): 3}[
        tuple(np.sign(way).astype(int).tolist())
    ]
    return 3 if row.agent.face_direction.value == wanted else 1


def test_all_environments_are_found():
    assert len(names()) == 10
    assert set(LIMITS) <= set(names())


@pytest.mark.parametrize(("id", "limit"), LIMITS.items())
def test_limits_are_the_environments_own_and_pictures_are_bytes(id, limit):
    env = MemoryGym(id=id)
    assert env.time_limit == limit
    assert ("success" in env.observation_spec.keys()) == (not id.startswith("Endless"))
    seen = env.reset()["observation"]
    assert seen.dtype == torch.uint8
    assert seen.shape == (1, 84, 84, 3)


def test_who_knows_the_commands_completes_them_within_the_limit():
    env = MemoryGym(num_envs=2, seed=4)
    td, total, steps = env.reset(), torch.zeros(2, 1), 0
    while not td["done"].any():
        actions = [knows(row.unwrapped) for row in env._play()._envs]
        td = env.step(td.set("action", torch.tensor(actions)))["next"]
        total, steps = total + td["reward"], steps + 1
    assert steps <= LIMITS["MortarMayhem-Grid"]
    assert td["success"].all()
    assert total.flatten().tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("count", [1, 2])
def test_who_does_nothing_fails_with_the_first_command_were_it_the_last(count):
    env = MemoryGym(seed=4, options={"command_count": [count], "allowed_commands": 4})
    td = env.reset()
    while not td["done"].any():
        td = env.step(td.set("action", torch.zeros(1, dtype=torch.int64)))["next"]
    assert not td["success"].any()
    assert count * 4 < td["step_index"].item() < 20  # commands are shown for four steps each


def test_one_env_that_is_closed_leaves_the_others_their_display():
    first, second = MemoryGym(seed=1), MemoryGym(seed=1)
    expected = second.reset()["observation"]
    first.rollout(5)
    first.close()
    second.set_seed(1)
    assert torch.equal(second.reset()["observation"], expected)
    assert expected.any()


@pytest.mark.parametrize("id", ["MysteryPath", "SearingSpotlights", "MortarMayhemB-Grid"])
def test_an_episode_is_a_pure_function_of_its_seed_whatever_is_drawn_beside_it(id):
    def played(beside):
        env = MemoryGym(id=id, num_envs=2, seed=7)
        torch.manual_seed(0)
        actions = [env.action_spec.rand() for _ in range(30)]
        td, seen = env.reset(), []
        for action in actions:
            if beside is not None:
                beside.rollout(1)
            td = env.step_and_maybe_reset(td.set("action", action))[1]
            seen.append(td["observation"].clone())
        return torch.stack(seen)

    other = MemoryGym(id="MortarMayhem-Grid", seed=3)
    assert (played(None) == played(other)).all()


def test_an_unknown_environment_is_refused():
    with pytest.raises(
        ValueError, match=r"MemoryGym: id must be one of .*MortarMayhem-Grid.*, got 'Mortar'"
    ):
        MemoryGym(id="Mortar")
