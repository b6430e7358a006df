"""Goal counts equal plain counting, survive a checkpoint exactly, and weigh rare goals more."""

import copy
import math
from collections import Counter

import pytest
import torch
from yamame.replay import GoalFrequencies


def trajectories(
    seed: int, batch: int = 20, length: int = 9, span: int = 5, slots: int = 2, size: int = 2
):
    generator = torch.Generator().manual_seed(seed)
    achieved = torch.randint(-span, span, (batch, length, slots, size), generator=generator) / 2
    achieved_mask = torch.rand(batch, length, slots, generator=generator) < 0.6
    mask = torch.arange(length) < torch.randint(1, length + 1, (batch, 1), generator=generator)
    return achieved, achieved_mask, mask


def count_one_by_one(batches):
    per_timestep, per_trajectory, timesteps, trajectories = Counter(), Counter(), 0, 0
    for achieved, achieved_mask, mask in batches:
        for b in range(mask.shape[0]):
            seen, length = set(), int(mask[b].sum())
            timesteps += max(length - 1, 0)
            trajectories += length > 1
            for t in range(1, length):
                here = {
                    tuple(achieved[b, t, m].tolist())
                    for m in range(achieved.shape[2])
                    if achieved_mask[b, t, m]
                }
                per_timestep.update(here)
                seen |= here
            per_trajectory.update(seen)
    return per_timestep, per_trajectory, timesteps, trajectories


def as_counter(table: GoalFrequencies, counts: torch.Tensor) -> Counter:
    return Counter(
        {
            tuple(round(x, 3) for x in goal): n
            for goal, n in zip(
                (table.cells * table.resolution).tolist(), counts.tolist(), strict=True
            )
        }
    )


@pytest.mark.parametrize(("slots", "span"), [(1, 1), (2, 5), (3, 40)])
def test_the_table_equals_counting_one_goal_at_a_time_over_several_updates(slots, span):
    batches = [trajectories(seed, slots=slots, span=span) for seed in range(6)]
    table = GoalFrequencies()
    for batch in batches:
        table.update(*batch)
    per_timestep, per_trajectory, timesteps, num_trajectories = count_one_by_one(batches)
    assert len(table) == len(per_timestep)
    assert as_counter(table, table.timesteps) == per_timestep
    assert as_counter(table, table.trajectories) == per_trajectory
    assert table.totals.tolist() == [timesteps, num_trajectories]


@pytest.mark.parametrize("per", ["timestep", "trajectory"])
def test_weights_are_the_fourth_power_of_minus_log10_frequency(per):
    batches = [trajectories(seed) for seed in range(4)]
    table = GoalFrequencies(per=per)
    for batch in batches:
        table.update(*batch)
    per_timestep, per_trajectory, timesteps, num_trajectories = count_one_by_one(batches)
    counts, total = (
        (per_timestep, timesteps) if per == "timestep" else (per_trajectory, num_trajectories)
    )
    goals = torch.tensor(list(counts))
    expected = [min(max((-math.log10(counts[g] / total)) ** 4, 1e-3), 1e5) for g in counts]
    # float32 logarithms of frequencies near 1 keep five digits
    torch.testing.assert_close(table.weights(goals), torch.tensor(expected), rtol=1e-4, atol=1e-6)
    assert table.weights(goals.reshape(1, -1, 1, 2)).shape == (1, len(counts), 1)


def test_rarer_goals_weigh_more_and_unseen_ones_most():
    achieved = torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0]).reshape(1, 7, 1, 1)
    table = GoalFrequencies()
    table.update(
        achieved, torch.ones(1, 7, 1, dtype=torch.bool), torch.ones(1, 7, dtype=torch.bool)
    )
    weights = table.weights(torch.tensor([[1.0], [2.0], [3.0], [4.0]])).tolist()
    assert weights == sorted(weights)
    assert len(set(weights)) == 4


def test_a_goal_that_always_holds_keeps_the_smallest_weight_and_stays_drawable():
    achieved = torch.zeros(2, 50, 1, 1)
    table = GoalFrequencies(uniform_share=0.0)
    table.update(
        achieved, torch.ones(2, 50, 1, dtype=torch.bool), torch.ones(2, 50, dtype=torch.bool)
    )
    assert table.weights(torch.zeros(1)).item() == pytest.approx(1e-3)


def test_what_holds_at_the_first_step_or_in_padding_or_in_an_unused_slot_is_not_counted():
    achieved = torch.tensor([5.0, 1.0, 7.0, 9.0]).reshape(1, 4, 1, 1)
    achieved_mask = torch.tensor([True, True, False, True]).reshape(1, 4, 1)
    mask = torch.tensor([[True, True, True, False]])
    table = GoalFrequencies()
    table.update(achieved, achieved_mask, mask.unsqueeze(-1))
    assert (table.cells * table.resolution).tolist() == [[1.0]]
    assert table.totals.tolist() == [2, 1]


def test_a_goal_held_twice_in_one_step_counts_once():
    table = GoalFrequencies()
    table.update(
        torch.ones(1, 3, 2, 1),
        torch.ones(1, 3, 2, dtype=torch.bool),
        torch.ones(1, 3, dtype=torch.bool),
    )
    assert table.timesteps.tolist() == [2]


def test_an_empty_table_and_an_empty_update_weigh_every_goal_the_same():
    table = GoalFrequencies()
    goals = torch.rand(4, 3)
    assert table.weights(goals).unique().numel() == 1
    table.update(
        torch.zeros(2, 1, 1, 3), torch.ones(2, 1, 1, dtype=torch.bool), torch.ones(2, 1).bool()
    )
    assert len(table) == 0
    assert table.weights(goals).unique().numel() == 1


def test_distinct_cells_never_share_an_entry_and_coordinates_do_not_commute():
    side = torch.arange(-40.0, 40.0)
    goals = torch.cartesian_prod(side, side, torch.tensor([-1.0, 0.001, 1000.0]))
    table = GoalFrequencies()
    achieved = torch.cat([goals[:1], goals]).reshape(1, -1, 1, 3)
    ones = torch.ones(achieved.shape[:3], dtype=torch.bool)
    table.update(achieved, ones, ones[..., 0])
    assert len(table) == len(goals)
    assert table.timesteps.unique().tolist() == [1]


def test_a_coarse_resolution_counts_neighbours_together():
    achieved = torch.tensor([0.0, 1.01, 1.02, 2.4]).reshape(1, 4, 1, 1)
    ones = torch.ones(1, 4, 1, dtype=torch.bool)
    fine, coarse = GoalFrequencies(), GoalFrequencies(resolution=0.5)
    fine.update(achieved, ones, ones)
    coarse.update(achieved, ones, ones)
    assert sorted(fine.timesteps.tolist()) == [1, 1, 1]
    assert sorted(coarse.timesteps.tolist()) == [1, 2]


def test_a_loaded_table_is_the_saved_one_and_goes_on_as_it_would_have():
    table = GoalFrequencies()
    table.update(*trajectories(0))
    state = copy.deepcopy(table.state_dict())
    for other in (GoalFrequencies(), GoalFrequencies()):
        other.update(*trajectories(7, span=3))
        other.load_state_dict(state)
        goals = trajectories(1)[0]
        assert torch.equal(other.weights(goals), table.weights(goals))
    table.update(*trajectories(2))
    other.update(*trajectories(2))
    for name, value in table.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    assert not torch.equal(state["totals"], table.totals)


def test_probabilities_mix_weights_with_the_uniform_share_over_the_options():
    table = GoalFrequencies(uniform_share=0.25)
    weights = torch.tensor([[1.0, 3.0, 100.0], [1.0, 1.0, 1.0]])
    options = torch.tensor([[True, True, False], [False, False, False]])
    expected = torch.tensor(
        [[0.75 * 0.25 + 0.25 * 0.5, 0.75 * 0.75 + 0.25 * 0.5, 0.0], [0.0, 0.0, 0.0]]
    )
    torch.testing.assert_close(table.probabilities(weights, options), expected)


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match=r"per must be .* got 'step'"):
        GoalFrequencies(per="step")
    with pytest.raises(ValueError, match=r"uniform_share must .* got 1\.5"):
        GoalFrequencies(uniform_share=1.5)
    with pytest.raises(ValueError, match=r"GoalFrequencies: resolution must .* got 0.0"):
        GoalFrequencies(resolution=0.0)
