"""What critics think of a policy's actions: exactly where these can be enumerated, elsewhere by
samples.

Shapes: C critics, S supported actions (all A of them, or samples), G discounts, O raw outputs of
one value.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from yamame.actions import ActionDistribution, DiscreteDistribution


class PolicyValues(NamedTuple):
    """Raw values of the actions a policy may take, and how much each of them counts.

    Attributes:
        raw: [*, C, S, G, O].
        weights: [*, 1, S, G], or a scalar if all count alike; they sum to 1 over S. They carry the
            policy's gradient where actions are enumerated or drawn from all, as `raw` does where a
            critic values samples.
    """

    raw: Tensor
    weights: Tensor

    def expect(self, values: Tensor) -> Tensor:
        """The policy's expectation [*, C, G] of `values` [*, C, S, G], some function of `raw`."""
        return (self.weights * values).sum(-2)


def enumerate_policy(raw: Tensor, policy: ActionDistribution) -> PolicyValues:
    """Weigh the raw values [*, C, A, G, O] of all actions by their probabilities [*, G, A]."""
    assert isinstance(policy, DiscreteDistribution)
    return PolicyValues(raw, policy.probs.transpose(-1, -2).unsqueeze(-3))


def straight_through(raw: Tensor, policy: ActionDistribution, num_samples: int) -> PolicyValues:
    """Weigh the raw values [*, C, A, G, O] of all actions by how often a few draws, [*, G, A] each,
    take them.

    The gradient is that of the probabilities (arXiv 1308.3432). Values are linear in the one-hot of
    an action, so with respect to the expectation of a critic the weights are unbiased, and their
    gradient is exact at every draw. What is not linear in them, such as the minimum over critics,
    is taken at the drawn actions: its gradient is that of the critic which is the smallest there.
    """
    drawn = torch.stack([policy.rsample() for _ in range(num_samples)]).mean(0)
    return PolicyValues(raw, drawn.transpose(-1, -2).unsqueeze(-3))


def sample_policy(
    critic: Callable[[Tensor, Tensor], Tensor],
    context: Tensor,
    policy: ActionDistribution,
    num_samples: int,
) -> PolicyValues:
    """Draw actions [S, *, G, A] with a gradient and let the critic value them in the context [*,
    D].
    """
    actions = torch.stack([policy.rsample() for _ in range(num_samples)])
    raw = critic(context, actions).movedim(0, -3)
    return PolicyValues(raw, raw.new_full((), 1.0 / num_samples))


def pick_action(raw: Tensor, action: Tensor) -> Tensor:
    """From the raw values of all actions [*, C, A, G, O] take those [*, C, G, O] of a one-hot
    action [*, A].

    >>> raw = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
    >>> pick_action(raw, action=torch.tensor([0.0, 0.0, 1.0])).tolist()
    [[[3.0]]]
    """
    index = action.argmax(-1)[..., None, None, None, None]
    return raw.take_along_dim(index, dim=-3).squeeze(-3)
