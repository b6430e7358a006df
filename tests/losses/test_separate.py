"""Actor and critics with separate encoders: gradients, targets, and equality to shared ones."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from yamame.actions import ActionSpace
from yamame.agent import SeparateEncoders
from yamame.losses import MultiGammaREDQLoss, SeparateREDQLoss
from yamame.timestep import RunningNormalizer

Make = Callable[..., MultiGammaREDQLoss]
MakeBatch = Callable[..., TensorDict]


def an_encoder(**options: Any) -> TensorDictModule:
    network = nn.Sequential(
        RunningNormalizer(5), nn.Linear(5, 8), nn.Dropout(options.get("dropout", 0.0)), nn.Tanh()
    )
    return TensorDictModule(network, in_keys=["observation"], out_keys=["context"])


PARTS = ("actor", "critic")


def arrivals(loss: SeparateREDQLoss, batch: TensorDict) -> dict[str, torch.Tensor]:
    """Return the contexts of a batch that the target heads read."""
    contexts = loss._contexts(loss.encoder, batch)
    return dict(zip(PARTS, loss._arrival_contexts(batch, *contexts), strict=True))


@pytest.fixture
def make_separate(make_loss: Make) -> Callable[..., SeparateREDQLoss]:
    """Return a maker of losses with two encoders, of equal weights or not."""

    def build(space: ActionSpace, *, equal: bool = False, dropout: float = 0.0, **settings: Any):
        shared = make_loss(space, **settings)
        torch.manual_seed(1)
        actor = an_encoder(dropout=dropout)
        critic = copy.deepcopy(actor) if equal else an_encoder(dropout=dropout)
        loss = SeparateREDQLoss(
            SeparateEncoders(actor, critic),
            shared.actor_network,
            shared.critic_network,
            shared.returns,
            action_space=space,
            gammas=shared.gammas.tolist(),
            **settings,
        )
        return loss

    return build


@pytest.mark.parametrize(
    ("term", "trained"),
    [
        ("loss_critic", {"critic", "critic_encoder"}),
        ("loss_online", {"actor", "actor_encoder"}),
        ("loss_cloning", {"actor", "actor_encoder"}),
    ],
)
def test_every_term_trains_its_own_encoder_and_head(
    term: str, trained: set[str], space: ActionSpace, make_separate: Any, make_batch: MakeBatch
) -> None:
    loss = make_separate(space, num_action_samples=2)
    parts = {
        "actor_encoder": loss.encoder.actor.parameters(),
        "critic_encoder": loss.encoder.critic.parameters(),
        "actor": loss.actor_network.parameters(),
        "critic": loss.critic_network.parameters(),
        "targets": loss._targets.parameters(),
    }
    loss(make_batch(space))[term].backward()
    moved = {
        name
        for name, part in parts.items()
        if any(p.grad is not None and p.grad.any() for p in part)
    }
    assert moved == trained


def test_encoders_of_equal_weights_give_the_terms_of_a_shared_one(
    space: ActionSpace, make_separate: Any, make_batch: MakeBatch
) -> None:
    batch, loss = make_batch(space), make_separate(space, equal=True).eval()
    shared = MultiGammaREDQLoss(
        loss.encoder.actor,
        loss.actor_network,
        loss.critic_network,
        loss.returns,
        action_space=space,
        gammas=loss.gammas.tolist(),
    ).eval()
    terms = []
    for each in (loss, shared):
        torch.manual_seed(0)
        terms.append(each(batch).detach().to_dict())
    torch.testing.assert_close(terms[0], terms[1], rtol=0, atol=0)
    with torch.no_grad():
        loss.encoder.critic.module[1].weight.add_(0.5)
    torch.manual_seed(0)
    assert loss(batch)["loss_critic"] != terms[1]["loss_critic"]


def test_targets_are_those_of_the_target_encoders(
    discrete: ActionSpace, make_separate: Any, make_batch: MakeBatch
) -> None:
    batch, loss = make_batch(discrete), make_separate(discrete).eval()
    before = arrivals(loss, batch)
    with torch.no_grad():
        for parameter in loss.encoder.parameters():
            parameter.add_(0.3)
    after = arrivals(loss, batch)
    for part in PARTS:
        assert torch.equal(after[part], before[part])
        # A target that does not lag would have moved.
        present = dict(zip(PARTS, loss._contexts(loss.encoder, batch), strict=True))
        assert not torch.allclose(present[part][:, 1:], before[part], atol=0.01)
        with torch.no_grad():
            getattr(loss._targets["encoder"], part).module[1].bias.add_(1.0)
        assert not torch.allclose(arrivals(loss, batch)[part], before[part], atol=0.01)


def test_every_target_follows_by_tau_and_running_statistics_follow_at_once(
    discrete: ActionSpace, make_separate: Any, make_batch: MakeBatch
) -> None:
    batch, loss = make_batch(discrete), make_separate(discrete, target_tau=0.25)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    networks = {"encoder": loss.encoder, "actor": loss.actor_network, "critic": loss.critic_network}
    old = {name: [p.clone() for p in loss._targets[name].parameters()] for name in networks}
    terms = loss(batch)
    (terms["loss_critic"] + terms["loss_online"]).backward()
    optimizer.step()
    loss.update_targets()
    for name, network in networks.items():
        followed = zip(
            loss._targets[name].parameters(), network.parameters(), old[name], strict=True
        )
        for target, value, former in followed:
            assert not torch.equal(value, former)
            torch.testing.assert_close(target, former.lerp(value.data, 0.25))
    loss(batch)
    loss.eval()
    loss(batch)
    for part in ("actor", "critic"):
        normalizer = getattr(loss.encoder, part).module[0]
        assert normalizer.num_updates == 2  # one for each update, none for the pass of the target
        assert torch.equal(getattr(loss._targets["encoder"], part).module[0].mean, normalizer.mean)


def test_a_target_encoder_drops_nothing_whatever_the_mode(
    discrete: ActionSpace, make_separate: Any, make_batch: MakeBatch
) -> None:
    batch, loss = make_batch(discrete), make_separate(discrete, dropout=0.5).train()
    contexts = [loss._contexts(loss.encoder, batch) for _ in range(2)]
    assert not torch.equal(contexts[0][1], contexts[1][1])
    following = [loss._arrival_contexts(batch, *contexts[0]) for _ in range(2)]
    assert torch.equal(following[0][1], following[1][1])
    assert loss.encoder.training
    assert not following[0][0].requires_grad


def test_the_state_holds_everything_the_next_update_depends_on(
    discrete: ActionSpace, make_separate: Any, make_batch: MakeBatch
) -> None:
    batch, other = make_batch(discrete), make_separate(discrete)
    trained = make_separate(discrete, target_tau=0.25)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        terms = trained(batch)
        (terms["loss_critic"] + terms["loss_online"]).backward()
        optimizer.step()
        trained.update_targets()

    def values(loss: SeparateREDQLoss) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return loss(batch).detach().to_dict()

    state = copy.deepcopy(trained.state_dict())
    expected = values(trained)
    assert values(other)["loss_critic"] != expected["loss_critic"]
    other.load_state_dict(state)
    torch.testing.assert_close(values(other), expected, rtol=0, atol=0)
    torch.nn.init.zeros_(other._targets["encoder"].critic.module[1].weight)
    assert values(other)["loss_critic"] != expected["loss_critic"]


def test_each_loss_refuses_the_encoders_of_the_other(
    discrete: ActionSpace, make_loss: Make, make_separate: Any, make_batch: MakeBatch
) -> None:
    batch, shared, separate = make_batch(discrete), make_loss(discrete), make_separate(discrete)
    shared.encoder, separate.encoder = separate.encoder, shared.encoder
    with pytest.raises(
        ValueError, match=r"MultiGammaREDQLoss: encoder must not write 'critic_context'"
    ):
        shared(batch)
    with pytest.raises(
        ValueError, match=r"SeparateREDQLoss: encoder must write 'critic_context'.*'context'"
    ):
        separate(batch)


@pytest.mark.parametrize("part", ["actor", "critic"])
def test_target_values_depend_on_both_target_encoders(
    part: str, discrete: ActionSpace, make_separate: Any, make_batch: MakeBatch
) -> None:
    batch, loss = (
        make_batch(discrete),
        make_separate(discrete, num_target_critics=3).eval(),
    )  # no draw
    before = loss(batch)["target_value"]
    assert loss(batch)["target_value"] == before
    with torch.no_grad():
        getattr(loss._targets["encoder"], part).module[1].bias.add_(1.0)
    assert loss(batch)["target_value"] != before
