"""Options of the loss: gradients of the policy, and losses without critics."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, MultiCategorical
from yamame.actions import ActionSpace
from yamame.losses import MultiGammaREDQLoss

Make = Callable[..., MultiGammaREDQLoss]
MakeBatch = Callable[..., TensorDict]
CLONING: dict[str, Any] = {"online_coeff": 0.0, "critic_coeff": 0.0, "cloning_coeff": 1.0}


def _online(loss: MultiGammaREDQLoss, batch: TensorDict, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the online term and its gradient with respect to the actor."""
    torch.manual_seed(seed)
    term = loss.eval()(batch)["loss_online"]
    gradients = torch.autograd.grad(term, list(loss.actor_network.parameters()))
    return term.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def test_straight_through_draws_values_and_keeps_the_gradient_of_a_single_critic(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch, settings = make_batch(discrete), {"num_critics": 1, "num_target_critics": 1}
    exact = _online(make_loss(discrete, **settings), batch)
    drawn = make_loss(discrete, discrete_gradient="straight_through", **settings)
    terms = [_online(drawn, batch, seed) for seed in range(3)]
    assert len({float(term) for term, _ in terms}) == 3
    for term, gradient in terms:
        assert term != exact[0]
        torch.testing.assert_close(gradient, exact[1])


def test_with_several_critics_more_samples_come_nearer_to_the_expectation(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(discrete)
    exact, _ = _online(make_loss(discrete), batch)
    errors = []
    for num_samples in (1, 1000):
        loss = make_loss(
            discrete, discrete_gradient="straight_through", num_action_samples=num_samples
        )
        found = torch.stack([_online(loss, batch, seed)[0] for seed in range(5)])
        errors.append((found - exact).abs().max())
    assert (
        errors[1] < 0.2 * errors[0]
    )  # 1 / sqrt(1000) of the spread and a bias that shrinks as well


@pytest.mark.parametrize("filters", ["binary", "exponential"])
def test_only_the_online_term_draws(
    filters: str, discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch, terms = make_batch(discrete), []
    for gradient in ("expectation", "straight_through"):
        loss = make_loss(
            discrete, discrete_gradient=gradient, cloning_filter=filters, num_target_critics=3
        )
        terms.append(loss.eval()(batch).detach().to_dict())
    assert terms[0].pop("loss_online") != terms[1].pop("loss_online")
    torch.testing.assert_close(terms[0], terms[1], rtol=0, atol=0)


def test_several_choices_are_straight_through_anyway_and_a_box_refuses_it(
    make_loss: Make, make_batch: MakeBatch
) -> None:
    space = ActionSpace(MultiCategorical([2, 3]))
    batch = make_batch(space)
    terms = [
        _online(make_loss(space, discrete_gradient=gradient), batch)
        for gradient in ("expectation", "straight_through")
    ]
    assert torch.equal(terms[0][0], terms[1][0])
    assert torch.equal(terms[0][1], terms[1][1])
    box = ActionSpace(Bounded(torch.tensor([0.0]), torch.tensor([1.0])))
    with pytest.raises(
        ValueError, match=r"discrete_gradient must be 'expectation' .* got 'straight_through'"
    ):
        make_loss(box, discrete_gradient="straight_through")


def _without_critic(
    loss: MultiGammaREDQLoss, space: ActionSpace, **settings: Any
) -> MultiGammaREDQLoss:
    return MultiGammaREDQLoss(
        loss.encoder,
        loss.actor_network,
        None,
        loss.returns,
        action_space=space,
        gammas=loss.gammas.tolist(),
        **settings,
    )


def test_unfiltered_cloning_needs_no_critic(
    space: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch, settings = make_batch(space), {**CLONING, "cloning_filter": "none"}
    whole = make_loss(space, **settings)
    loss = _without_critic(whole, space, **settings)
    loss.update_targets()
    loss.eval().train()
    assert not any("critic" in name for name, _ in loss.named_parameters())
    terms = loss(batch)
    assert set(terms.keys()) == {"loss_cloning", "entropy"} == set(loss.out_keys)
    torch.testing.assert_close(
        terms.detach().to_dict(), whole(batch).detach().to_dict(), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("settings", "terms"),
    [
        ({}, "critic_coeff and online_coeff and cloning_filter"),
        ({**CLONING, "critic_coeff": 1.0, "cloning_filter": "none"}, "critic_coeff"),
        ({**CLONING, "online_coeff": 1.0, "cloning_filter": "none"}, "online_coeff"),
        (CLONING, "cloning_filter"),
    ],
)
def test_a_term_that_needs_critics_is_named_where_there_are_none(
    settings: dict[str, Any], terms: str, discrete: ActionSpace, make_loss: Make
) -> None:
    with pytest.raises(
        ValueError, match=rf"critic must not be None \(num_critics 0\) with {terms}, got None"
    ):
        _without_critic(make_loss(discrete), discrete, **settings)
