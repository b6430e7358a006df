import pytest
import torch
from yamame.actions import BoxActions, DiscreteActions
from yamame.losses.policy_values import enumerate_policy, pick_action, sample_policy


def test_enumeration_gives_the_exact_expectation_per_discount() -> None:
    params, raw = torch.randn(7, 2, 3), torch.randn(7, 4, 3, 2, 1)  # 2 discounts, 3 actions, 4 critics
    policy = DiscreteActions(3, probability_floor=0.0).distribution(params)
    expected = enumerate_policy(raw, policy).expect(raw.squeeze(-1))
    for n in range(7):
        for c in range(4):
            for g in range(2):
                by_hand = sum(params[n, g].softmax(-1)[a] * raw[n, c, a, g, 0] for a in range(3))
                torch.testing.assert_close(expected[n, c, g], by_hand)


def test_samples_average_to_the_expectation() -> None:
    torch.manual_seed(0)
    policy = BoxActions(-torch.ones(1), torch.ones(1)).distribution(
        torch.tensor([[[0.3, -9.0], [-2.0, -9.0]]])
    )
    context = torch.tensor([[5.0]])

    def critic(context: torch.Tensor, action: torch.Tensor) -> torch.Tensor:  # two critics: h + a, h - a
        both = torch.stack((action, -action), -3)
        return context[..., None, None] + both

    values = sample_policy(critic, context, policy, 4)
    assert values.raw.shape == (1, 2, 4, 2, 1)
    # A standard deviation of exp(-5) is all that remains of these policies' spread.
    mean = torch.tensor([0.3, -2.0]).tanh()
    expected = torch.stack((5.0 + mean, 5.0 - mean)).unsqueeze(0)
    torch.testing.assert_close(values.expect(values.raw.squeeze(-1)), expected, atol=0.02, rtol=0)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_taken_action_is_picked_for_every_critic_discount_and_output(index: int) -> None:
    raw = torch.randn(5, 4, 3, 2, 6)
    action = torch.zeros(5, 3)
    action[:, index] = 1.0
    assert torch.equal(pick_action(raw, action), raw[:, :, index])
