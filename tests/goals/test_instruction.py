"""The goal semantics: one step, whole trajectories and what the agent sees agree."""

import pytest
import torch
from yamame.goals import (
    GOAL_COMPLETED,
    GOAL_PAD,
    GOAL_TOLERANCE,
    advance,
    completion_times,
    num_goals,
    show,
    view,
)


def random_trajectories(seed: int, batch: int = 500, length: int = 12, slots: int = 3):
    generator = torch.Generator().manual_seed(seed)

    def integers(high, *shape):
        return torch.randint(high, shape, generator=generator)

    goals = integers(4, batch, slots, 1).float()
    count = integers(slots, batch) + 1
    goals[torch.arange(slots) >= count[:, None]] = GOAL_PAD
    achieved = integers(4, batch, length, 2, 1).float()
    achieved_mask = torch.rand(batch, length, 2, generator=generator) < 0.5
    mask = torch.arange(length) < (integers(length - 1, batch) + 2)[:, None]
    return goals, achieved, achieved_mask, mask


def test_whole_trajectory_times_equal_stepping_one_row_at_a_time():
    goals, achieved, achieved_mask, mask = random_trajectories(0)
    times = completion_times(goals, achieved, achieved_mask, mask)
    for b in range(goals.shape[0]):
        active, expected = 0, []
        for t in range(1, int(mask[b].sum())):
            valid = [achieved[b, t, m] for m in range(2) if achieved_mask[b, t, m]]
            if active < int(num_goals(goals[b])) and any(
                torch.equal(g, goals[b, active]) for g in valid
            ):
                expected.append(t)
                active += 1
        assert times[b].tolist() == expected + [mask.shape[1]] * (goals.shape[1] - active)


@pytest.mark.parametrize("radius", [None, 1.0])
def test_stepping_with_advance_pays_exactly_at_the_completion_times(radius):
    goals, achieved, achieved_mask, mask = random_trajectories(1)
    times = completion_times(goals, achieved, achieved_mask, mask, radius=radius)
    # The control: a radius completes goals that equality does not.
    equal_times = completion_times(goals, achieved, achieved_mask, mask)
    assert torch.equal(times, equal_times) == (radius is None)
    active = torch.zeros(goals.shape[0], dtype=torch.int64)
    for t in range(1, mask.shape[1]):
        after, reward = advance(goals, active, achieved[:, t], achieved_mask[:, t], radius=radius)
        active = torch.where(mask[:, t], after, active)
        assert torch.equal((times == t).any(-1), reward.bool() & mask[:, t])


def naive_times(instruction, achieved, achieved_mask, mask):
    """Steps with `advance`, which compares each pair of goals by itself."""
    length = mask.shape[1]
    times = torch.full(instruction.shape[:2], length)
    active = torch.zeros(len(mask), dtype=torch.int64)
    for t in range(1, length):
        after, _ = advance(
            instruction, active, achieved[:, t], achieved_mask[:, t] & mask[:, t, None]
        )
        for b in (after > active).nonzero().flatten().tolist():
            times[b, active[b]] = t
        active = after
    return times


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("held", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_times_agree_with_stepping_around_the_tolerance_and_with_what_is_no_number(
    slots, held, size
):
    generator = torch.Generator().manual_seed(100 * slots + 10 * held + size)

    def rand(*shape):
        return torch.rand(shape, generator=generator)

    instruction = (rand(300, slots, size) < 0.2).float()
    instruction[:100, 1:] = GOAL_PAD
    achieved = (rand(300, 15, held, size) < 0.2) + 2.4 * GOAL_TOLERANCE * (
        rand(300, 15, held, size) - 0.5
    )
    for strange in (torch.nan, torch.inf, -torch.inf, GOAL_PAD):
        achieved[rand(*achieved.shape) < 0.05] = strange
        instruction[:, :1][rand(300, 1, size) < 0.05] = strange
    valid, mask = rand(300, 15, held) < 0.7, torch.arange(15) < 1 + 15 * rand(300, 1)
    expected = naive_times(instruction, achieved, valid, mask)
    assert 0.02 < (expected[:, 0] < 15).float().mean() < 0.98
    assert torch.equal(completion_times(instruction, achieved, valid, mask), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_times_of_a_hundred_thousand_steps_are_exact(dtype):
    achieved = torch.zeros(1, 100_001, 1, 1, dtype=dtype)
    achieved[0, [99_998, 100_000]] = torch.tensor([1.0, 2.0], dtype=dtype).reshape(2, 1, 1)
    everywhere = torch.ones(1, 100_001, 1, dtype=torch.bool)
    instruction = torch.tensor([[[1.0], [2.0]]], dtype=dtype)
    times = completion_times(instruction, achieved, everywhere, everywhere[..., 0])
    assert times.tolist() == [[99_998, 100_000]]


def test_a_goal_that_holds_at_the_first_step_is_not_completed_there():
    instruction = torch.tensor([[[2.0]]])
    achieved = torch.tensor([[[[2.0]], [[1.0]], [[1.0]]]])
    valid = torch.ones(1, 3, 1, dtype=torch.bool)
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert completion_times(instruction, achieved, valid, mask).tolist() == [[3]]
    achieved[0, 2] = 2.0
    assert completion_times(instruction, achieved, valid, mask).tolist() == [[2]]


def test_an_unused_slot_is_never_completed_even_if_its_value_is_achieved():
    instruction = torch.tensor([[2.0], [GOAL_PAD]])
    active, reward = advance(
        instruction, torch.tensor(1), torch.tensor([[GOAL_PAD]]), torch.tensor([True])
    )
    assert int(active) == 1
    assert float(reward) == 0.0


def test_shown_instruction_and_its_views():
    instruction = torch.tensor([[1.0], [2.0], [3.0], [GOAL_PAD]])
    shown = show(instruction, torch.tensor(1))
    assert shown.flatten().tolist() == [GOAL_COMPLETED, 2.0, 3.0, GOAL_PAD]
    hidden = view(shown, hide_future_goals=True)
    assert hidden.flatten().tolist() == [GOAL_COMPLETED, 2.0, GOAL_PAD, GOAL_PAD]
    single = view(shown, single_goal=True)
    assert single.flatten().tolist() == [2.0, GOAL_PAD, GOAL_PAD, GOAL_PAD]
    assert torch.equal(view(hidden, hide_future_goals=True), hidden)
    assert torch.equal(view(shown), shown)


def test_single_goal_view_of_a_finished_instruction_is_empty():
    shown = show(torch.tensor([[1.0], [2.0]]), torch.tensor(2))
    assert view(shown, single_goal=True).flatten().tolist() == [GOAL_PAD, GOAL_PAD]


@pytest.mark.parametrize(("batch", "held"), [(0, 2), (3, 0)])
def test_no_trajectories_and_nowhere_anything_achieved_complete_nothing(batch, held):
    valid, mask = (
        torch.ones(batch, 5, held, dtype=torch.bool),
        torch.ones(batch, 5, dtype=torch.bool),
    )
    times = completion_times(torch.ones(batch, 2, 1), torch.ones(batch, 5, held, 1), valid, mask)
    assert torch.equal(times, torch.full((batch, 2), 5))
