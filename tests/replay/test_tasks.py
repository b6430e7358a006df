"""Hindsight task relabelling gives the trajectories of an environment with that goal."""

import pytest
import torch
from tensordict import TensorDict
from yamame.checks import ArgumentError
from yamame.replay import RelabelTasks, pack
from yamame_envs import XLand
from yamame_envs.xland.achieved import encoded_goals
from yamame_envs.xland.rules import compile_rules
from yamame_envs.xland.rulesets import canonical

NUM_ENVS = 64
SETTINGS = {
    "num_envs": NUM_ENVS,
    "size": 6,
    "trial_limit": 25,
    "reward": "success",
    "trial_end": "reset_step",
    "achieved": True,
    "seed": 5,
}


class RelabelChosen(RelabelTasks):
    """Gives chosen goals; the drawn ones if there are none."""

    goal = None

    def _draw(self, achieved, may_reach):
        if self.goal is None:
            self.goal = super()._draw(achieved, may_reach)
        return self.goal


def first_episodes(env):
    """The first episode of every env, with random actions."""
    torch.manual_seed(0)
    limits = {"break_when_any_done": False, "break_when_all_done": True}
    return pack(env.rollout(env.time_limit, **limits), split=False)


def numbers_of(goals):
    """Numbers of encoded goals ``[N, 5]``."""
    known = canonical({"goal": encoded_goals()})["goal"].tolist()
    # The smallest number of those that mean the same.
    numbers = {tuple(goal): number for number, goal in reversed([*enumerate(known)])}
    own = canonical({"goal": goals})["goal"].tolist()
    return torch.tensor([numbers[tuple(goal)] for goal in own], dtype=torch.int32)


def play_with(goals, actions):
    """Timesteps and transitions of the same tasks with other goals, for given actions."""
    env = XLand(**SETTINGS)
    current = env.reset()
    task = env.env_state.task
    task["goal"] = encoded_goals()[goals.long()]
    task["program"] = compile_rules(task["goal"], torch.zeros(NUM_ENVS, 0, 7, dtype=torch.uint8))
    steps = []
    for action in actions.unbind(1):
        step, current = env.step_and_maybe_reset(current.set("action", action))
        steps.append(step.clone())
    return pack(torch.stack(steps, 1), split=False)


def test_trajectories_are_those_of_the_environment_with_the_new_goals():
    before = first_episodes(XLand(**SETTINGS))
    transform = RelabelChosen(1.0)
    after = transform(before)
    goals = transform.goal
    assert (goals > 0).all()
    expected = play_with(goals, after["action"][:, :-1])
    # Trials that were left out are not those of the environment.
    whole = after["next", "terminated"].flatten(1).any(1)
    assert 20 <= int(whole.sum()) < NUM_ENVS
    assert after["next", "truncated"].flatten(1).any(1).equal(~whole)
    width = after.shape[1]
    for key in expected.keys(True, True):
        found, wanted = after[key][whole], expected[key][whole][:, :width]
        assert torch.equal(found[:, : wanted.shape[1]], wanted), key
        assert not found[:, wanted.shape[1] :].any(), key
    assert after["next", "reward"].sum() > 2 * before["next", "reward"].sum()


def test_the_own_goal_changes_nothing():
    env = XLand(**SETTINGS)
    before = first_episodes(env)
    env = XLand(**SETTINGS)
    env.reset()
    transform = RelabelChosen(1.0)
    transform.goal = numbers_of(env.env_state.task["goal"])
    assert before["next", "reward"].sum() > 9
    after = transform(before)
    for key in before.keys(True, True):
        assert torch.equal(after[key], before[key]), key


def test_trials_that_ended_at_the_former_goal_are_left_out():
    before = first_episodes(XLand(**SETTINGS))
    transform = RelabelChosen(1.0)
    after = transform(before)
    goal = transform.goal.view(-1, 1, 1)
    for old, new, number in zip(before, after, goal, strict=True):
        starts = old["trial_start"].flatten().nonzero().flatten().tolist()
        length = int(old["mask"].sum())
        kept = 0
        for first, last in zip(starts, [*starts[1:], length], strict=True):
            reached = (old["achieved"][first + 1 : last] == number).any(1)
            pays = old["next", "reward"][first:last].any()
            if reached.any():
                kept += int(reached.to(torch.uint8).argmax()) + 2
            elif not pays:
                kept += last - first
        assert int(new["mask"].sum()) == kept
        assert new["next", "terminated"].any() != new["next", "truncated"].any()
    torch.testing.assert_close(after["step_index"][:, 5], before["step_index"][:, 5])


def test_a_share_of_the_trajectories_changes_and_draws_follow_the_generator():
    before = first_episodes(XLand(**SETTINGS))

    def relabelled(probability, seed=0):
        return RelabelTasks(probability, generator=torch.Generator().manual_seed(seed))(before)

    assert (relabelled(0.0) == before).all()
    half = relabelled(0.5)
    changed = (half["mask"] != before["mask"]).flatten(1).any(1)
    assert 10 < int(changed.sum()) < 50
    assert (relabelled(0.5) == half).all()
    assert not (relabelled(0.5, seed=1) == half).all()


def test_without_anything_achieved_trajectories_stay_as_they_are():
    before = first_episodes(XLand(**SETTINGS))
    before["achieved"].zero_()
    assert (RelabelTasks(1.0)(before) == before).all()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("achieved", None, r"hold 'achieved'.*env\.achieved=true"),
        ("prev_reward", None, "hold 'prev_reward'"),
        (("next", "reward"), 0.5, r"be 1 where the goal is reached.*env\.reward=success"),
    ],
)
def test_batches_that_cannot_be_relabelled_are_refused(key, value, message):
    batch = first_episodes(XLand(**SETTINGS))
    if value is None:
        batch = batch.exclude(key)
    else:
        batch[key].fill_(value)
    with pytest.raises(ArgumentError, match=message):
        RelabelTasks()(batch)


def test_goals_with_coordinates_are_refused():
    batch = first_episodes(XLand(**SETTINGS))
    batch["achieved"] = batch["achieved"].unsqueeze(-1).float()
    with pytest.raises(ArgumentError, match=r"be numbers of goals .*yamame\.replay\.Relabel"):
        RelabelTasks()(batch)


def test_observed_goals_are_refused():
    batch = first_episodes(XLand(**SETTINGS))
    with pytest.raises(ArgumentError, match=r"hold no goal that the agent observes.*hidden"):
        RelabelTasks()(batch.copy().set("hidden", batch["prev_reward"]))


def test_rewards_that_lead_into_another_trial_are_refused():
    batch = first_episodes(XLand(**SETTINGS))
    start = batch["trial_start"][0].flatten().nonzero()[1]
    batch["next", "reward"][0, start - 1] = 1
    with pytest.raises(ArgumentError, match=r"show the timestep .*trial_end=reset_step"):
        RelabelTasks()(batch)


def test_trajectories_without_their_beginning_keep_their_goals():
    batch = first_episodes(XLand(**SETTINGS))
    batch["is_init"][::2, 0] = False
    after = RelabelTasks(1.0)(batch)
    assert (after[::2] == batch[::2]).all()
    assert not (after[1::2] == batch[1::2]).all()


def test_other_entries_of_the_last_transition_are_zero_and_done_follows():
    batch = first_episodes(XLand(**SETTINGS))
    over = batch["next", "terminated"] | batch["next", "truncated"]
    batch["next", "done"] = over
    batch["next", "cost"] = (torch.ones_like(over) & batch["mask"]).float()
    after = RelabelTasks(1.0)(batch)
    ended = after["next", "terminated"] | after["next", "truncated"]
    assert torch.equal(after["next", "done"], ended)
    assert torch.equal(ended.flatten(1).sum(1), torch.ones(NUM_ENVS, dtype=torch.int64))
    last = after["mask"].flatten(1).sum(1) - 1
    assert (after["next", "cost"][torch.arange(NUM_ENVS), last] == 0).all()


def test_one_trial_without_marks_of_its_start():
    achieved = torch.tensor([[0, 0, 7, 7, 9, 0]]).unsqueeze(-1)
    zeros = torch.zeros(1, 6, 1)
    batch = TensorDict(
        {
            "achieved": achieved,
            "action": torch.arange(1, 7).view(1, 6),
            "prev_action": torch.arange(6.0).view(1, 6, 1),
            "prev_reward": zeros,
            "mask": zeros == 0,
            "next": {"reward": zeros, "terminated": torch.arange(6).view(1, 6, 1) == 4},
        },
        batch_size=[1, 6],
    )
    transform = RelabelChosen(1.0)
    transform.goal = torch.tensor([7])
    after = transform(batch)
    assert after["mask"].flatten().tolist() == [True] * 3 + [False] * 3
    assert after["action"].flatten().tolist() == [1, 2, 0, 0, 0, 0]
    assert after["next", "reward"].flatten().tolist() == [0, 1, 0, 0, 0, 0]
    assert after["next", "terminated"].flatten().tolist() == [False, True] + [False] * 4
    assert after["prev_reward"].flatten().tolist() == [0, 0, 1, 0, 0, 0]
    assert after["prev_action"].flatten().tolist() == [0, 1, 2, 0, 0, 0]
