"""Repeated updates find the optimal values and policies of a known problem."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import Categorical
from yamame.actions import ActionSpace
from yamame.heads import ActorHead, BinnedReturns, PopArt, Returns, make_critic
from yamame.losses import MultiGammaREDQLoss

# Action 0 leads to state 0, action 1 from state 0 to state 1. Staying in state 0 pays 1 for ever;
# action 1 in state 1 pays 6 and ends the task. The impatient take the 6, the patient stay.
REWARD = torch.tensor([[1.0, 0.0], [0.0, 6.0]])
NEXT_STATE = torch.tensor([[0, 1], [0, 0]])
ENDS = torch.tensor([[False, False], [False, True]])
CLONING_ONLY = {"online_coeff": 0.0, "cloning_coeff": 1.0}


def _optimal_values(gammas: Tensor) -> Tensor:
    """Return Q [2 states, 2 actions, G] by value iteration."""
    values = torch.zeros(2, 2, len(gammas))
    for _ in range(200):
        following = values.amax(1)[NEXT_STATE] * ~ENDS.unsqueeze(-1)
        values = REWARD.unsqueeze(-1) + gammas * following
    return values


def _every_transition() -> TensorDict:
    """Return each action of each state once, as sequences of two rows."""
    state, action = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    states = torch.stack((state, NEXT_STATE[state, action]), 1)
    first = torch.tensor([True, False]).expand(4, 2)
    following = {"reward": REWARD[state, action], "terminated": ENDS[state, action]}
    following = {
        name: torch.stack((entry, torch.zeros_like(entry)), 1) for name, entry in following.items()
    }
    batch = {"state": states, "action": torch.stack((action, torch.zeros_like(action)), 1)}
    batch |= {"mask": torch.ones_like(first), "is_init": first}
    return TensorDict(batch | {"next": TensorDict(following, [4, 2])}, [4, 2])


@pytest.mark.parametrize(
    ("returns", "settings"),
    [
        (PopArt(3, decay=0.01), {}),
        (BinnedReturns(3, num_bins=33, min_return=0.0, max_return=100.0), CLONING_ONLY),
        pytest.param(PopArt(3, decay=0.01), CLONING_ONLY, marks=pytest.mark.slow),
    ],
    ids=["policy_improvement", "classification", "filtered_cloning"],
)
def test_repeated_updates_find_the_optimal_values_and_policy_of_every_discount(
    returns: Returns, settings: dict[str, float]
) -> None:
    torch.manual_seed(0)
    gammas, space = (0.5, 0.7, 0.9), ActionSpace(Categorical(2), probability_floor=0.0)
    loss = MultiGammaREDQLoss(
        TensorDictModule(nn.Embedding(2, 8), in_keys=["state"], out_keys=["context"]),
        ActorHead(8, action_space=space, num_gammas=3, hidden_size=32, num_layers=1),
        make_critic(
            8,
            action_space=space,
            gammas=gammas,
            num_outputs=returns.num_outputs,
            hidden_size=32,
            num_layers=1,
        ),
        returns,
        action_space=space,
        gammas=gammas,
        reward_multiplier=1.0,
        target_tau=0.1,
        **settings,
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    batch = _every_transition()
    # A softmax takes longer to move its mass from initial values to others.
    for _ in range(600 if isinstance(returns, BinnedReturns) else 400):
        terms = loss(batch)
        optimizer.zero_grad()
        sum(value for name, value in terms.items() if name.startswith("loss_")).backward()
        optimizer.step()
        loss.update_targets()
    context = loss.encoder(TensorDict({"state": torch.arange(2)}, [2]))["context"]
    values = returns.to_returns(loss.critic_network(context)).mean(1)
    optimal = _optimal_values(loss.gammas)
    torch.testing.assert_close(values, optimal, rtol=0.03, atol=0.1)
    greedy = space.distribution(loss.actor_network(context)).probs.argmax(-1)
    assert torch.equal(greedy, optimal.argmax(1))
    assert len(set(map(tuple, greedy.T.tolist()))) > 1  # the discounts disagree about what to do
