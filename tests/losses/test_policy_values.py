import pytest
import torch
from torchrl.data import Bounded, Categorical
from yamame.actions import ActionSpace
from yamame.losses.policy_values import (
    enumerate_policy,
    pick_action,
    sample_policy,
    straight_through,
)


def test_enumeration_gives_the_exact_expectation_per_discount() -> None:
    params, raw = (
        torch.randn(7, 2, 3),
        torch.randn(7, 4, 3, 2, 1),
    )  # 2 discounts, 3 actions, 4 critics
    policy = ActionSpace(Categorical(3), probability_floor=0.0).distribution(params)
    expected = enumerate_policy(raw, policy).expect(raw.squeeze(-1))
    for n in range(7):
        for c in range(4):
            for g in range(2):
                by_hand = sum(params[n, g].softmax(-1)[a] * raw[n, c, a, g, 0] for a in range(3))
                torch.testing.assert_close(expected[n, c, g], by_hand)


def test_samples_average_to_the_expectation() -> None:
    torch.manual_seed(0)
    policy = ActionSpace(Bounded(-torch.ones(1), torch.ones(1))).distribution(
        torch.tensor([[[0.3, -9.0], [-2.0, -9.0]]])
    )
    context = torch.tensor([[5.0]])

    def critic(
        context: torch.Tensor, action: torch.Tensor
    ) -> torch.Tensor:  # two critics: h + a, h - a
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


def test_straight_through_is_unbiased_and_its_gradient_that_of_every_critics_expectation() -> None:
    torch.manual_seed(0)
    params = torch.randn(5, 2, 3, requires_grad=True)  # 2 discounts, 3 actions
    raw = torch.randn(5, 4, 3, 2, 1)  # 4 critics
    policy = ActionSpace(Categorical(3)).distribution(params)
    exact = enumerate_policy(raw, policy).expect(raw.squeeze(-1))
    weight = torch.randn_like(exact)
    (expected,) = torch.autograd.grad((weight * exact).sum(), params, retain_graph=True)
    values = []
    for _ in range(4000):
        drawn = straight_through(raw, policy, 1).expect(raw.squeeze(-1))
        values.append(drawn.detach())
    (gradient,) = torch.autograd.grad((weight * drawn).sum(), params)
    torch.testing.assert_close(gradient, expected)  # at a single draw
    # Five standard errors of a mean of 4,000 values with a standard deviation of about one.
    torch.testing.assert_close(torch.stack(values).mean(0), exact.detach(), atol=0.08, rtol=0)
    assert not torch.allclose(values[0], exact, atol=0.1)


def test_straight_through_takes_the_minimum_over_critics_at_the_drawn_action() -> None:
    params = torch.randn(1, 3, requires_grad=True)
    raw = torch.tensor([[0.0, 5.0, 1.0], [4.0, 2.0, 3.0]]).view(
        2, 3, 1, 1
    )  # 2 critics, which cross
    policy = ActionSpace(Categorical(3), probability_floor=0.0).distribution(params)
    smallest = {0: 0, 1: 1, 2: 0}  # which critic is the smaller one at each action
    gradients = torch.stack(
        [
            torch.autograd.grad(
                (policy.probs[0] * raw[c, :, 0, 0]).sum(), params, retain_graph=True
            )[0]
            for c in range(2)
        ]
    )
    assert not torch.allclose(*gradients)
    for _ in range(30):
        values = straight_through(raw, policy, 1).expect(raw.squeeze(-1)).amin(0)
        (found,) = torch.autograd.grad(values.sum(), params, retain_graph=True)
        action = int(raw[:, :, 0, 0].amin(0).sub(values.detach()).abs().argmin())
        torch.testing.assert_close(found, gradients[smallest[action]])
