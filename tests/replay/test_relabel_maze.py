"""Relabelled trajectories are what the environment itself pays for the new instruction."""

import pytest
import torch
from tensordict import TensorDict
from yamame.replay import Relabel
from yamame.testing import check_relabeller
from yamame_envs import MazeRunner


def play(env, task_seed, actions, instruction=None):
    """Plays given actions to the time limit; whole trajectories, with zeros from their end on."""
    start = {"task_seed": task_seed} | ({} if instruction is None else {"instruction": instruction})
    shown, after = [env.reset(TensorDict(start, batch_size=env.batch_size))], []
    for action in actions.unbind(1):
        after.append(env.step(TensorDict({"action": action}, batch_size=env.batch_size))["next"])
        shown.append(after[-1])
    after.append(after[-1].clone().zero_())
    ends = ["reward", "terminated", "truncated", "done", "success"]
    seen = after[0].exclude(*ends).keys()
    rows = torch.stack([timestep.select(*seen) for timestep in shown], 1)
    rows["next"] = torch.stack([timestep.select(*ends) for timestep in after], 1)
    rows["action"] = torch.cat([actions, torch.zeros_like(actions[:, :1])], 1)
    going_on = rows["next", "done"][:, :-1].cumsum(1) == 0
    start = torch.ones_like(going_on[:, :1])
    rows["mask"] = torch.cat([start, start, going_on[:, :-1]], 1)
    leaving = torch.cat([rows["mask"][:, 1:], torch.zeros_like(going_on[:, :1])], 1)
    for key, value in list(rows.items(True, True)):
        real = leaving if key == "action" or key[0] == "next" else rows["mask"]
        rows[key] = value * real.reshape(*rows.shape, *[1] * (value.ndim - 2))
    return rows


@pytest.mark.parametrize("single_goal", [False, True])
def test_relabelled_trajectories_are_what_the_maze_itself_pays_for_the_new_instruction(single_goal):
    env = MazeRunner(num_envs=64, size=9, num_goals=3, min_goals=1, time_limit=40)
    task_seed = torch.arange(64).unsqueeze(-1)
    actions = torch.randint(5, (64, 40), generator=torch.Generator().manual_seed(0))
    batch = play(env, task_seed, actions)
    torch.manual_seed(0)
    out = Relabel("some", single_goal=single_goal)(batch)
    instruction = out["goal"][:, 0].clone()
    paid = play(env, task_seed, actions, instruction)[:, : out.shape[1]]
    assert not torch.equal(instruction, batch["goal"][:, 0])
    assert out["next", "success"].sum() > batch["next", "success"].sum() + 10
    assert set(out.keys(True, True)) == set(paid.keys(True, True))
    for key in out.keys(True, True):
        assert torch.equal(out[key], paid[key]), key


def test_relabelled_mazes_keep_the_laws():
    env = MazeRunner(num_envs=64, size=9, num_goals=3, min_goals=1, time_limit=40)
    actions = torch.randint(5, (64, 40), generator=torch.Generator().manual_seed(1))
    batch = play(env, torch.arange(64).unsqueeze(-1), actions)
    for strategy in ("some", "all", "all_or_nothing"):
        check_relabeller(Relabel(strategy), batch)
    check_relabeller(Relabel("none"), batch, identity=True)
