"""Blocks of parallel steps become whole trajectories, none lost, none mixed."""

import pytest
import torch
from tensordict import TensorDict
from yamame.collectors import TrajectoryAssembler


def play(num_envs: int, num_steps: int, seed: int):
    """Steps of envs whose episodes end at random, each value unique, and the trajectories they
    should give.
    """
    generator = torch.Generator().manual_seed(seed)
    done = torch.rand(num_steps, num_envs, generator=generator) < 0.15
    value = torch.arange(num_steps * num_envs).view(num_steps, num_envs, 1)
    steps = TensorDict(
        {
            "observation": value.float(),
            "action": value[..., 0],
            "next": {"reward": value.float() * 2},
        },
        [num_steps, num_envs],
    )
    unfinished: list[list[int]] = [[] for _ in range(num_envs)]
    expected = []
    for s in range(num_steps):
        for n in range(num_envs):
            unfinished[n].append(int(value[s, n]))
            if done[s, n]:
                expected.append((s, n, unfinished[n], -1.0 - int(value[s, n])))
                unfinished[n] = []
    return steps, done, expected


def terminal_timesteps(steps, done):
    s, n = done.nonzero(as_tuple=True)
    if not len(s):
        return None
    return TensorDict({"observation": -1.0 - steps["observation"][s, n]}, [len(s)])


@pytest.mark.parametrize("block", [1, 3, 7, 40])
def test_trajectories_equal_those_of_a_plain_loop_whatever_the_block_size(block):
    steps, done, expected = play(num_envs=5, num_steps=40, seed=0)
    assembler, finished = TrajectoryAssembler(), []
    for begin in range(0, 40, block):
        part = slice(begin, begin + block)
        batch = assembler.add(steps[part], done[part], terminal_timesteps(steps[part], done[part]))
        finished.extend(batch.unbind(0))
    assert len(finished) == len(expected) > 10
    for trajectory, (_, _, values, last) in zip(finished, expected, strict=True):
        real = trajectory["mask"].squeeze(-1)
        assert real.tolist() == [True] * (len(values) + 1) + [False] * (len(real) - len(values) - 1)
        assert trajectory["observation"][real].flatten().tolist() == [*map(float, values), last]
        assert trajectory["action"][real].tolist() == [*values, 0]
        assert trajectory["next", "reward"][real].flatten().tolist() == [
            *(2.0 * v for v in values),
            0.0,
        ]
        assert not trajectory["observation"][~real].any()


def test_saved_and_restored_assembler_goes_on_where_it_stood():
    steps, done, _ = play(num_envs=4, num_steps=30, seed=1)
    whole, first, second = TrajectoryAssembler(), TrajectoryAssembler(), TrajectoryAssembler()
    for assembler in (whole, first):
        assembler.add(steps[:13], done[:13], terminal_timesteps(steps[:13], done[:13]))
    second.load_state_dict(first.state_dict())
    later = (steps[13:], done[13:], terminal_timesteps(steps[13:], done[13:]))
    assert (whole.add(*later) == second.add(*later)).all()


def test_what_is_saved_holds_nothing_of_episodes_that_are_over():
    steps, done, _ = play(num_envs=4, num_steps=30, seed=1)
    assembler, num_empty = TrajectoryAssembler(), 0
    for t in range(0, 30, 5):
        block = slice(t, t + 5)
        assembler.add(steps[block], done[block], terminal_timesteps(steps[block], done[block]))
        saved = assembler.state_dict()
        beyond = torch.arange(saved["steps"].shape[1]) >= saved["length"].unsqueeze(-1)
        assert not saved["steps"]["action"][beyond].any()
        num_empty += int(beyond.sum())
    assert num_empty > 10
