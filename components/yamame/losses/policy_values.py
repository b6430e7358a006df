"""Values of a policy's actions: exact where actions can be enumerated, sampled elsewhere.

Shapes: C critics, S supported actions (all A of them, or samples), G discounts, O raw outputs of
one value.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from yamame.actions import ActionDistribution, DiscreteDistribution


class PolicyValues(NamedTuple):
    """Raw values of the actions that a policy may take, and the weight of each.

    Attributes:
        raw: [*, C, S, G, O]. Carries the policy's gradient if a critic evaluates sampled actions.
        weights: [*, 1, S, G], or a scalar if all weights are equal. They sum to 1 over S, and carry
            the policy's gradient if S covers all actions.
    """

    raw: Tensor
    weights: Tensor

    def expect(self, values: Tensor) -> Tensor:
        """Return the expectation [*, C, G] of ``values`` [*, C, S, G], a function of ``raw``."""
        return (self.weights * values).sum(-2)


def enumerate_policy(raw: Tensor, policy: ActionDistribution) -> PolicyValues:
    """Weigh the raw values [*, C, A, G, O] of all actions by their probabilities [*, G, A]."""
    assert isinstance(policy, DiscreteDistribution)
    weights = policy.probs.transpose(-1, -2)  # [*, A, G]
    return PolicyValues(raw, weights.unsqueeze(-3))


def straight_through(raw: Tensor, policy: ActionDistribution, num_samples: int) -> PolicyValues:
    """Weigh the raw values [*, C, A, G, O] of all actions by the frequencies of a few samples.

    The gradient of the frequencies is that of the probabilities (arXiv 1308.3432). Values are
    linear in the one-hot action, so the expectation of one critic is unbiased and its gradient is
    exact for every sample. A nonlinear function, such as the minimum over critics, is evaluated at
    the sampled actions and has the gradient of the critic that is smallest there.
    """
    samples = [policy.rsample() for _ in range(num_samples)]  # [*, G, A] each
    weights = torch.stack(samples).mean(0).transpose(-1, -2)
    return PolicyValues(raw, weights.unsqueeze(-3))


def sample_policy(
    critic: Callable[[Tensor, Tensor], Tensor],
    context: Tensor,
    policy: ActionDistribution,
    num_samples: int,
) -> PolicyValues:
    """Sample actions [S, *, G, A] with a gradient and evaluate them with a critic.

    Args:
        critic: Maps a context [*, D] and actions [S, *, G, A] to raw values [S, *, C, G, O].
        context: [*, D].
        policy: Distribution of the actions.
        num_samples: Number S of samples.
    """
    actions = torch.stack([policy.rsample() for _ in range(num_samples)])
    raw = critic(context, actions).movedim(0, -3)
    weight = raw.new_full((), 1.0 / num_samples)
    return PolicyValues(raw, weight)


def pick_action(raw: Tensor, action: Tensor) -> Tensor:
    """Select the raw values [*, C, G, O] of a one-hot action [*, A].

    Args:
        raw: Raw values of all actions, [*, C, A, G, O].
        action: One-hot, [*, A].

    >>> raw = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
    >>> pick_action(raw, action=torch.tensor([0.0, 0.0, 1.0])).tolist()
    [[[3.0]]]
    """
    index = action.argmax(-1)
    # One index serves all critics, discounts and outputs.
    index = index[..., None, None, None, None]
    return raw.take_along_dim(index, dim=-3).squeeze(-3)
