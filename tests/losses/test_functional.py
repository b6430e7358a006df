import itertools

import pytest
import torch
from torch import Tensor
from yamame.losses.functional import (
    advantage_filter,
    bootstrapped_targets,
    critic_subset_value,
    masked_mean,
    transition_mask,
)

HALF = torch.tensor([0.5])


def _targets(n_step: int, *, terminated: list[int], valid: list[int]) -> list[float]:
    targets = bootstrapped_targets(
        torch.tensor([[1.0, 2.0, 4.0, 8.0]]),
        torch.tensor([terminated], dtype=torch.bool),
        torch.tensor([10.0, 20.0, 30.0, 40.0]).reshape(1, 4, 1),
        gammas=HALF,
        valid=torch.tensor([valid], dtype=torch.bool),
        n_step=n_step,
    )
    return targets.flatten().tolist()


@pytest.mark.parametrize(
    ("n_step", "expected"),
    [(1, [6, 12, 4, 28]), (2, [7, 4, 4, 28]), (3, [3, 4, 4, 28]), (9, [3, 4, 4, 28])],
)
def test_windows_stop_at_termination_without_a_bootstrap(
    n_step: int, expected: list[float]
) -> None:
    assert _targets(n_step, terminated=[0, 0, 1, 0], valid=[1, 1, 1, 1]) == expected


def test_windows_stop_before_padding_with_a_bootstrap() -> None:
    assert _targets(3, terminated=[0, 0, 0, 0], valid=[1, 1, 1, 0]) == [6.75, 11.5, 19, 0]


def test_windows_stop_before_another_trajectory_with_a_bootstrap() -> None:
    # Transition 1 joins two trajectories: transition 0 may not look beyond it.
    assert _targets(3, terminated=[0, 0, 0, 0], valid=[1, 0, 1, 1]) == [6, 0, 4 + 4 + 10, 28]


def _naive_target(
    reward: Tensor, terminated: Tensor, next_value: Tensor, valid: Tensor, t: int, n: int
) -> Tensor:
    """Return the n-step target of transition t of one sequence, by definition."""
    gammas = torch.tensor([0.3, 0.99])
    total, discount = torch.zeros(2), torch.ones(2)
    for i in range(t, min(t + n, len(reward))):
        if not valid[i]:
            break
        total = total + discount * 10.0 * reward[i]
        discount = discount * gammas
        last = i
        if terminated[i]:
            return total
    return total + discount * next_value[last]


@pytest.mark.parametrize("n_step", [1, 2, 3, 5, 20])
def test_targets_agree_with_a_loop_over_every_transition(n_step: int) -> None:
    torch.manual_seed(n_step)
    size = (8, 12)
    reward, next_value = torch.randn(size), torch.randn(*size, 2)
    terminated, valid = torch.rand(size) < 0.15, torch.rand(size) < 0.8
    targets = bootstrapped_targets(
        reward,
        terminated,
        next_value,
        gammas=torch.tensor([0.3, 0.99]),
        valid=valid,
        n_step=n_step,
        reward_multiplier=10.0,
    )
    for b, t in itertools.product(*map(range, size)):
        if valid[b, t]:
            expected = _naive_target(reward[b], terminated[b], next_value[b], valid[b], t, n_step)
            torch.testing.assert_close(targets[b, t], expected)
        else:
            assert targets[b, t].tolist() == [0.0, 0.0]


def test_targets_reject_a_window_without_a_reward() -> None:
    with pytest.raises(ValueError, match="n_step must be at least 1, got 0"):
        _targets(0, terminated=[0, 0, 0, 0], valid=[1, 1, 1, 1])


def test_a_transition_needs_two_real_rows_of_one_trajectory() -> None:
    rows = list(itertools.product([False, True], repeat=4))
    for real, next_real, starts, next_starts in rows:
        valid = transition_mask(
            torch.tensor([[real, next_real]]), torch.tensor([[starts, next_starts]])
        )
        assert valid.tolist() == [[real and next_real and not next_starts]]


def test_masked_mean_averages_marked_entries_over_all_trailing_dimensions() -> None:
    values = torch.arange(12.0).reshape(2, 2, 3)
    mask = torch.tensor([[True, False], [False, True]])
    assert masked_mean(values, mask).item() == (0 + 1 + 2 + 9 + 10 + 11) / 6
    assert masked_mean(values, mask, dim=-1).tolist() == [(0 + 9) / 2, (1 + 10) / 2, (2 + 11) / 2]


def test_masked_mean_lets_no_value_or_gradient_out_of_the_mask() -> None:
    values = torch.tensor([1.0, float("nan"), float("inf")], requires_grad=True)
    mean = masked_mean(values, torch.tensor([True, False, False]))
    mean.backward()
    assert mean.item() == 1.0
    assert values.grad is not None
    assert values.grad.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("reduce", ["min", "mean"])
def test_every_pair_of_distinct_critics_is_drawn_equally_often(reduce: str) -> None:
    critics, num_draws = torch.tensor([1.0, 2.0, 4.0, 8.0]), 60_000
    values = critics.reshape(4, 1).expand(num_draws, 4, 1)
    torch.manual_seed(0)
    drawn = critic_subset_value(values, 2, reduce=reduce).flatten()
    outcomes: dict[float, float] = {}
    for pair in itertools.combinations(critics.tolist(), 2):
        outcome = min(pair) if reduce == "min" else sum(pair) / 2
        outcomes[outcome] = outcomes.get(outcome, 0.0) + 1 / 6
    assert set(drawn.unique().tolist()) == set(
        outcomes
    )  # never a critic paired with itself: no minimum of 8
    for outcome, probability in outcomes.items():
        # Five standard errors of a frequency.
        error = 5 * (probability * (1 - probability) / num_draws) ** 0.5
        assert (drawn == outcome).float().mean().item() == pytest.approx(probability, abs=error)


def test_subsets_are_drawn_for_every_entry_on_its_own() -> None:
    values = torch.tensor([0.0, 1.0]).reshape(2, 1).expand(4000, 2, 2)
    torch.manual_seed(0)
    drawn = critic_subset_value(values, 1)
    agreement = (drawn[:, 0] == drawn[:, 1]).float().mean().item()
    assert agreement == pytest.approx(0.5, abs=5 * 0.5 / 4000**0.5)


def test_the_whole_ensemble_is_reduced_without_a_draw() -> None:
    values, state = torch.randn(5, 4, 3), torch.get_rng_state()
    torch.testing.assert_close(critic_subset_value(values, 4), values.amin(1))
    torch.testing.assert_close(critic_subset_value(values, 4, reduce="mean"), values.mean(1))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("num_subset", [0, 5])
def test_a_subset_must_fit_into_the_ensemble(num_subset: int) -> None:
    with pytest.raises(ValueError, match=rf"num_subset must be in 1\.\.4 .*got {num_subset}"):
        critic_subset_value(torch.zeros(4, 1), num_subset)


def test_filters_weigh_advantages_as_defined() -> None:
    advantage = torch.tensor([-2.0, 0.5, 1.0, 1.5, 100.0])
    assert advantage_filter(advantage, threshold=1.0).tolist() == [0, 0, 0, 1, 1]
    weights = advantage_filter(
        advantage, kind="exponential", threshold=1.0, temperature=2.0, max_weight=3.0
    )
    expected = [min(3.0, torch.tensor((a - 1.0) / 2.0).exp().item()) for a in advantage.tolist()]
    assert weights.tolist() == pytest.approx(expected)
    assert advantage_filter(advantage, kind="none").tolist() == [1.0] * 5


def test_an_unknown_filter_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"kind must be .*got 'soft'"):
        advantage_filter(torch.zeros(1), kind="soft")  # type: ignore[arg-type]
