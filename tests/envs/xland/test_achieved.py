"""Goals that steps of XLand reach, whichever the hidden one is."""

import pytest
import torch
from yamame.checks import UsageError
from yamame_envs import XLand
from yamame_envs.split import is_held_out
from yamame_envs.testing import check_env
from yamame_envs.xland.achieved import NUM_GOALS, encoded_goals
from yamame_envs.xland.cells import CARRIED, Tile
from yamame_envs.xland.rulesets import canonical

SETTINGS = {"size": 6, "trial_limit": 25, "reward": "success", "trial_end": "reset_step"}


def played(env, num_steps=250):
    """Yield the tasks, the goals achieved by a step and its reward, for random actions."""
    torch.manual_seed(0)
    current = env.reset()
    # Mostly moves, picking up and putting down.
    weights = torch.tensor([4.0, 1.0, 1.0, 3.0, 3.0, 0.1]).expand(env.batch_size[0], -1)
    for _ in range(num_steps):
        task = {name: value.clone() for name, value in env.env_state.task.items()}
        action = weights.multinomial(1).squeeze(1)
        step, current = env.step_and_maybe_reset(current.set("action", action))
        yield task, step["next", "achieved"].long(), step["next", "reward"].flatten() > 0


@pytest.mark.parametrize(("level", "num_trials"), [("trivial", 4), ("trivial", 1), ("small", 2)])
def test_the_goal_is_achieved_exactly_where_it_pays(level, num_trials):
    env = XLand(
        num_envs=256, level=level, num_trials=num_trials, achieved=True, **{**SETTINGS, "size": 7}
    )
    goals = canonical({"goal": encoded_goals()})["goal"]
    kinds = set()
    for task, achieved, pays in played(env):
        goal = canonical(task)["goal"]
        is_goal = (goals[achieved] == goal.unsqueeze(1)).all(-1) & (achieved > 0)
        assert torch.equal(is_goal.any(1), pays)
        kinds |= set(task["goal"][pays, 0].tolist())
    assert len(kinds) >= 8


def test_equal_goals_have_one_number_and_every_goal_has_one():
    goals = encoded_goals()
    assert len(goals) == NUM_GOALS + 1
    assert len(goals[1:].unique(dim=0)) == NUM_GOALS
    env = XLand(num_envs=1, **SETTINGS)
    drawn = canonical({"goal": env.tasks_of(torch.arange(500))["goal"]})["goal"]
    known = {tuple(goal) for goal in canonical({"goal": goals})["goal"].tolist()}
    assert {tuple(goal) for goal in drawn.tolist()} <= known


@pytest.mark.parametrize("level", ["trivial", "small"])
@pytest.mark.parametrize("split_by", ["goals", "rulesets"])
def test_no_goal_of_the_other_side_is_achieved(level, split_by):
    settings = {**SETTINGS, "size": 7, "level": level, "split_by": split_by, "num_envs": 64}
    counts = []
    for split in ("train", "test", "all"):
        env = XLand(split=split, achieved=True, num_trials=2, **settings)
        number = 0
        for task, achieved, _ in played(env, 60):
            env_id, place = (achieved > 0).nonzero(as_tuple=True)
            number += len(env_id)
            of_rules = {name: task[name][env_id] for name in ("rules",) if name in task}
            goal = encoded_goals()[achieved[env_id, place]]
            held_out = is_held_out(env.task_hash({"goal": goal, **of_rules}))
            assert split == "all" or (held_out == (split == "test")).all()
        counts.append(number)
    train, test, both = counts
    assert 0 < test < train < both


def test_objects_of_goals_are_recognised_by_their_numbers():
    objects = [tile for tile in Tile if Tile.BALL <= tile <= Tile.KEY or tile >= Tile.HEX]
    assert set(objects) == {*CARRIED, Tile.GOAL}


def test_achieved_goals_keep_the_laws_of_environments():
    def make(**rest):
        return XLand(**SETTINGS, num_trials=2, achieved=True, **rest)

    check_env(make, num_steps=60)
    plain = XLand(**SETTINGS, num_trials=2, num_envs=2).rollout(20)
    told = make(num_envs=2)
    torch.manual_seed(0)
    assert "achieved" not in plain.keys()
    assert told.reset()["achieved"].dtype == torch.int32
    assert (told.reset()["achieved"] == 0).all()


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"reward": "timed"}, "reward"),
        ({"trial_end": "soft_reset"}, "trial_end"),
        ({"observable": True}, "observable"),
    ],
)
def test_rewards_and_ends_that_cannot_be_relabelled_are_refused(wrong, name):
    with pytest.raises(UsageError, match=name):
        XLand(achieved=True, **{**SETTINGS, **wrong})
    XLand(achieved=True, num_trials=1, **{**SETTINGS, "trial_end": "soft_reset"})
