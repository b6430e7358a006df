"""Blocks of parallel steps become whole trajectories, none lost, none mixed."""

import pytest
import torch
from tensordict import TensorDict
from yamame.collectors import TrajectoryAssembler


def play(num_rows: int, num_steps: int, seed: int):
    """Steps of rows whose episodes end at random, each value unique, and the trajectories they should give."""
    generator = torch.Generator().manual_seed(seed)
    done = torch.rand(num_steps, num_rows, generator=generator) < 0.15
    value = torch.arange(num_steps * num_rows).view(num_steps, num_rows, 1)
    steps = TensorDict(
        {"observation": value.float(), "action": value[..., 0], "next": {"reward": value.float() * 2}},
        [num_steps, num_rows],
    )
    open_rows: list[list[int]] = [[] for _ in range(num_rows)]
    expected = []
    for s in range(num_steps):
        for n in range(num_rows):
            open_rows[n].append(int(value[s, n]))
            if done[s, n]:
                expected.append((s, n, open_rows[n], -1.0 - int(value[s, n])))
                open_rows[n] = []
    return steps, done, expected


def terminal_rows(steps, done):
    s, n = done.nonzero(as_tuple=True)
    if not len(s):
        return None
    return TensorDict({"observation": -1.0 - steps["observation"][s, n]}, [len(s)])


@pytest.mark.parametrize("block", [1, 3, 7, 40])
def test_trajectories_equal_those_of_a_plain_loop_whatever_the_block_size(block):
    steps, done, expected = play(num_rows=5, num_steps=40, seed=0)
    assembler, found = TrajectoryAssembler(), []
    for begin in range(0, 40, block):
        part = slice(begin, begin + block)
        batch = assembler.add(steps[part], done[part], terminal_rows(steps[part], done[part]))
        if batch is not None:
            found.extend(batch.unbind(0))
    assert len(found) == len(expected) > 10
    for trajectory, (_, _, values, last) in zip(found, expected, strict=True):
        real = trajectory["mask"].squeeze(-1)
        assert real.tolist() == [True] * (len(values) + 1) + [False] * (len(real) - len(values) - 1)
        assert trajectory["observation"][real].flatten().tolist() == [*map(float, values), last]
        assert trajectory["action"][real].tolist() == [*values, 0]
        assert trajectory["next", "reward"][real].flatten().tolist() == [*(2.0 * v for v in values), 0.0]
        assert not trajectory["observation"][~real].any()


def test_saved_and_restored_assembler_goes_on_where_it_stood():
    steps, done, _ = play(num_rows=4, num_steps=30, seed=1)
    whole, first, second = TrajectoryAssembler(), TrajectoryAssembler(), TrajectoryAssembler()
    for assembler in (whole, first):
        assembler.add(steps[:13], done[:13], terminal_rows(steps[:13], done[:13]))
    second.load_state_dict(first.state_dict())
    later = (steps[13:], done[13:], terminal_rows(steps[13:], done[13:]))
    assert (whole.add(*later) == second.add(*later)).all()
