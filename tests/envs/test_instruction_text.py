"""Instructions as people write them, in environments whose goals are numbers."""

import pytest
import torch
from tensordict import TensorDict
from yamame.goals import GOAL_PAD
from yamame_envs import MazeRunner, PackageDelivery, RepeatedTrials

PAD = [GOAL_PAD, GOAL_PAD]


def test_every_episode_asks_for_the_goals_that_were_set_until_they_are_drawn_again():
    env = MazeRunner(num_envs=3, size=7, num_goals=2, time_limit=2, seed=4)
    drawn = env.reset()["goal"]
    env.set_instruction("4,3 5,3")
    wanted = torch.tensor([[4.0, 3.0], [5.0, 3.0]]).expand(3, 2, 2)
    assert torch.equal(env.reset()["goal"], wanted)
    played = env.rollout(6, break_when_any_done=False)
    assert torch.equal(played["goal"][:, 2], wanted)  # the second episode
    env.set_instruction("4,3")
    assert env.reset()["goal"][0].tolist() == [[4.0, 3.0], PAD]
    env.set_instruction(None)
    env.set_seed(4)
    assert torch.equal(env.reset()["goal"], drawn)
    assert not torch.equal(drawn, wanted)


def test_mazes_are_those_of_the_seed_and_a_reset_may_still_ask_for_something_else():
    free, asked = (MazeRunner(num_envs=2, size=7, num_goals=1, seed=4) for _ in range(2))
    asked.set_instruction("4,3")
    assert torch.equal(free.reset()["observation"], asked.reset()["observation"])
    other = torch.full((2, 1, 2), 5.0)
    assert torch.equal(asked.reset(TensorDict({"instruction": other}, [2]))["goal"], other)


def test_it_holds_for_all_trials_and_in_every_environment_with_goals():
    inner = MazeRunner(num_envs=1, size=7, num_goals=1, time_limit=2)
    inner.set_instruction("4,3")
    trials = RepeatedTrials(inner, num_trials=2).rollout(4)["goal"]
    assert set(trials.flatten().tolist()) <= {4.0, 3.0, -3.0}
    road = PackageDelivery(num_envs=1, length=30)
    road.set_instruction("7 21")
    assert road.reset()["goal"].flatten().tolist()[:2] == [7.0, 21.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"MazeRunner: instruction must hold 1..2 goals separated by spaces, got ''"),
        ("1,1 1,2 1,3", r"instruction must hold 1..2 goals separated by spaces, got '1,1 1,2 1,3'"),
        ("1", r"instruction must hold goals A,B with numbers in 0..6, got '1'"),
        ("1,7", r"instruction must hold goals A,B with numbers in 0..6, got '1,7'"),
        ("1,-1", r"instruction must hold goals A,B with numbers in 0..6, got '1,-1'"),
        ("one,two", r"instruction must hold goals A,B with numbers in 0..6, got 'one,two'"),
    ],
)
def test_what_is_no_instruction_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        MazeRunner(size=7, num_goals=2).set_instruction(text)


def test_a_wall_is_refused_by_the_maze_that_has_it_with_free_cells_near_it():
    env = MazeRunner(size=7, num_goals=2)
    env.set_instruction("5,3 0,3")
    with pytest.raises(
        ValueError, match=r"without a wall in this maze \(near it (\d,\d ?){3}\), got '0,3'"
    ):
        env.reset()
