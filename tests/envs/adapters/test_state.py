import io

import pytest
import torch
from faulty_envs import CUT, END, FINE, Walk
from yamame_envs import HostedEnv, Workers


def _actions(steps, rows, seed=0):
    drawn = torch.rand(steps, rows, generator=torch.Generator().manual_seed(seed))
    return torch.where(drawn < 0.05, END, torch.where(drawn < 0.1, CUT, FINE))


def _through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("taken", [0, 1, 17, 150])
def test_a_loaded_state_goes_on_exactly(walks, steps, equal, taken):
    env = walks(3, seed=4, time_limit=40)
    td = env.reset()
    if taken:
        _, td = steps(env, _actions(taken, 3), td=td)
    state = _through_a_file(env.state_dict())
    future = _actions(60, 3, seed=1)
    expected, _ = steps(env, future, td=td)
    other = walks(3, seed=99, time_limit=40)
    steps(other, _actions(5, 3))  # something else before
    other.load_state_dict(state)
    equal(other.present(), td, skip=("action",))
    found, _ = steps(other, future, td=other.present())
    equal(found, expected)
    assert other.num_aborted == 0


def test_a_state_is_not_changed_by_going_on(walks, steps, equal):
    env = walks(3)
    _, td = steps(env, _actions(10, 3))
    state = env.state_dict()
    kept = _through_a_file(state)
    steps(env, _actions(10, 3), td=td)
    for name in ("episodes", "task_seed", "actions"):
        assert torch.equal(state[name], kept[name]), name
    assert all(
        torch.equal(state["timestep"][name], kept["timestep"][name]) for name in state["timestep"]
    )


def test_a_state_before_the_first_reset_is_a_beginning(walks, steps, equal):
    state = walks(2, seed=6).state_dict()
    other = walks(2, seed=7)
    other.load_state_dict(state)
    equal(steps(other, _actions(5, 2))[0], steps(walks(2, seed=6), _actions(5, 2))[0])


def test_rows_that_are_over_stay_over(walks):
    env = walks(2)
    shown = env.step(env.reset().set("action", torch.tensor([END, FINE])))["next"]
    other = walks(2)
    other.load_state_dict(_through_a_file(env.state_dict()))
    assert other.present()["done"].flatten().tolist() == [True, False]
    assert torch.equal(other.present()["observation"], shown["observation"])
    following = other.step(other.present().set("action", torch.tensor([FINE, FINE])))["next"]
    assert following["step_index"].flatten().tolist() == [1, 2]
    assert other.num_aborted == 0


def test_rows_that_come_out_differently_are_aborted_and_nothing_else(walks, steps):
    env = walks(3, noise=True)
    actions = torch.full((4, 3), FINE)
    actions[3, 1] = END  # begins anew: nothing random has happened to row 1
    _, td = steps(env, actions)
    other = walks(3, noise=True)
    other.load_state_dict(_through_a_file(env.state_dict()))
    assert torch.equal(other.present()["observation"], td["observation"])
    played, after = steps(other, torch.full((1, 3), FINE), td=other.present())
    following = played["next"][:, 0]
    assert following["aborted"].flatten().tolist() == [True, False, True]
    assert following["truncated"].flatten().tolist() == [True, False, True]
    assert following["reward"].flatten()[[0, 2]].tolist() == [0.0, 0.0]
    assert torch.equal(following["observation"][[0, 2]], td["observation"][[0, 2]])
    assert after["is_init"].flatten().tolist() == [True, False, True]
    assert other.num_aborted == 2
    _, after = steps(other, torch.full((3, 3), FINE), td=after)
    assert other.num_aborted == 2


def test_a_row_that_will_be_aborted_is_so_after_another_load_too(walks, steps):
    env = walks(2, noise=True)
    steps(env, torch.full((4, 2), FINE))
    second, third = walks(2, noise=True), walks(2, noise=True)
    second.load_state_dict(env.state_dict())
    third.load_state_dict(_through_a_file(second.state_dict()))
    played, _ = steps(third, torch.full((1, 2), FINE), td=third.present())
    assert played["next", "aborted"].all()
    assert third.num_aborted == 2


def test_a_row_that_came_out_differently_but_is_reset_is_not_aborted(walks, steps):
    env, other = walks(2, noise=True), walks(2, noise=True)
    steps(env, torch.full((4, 2), FINE))
    other.load_state_dict(env.state_dict())
    td = other.reset(other.present().set("_reset", torch.tensor([[True], [False]])))
    played, _ = steps(other, torch.full((1, 2), FINE), td=td)
    assert played["next", "aborted"].flatten().tolist() == [False, True]


def test_an_episode_that_is_over_when_played_again_did_not_come_out_the_same(steps):
    class Ending(Walk):
        ends = False

        def step(self, action):
            observation, reward, _, cut, info = super().step(action)
            return observation, reward, self.ends, cut, info

    env, other = HostedEnv(Ending, num_envs=1), HostedEnv(Ending, num_envs=1)
    steps(env, torch.full((3, 1), FINE))
    for ends in (False, True):
        Ending.ends = ends
        other.load_state_dict(env.state_dict())
        Ending.ends = False
        played, _ = steps(other, torch.full((1, 1), FINE), td=other.present())
        assert played["next", "aborted"].all() == ends


def test_the_actions_of_running_episodes_are_kept_however_long_the_run(walks):
    env = walks(2)
    td, taken = env.reset(), [[], []]
    for action in _actions(300, 2):
        _, td = env.step_and_maybe_reset(td.set("action", action))
        for row in range(2):
            taken[row].append(int(action[row]))
            if td["is_init"][row]:
                taken[row] = []
        kept = env.state_dict()["actions"]
        assert [kept[row, : len(taken[row])].tolist() for row in range(2)] == taken


def test_counts_are_kept(walks, steps):
    env = walks(2, workers=Workers(on_error="continue", max_errors=1))
    steps(env, torch.tensor([[FINE, -1], [FINE, FINE]]))
    other = walks(2, workers=Workers(on_error="continue", max_errors=1))
    other.load_state_dict(_through_a_file(env.state_dict()))
    assert other.num_aborted == 1
    with pytest.raises(RuntimeError, match="failed more often than max_errors=1"):
        steps(other, torch.tensor([[FINE, -1]]), td=other.present())


def test_another_number_of_rows_is_refused(walks):
    with pytest.raises(ValueError, match=r"HostedEnv: state_dict must hold 2 envs, got '3 envs'"):
        walks(2).load_state_dict(walks(3).state_dict())


def test_a_long_run_forgets_the_actions_of_episodes_that_are_over(walks, steps):
    env = walks(2, time_limit=10)
    steps(env, torch.full((500, 2), FINE))
    assert len(env._history._taken) < 200
    assert env.state_dict()["actions"].shape[1] < 10
