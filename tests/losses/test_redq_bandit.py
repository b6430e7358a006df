"""Updates choose the larger mean of a sure return and a random one."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Categorical
from yamame.actions import ActionSpace
from yamame.heads import ActorHead, BinnedReturns, PopArt, ValueRepresentation, make_critic
from yamame.losses import MultiGammaREDQLoss

MULTIPLIER = 100.0
SURE, RANDOM = 0, 1


def _pulls(sure: float, prize: float) -> TensorDict:
    """Return four pulls: two of the sure arm, and of the other one with and one without prize.

    Outcomes are as frequent as their probabilities.
    """
    arm, paid = (
        torch.tensor([SURE, SURE, RANDOM, RANDOM]),
        torch.tensor([sure, sure, prize, 0.0]) / MULTIPLIER,
    )
    ends = torch.tensor([True, False]).expand(4, 2)
    following = {"reward": torch.stack((paid, torch.zeros(4)), 1), "terminated": ends.clone()}
    batch = {"state": torch.zeros(4, 2, dtype=torch.long), "action": arm.unsqueeze(1).expand(-1, 2)}
    batch |= {"mask": torch.ones_like(ends), "is_init": ends}
    return TensorDict(batch | {"next": TensorDict(following, [4, 2])}, [4, 2])


def _loss(returns: ValueRepresentation) -> MultiGammaREDQLoss:
    torch.manual_seed(0)
    space = ActionSpace(Categorical(2), probability_floor=0.0)
    sizes = {"hidden_size": 32, "num_layers": 1}
    return MultiGammaREDQLoss(
        TensorDictModule(nn.Embedding(1, 8), in_keys=["state"], out_keys=["context"]),
        ActorHead(8, action_space=space, num_gammas=1, **sizes),
        make_critic(8, action_space=space, gammas=[0.9], num_outputs=returns.num_outputs, **sizes),
        returns,
        action_space=space,
        gammas=[0.9],
        reward_multiplier=MULTIPLIER,
    )


def _learn(
    returns: ValueRepresentation, sure: float, prize: float
) -> tuple[list[float], list[float]]:
    """Return values and probabilities of both arms after a few hundred updates."""
    loss = _loss(returns)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)
    batch = _pulls(sure, prize)
    for _ in range(250):
        terms = loss(batch)
        optimizer.zero_grad()
        sum(value for name, value in terms.items() if name.startswith("loss_")).backward()
        nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
        optimizer.step()
        loss.update_targets()
    context = loss.encoder(TensorDict({"state": torch.tensor([0])}, [1]))["context"]
    values = returns.to_returns(loss.critic_network(context)).mean(1).flatten()
    return values.tolist(), loss.action_space.distribution(
        loss.actor_network(context)
    ).probs.flatten().tolist()


def _check(returns: ValueRepresentation, sure: float, prize: float) -> None:
    values, probabilities = _learn(returns, sure, prize)
    best = RANDOM if prize / 2 > sure else SURE
    assert probabilities[best] >= 0.99, (values, probabilities)
    assert values == pytest.approx([sure, prize / 2], rel=0.1)


@pytest.mark.parametrize(("labels", "symlog"), [("two_hot", True), ("hl_gauss", False)])
def test_an_even_chance_of_a_hundred_is_worth_more_than_a_sure_twenty(
    labels: str, symlog: bool
) -> None:
    linear = {"symlog": False, "min_return": -10.0, "max_return": 110.0, "num_bins": 51}
    _check(BinnedReturns(1, labels=labels, **({} if symlog else linear)), 20.0, 100.0)


@pytest.mark.parametrize(
    ("sure", "prize"),
    [
        (0.2, 1.0),
        (80.0, 100.0),
        (2e3, 1e4),
        (-20.0, -100.0),
    ],
)
def test_the_larger_mean_is_chosen_at_every_scale(sure: float, prize: float) -> None:
    _check(BinnedReturns(1), sure, prize)


def test_scalar_values_choose_alike() -> None:
    _check(PopArt(1), 20.0, 100.0)


def test_the_mean_bin_takes_the_sure_twenty() -> None:
    values, probabilities = _learn(BinnedReturns(1, value="mean_bin"), 20.0, 100.0)
    assert probabilities[SURE] >= 0.9
    assert values[RANDOM] < 15.0


@pytest.mark.parametrize(
    ("low", "high", "share"),
    [
        (-1.0, 101.0, 0.0),
        (0.0, 100.0, 0.0),
        (-1.0, 99.0, 0.25),
        (0.5, 19.0, 1.0),
        (-1.0, 1.0, 0.75),
    ],
)
@pytest.mark.parametrize("symlog", [True, False])
def test_the_share_of_targets_outside_of_the_bounds_is_a_metric(
    low: float, high: float, share: float, symlog: bool
) -> None:
    loss = _loss(BinnedReturns(1, num_bins=16, min_return=low, max_return=high, symlog=symlog))
    terms = loss(_pulls(20.0, 100.0))  # targets 20, 20, 100 and 0
    assert dict(terms).get("clipped_targets") == share
    assert set(terms.keys()) == set(loss.out_keys)


def test_scalar_values_clip_nothing() -> None:
    loss = _loss(PopArt(1))
    terms = loss(_pulls(20.0, 100.0))
    assert "clipped_targets" not in terms
    assert set(terms.keys()) == set(loss.out_keys)
