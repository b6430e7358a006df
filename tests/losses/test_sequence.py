"""A loss reads batches of sequences, and follows the conventions of TorchRL's losses."""

from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Bounded
from torchrl.modules import recurrent_mode
from yamame.actions import ActionSpace
from yamame.heads import ActorHead
from yamame.losses import MultiGammaREDQLoss

Make = Callable[..., MultiGammaREDQLoss]
MakeBatch = Callable[..., TensorDict]


def _objective(terms: TensorDict) -> torch.Tensor:
    return sum(
        (value for name, value in terms.items() if name.startswith("loss_")), torch.zeros(())
    )


def _run(loss: MultiGammaREDQLoss, batch: TensorDict) -> tuple[TensorDict, list[torch.Tensor]]:
    torch.manual_seed(1)
    terms = loss(batch)
    return terms, list(torch.autograd.grad(_objective(terms), list(loss.parameters())))


def test_the_batch_is_not_changed(
    space: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(space)
    before = batch.clone()
    make_loss(space)(batch)
    assert set(batch.keys(True)) == set(before.keys(True))
    assert (batch == before).all()


@pytest.mark.parametrize("binned", [False, True])
def test_one_backward_moves_every_parameter_and_no_target(
    space: ActionSpace, binned: bool, make_loss: Make, make_batch: MakeBatch
) -> None:
    loss = make_loss(space, binned=binned, num_action_samples=2)
    terms = loss(make_batch(space))
    assert set(terms.keys()) == set(loss.out_keys)
    _objective(terms).backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in loss.parameters())
    targets = list(loss._targets.parameters())
    assert len(targets) == sum(
        1 for head in (loss.actor_network, loss.critic_network) for _ in head.parameters()
    )
    assert not any(target.requires_grad or target.grad is not None for target in targets)
    assert not set(targets) & set(loss.parameters())


def test_metrics_carry_no_gradient(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    terms = make_loss(discrete)(make_batch(discrete))
    assert all(value.requires_grad == name.startswith("loss_") for name, value in terms.items())


def test_the_encoder_runs_once_over_every_row_in_parallel_mode(
    space: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    loss, calls = make_loss(space), []

    def hook(module, args, output):
        calls.append((output["context"].shape[:2], recurrent_mode()))

    loss.encoder.register_forward_hook(hook)
    loss(make_batch(space))
    assert calls == [(torch.Size([6, 9]), True)]


def test_padding_rows_change_nothing_whatever_they_hold(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(discrete)
    longer = torch.cat((batch, torch.zeros_like(batch[:, :3])), 1)
    padding = ~longer["mask"].squeeze(-1)
    longer["observation"][padding] = 1e3
    longer["action"][padding] = 99
    longer["next", "reward"][padding] = float("nan")
    longer["is_init"][padding] = True
    longer["next", "terminated"][padding] = True
    settings = {
        "num_target_critics": 3,
        "n_step": 3,
    }  # the whole ensemble: no draw depends on the length
    terms, grads = _run(make_loss(discrete, **settings), batch)
    longer_terms, longer_grads = _run(make_loss(discrete, **settings), longer)
    torch.testing.assert_close(longer_terms.to_dict(), terms.to_dict())
    torch.testing.assert_close(longer_grads, grads)
    # The same changes in a real row count.
    longer["observation"][~padding] += 1.0
    changed_terms, _ = _run(make_loss(discrete, **settings), longer)
    assert not torch.allclose(changed_terms["loss_critic"], terms["loss_critic"])


def test_the_last_row_and_rows_before_a_fresh_start_give_no_transition(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(discrete, num_rows=6)
    batch["mask"].fill_(True)
    batch["is_init"].fill_(False)
    batch["is_init"][:, 3] = True
    changed = batch.clone()
    for row in (2, 5):
        changed["action"][:, row] = (changed["action"][:, row] + 1) % 4
        changed["next", "reward"][:, row] += 5.0
        changed["next", "terminated"][:, row] ^= True
    terms, grads = _run(make_loss(discrete, n_step=3), batch)
    changed_terms, changed_grads = _run(make_loss(discrete, n_step=3), changed)
    torch.testing.assert_close(changed_terms["loss_critic"], terms["loss_critic"])
    torch.testing.assert_close(changed_grads, grads)
    changed["next", "reward"][:, 1] += 5.0
    assert _run(make_loss(discrete, n_step=3), changed)[0]["loss_critic"] != terms["loss_critic"]


@pytest.mark.parametrize("is_init", [False, True])
def test_a_batch_without_a_valid_transition_is_rejected(
    is_init: bool, discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(discrete)
    batch["is_init"].fill_(is_init)
    batch["mask"].fill_(is_init)
    with pytest.raises(ValueError, match=r"mask must leave a valid transition.*\(6, 9\)"):
        make_loss(discrete)(batch)


def test_forbidden_actions_are_outside_every_policy(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(discrete)
    batch["is_init"].fill_(False)
    batch["next", "terminated"].fill_(False)
    batch["next", "terminated"][:, 3] = (
        True  # row 4 is the end of a task, row 5 the start of another
    )
    batch["is_init"][:, 5] = True
    allowed = torch.rand(6, 9, 4) < 0.6
    allowed.scatter_(-1, batch["action"].unsqueeze(-1), True)
    allowed[~batch["mask"].squeeze(-1)] = False  # padding allows nothing
    allowed[:, 4] = False  # nor does the end of a task
    loss = make_loss(discrete)
    for parameter in loss.actor_network.parameters():
        parameter.data.zero_()  # uniform policies
    assert loss(batch)["entropy"].item() == pytest.approx(torch.tensor(4.0).log().item())
    num_allowed = allowed[:, :-1].sum(-1)[loss._valid_transitions(batch)]
    batch["action_mask"] = allowed
    torch.testing.assert_close(loss(batch)["entropy"], num_allowed.float().log().mean())
    batch["action_mask"][:, 2] = False  # but an action was taken here
    with pytest.raises(ValueError, match="action_mask must allow an action"):
        loss(batch)


def test_targets_value_allowed_actions_alone(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(discrete)
    batch["next", "terminated"].fill_(False)
    only = torch.arange(9) % 4  # one action in each row
    batch["action_mask"] = nn.functional.one_hot(only, 4).bool().expand(6, 9, 4)
    settings = {"online_coeff": 0.0, "num_target_critics": 3, "reward_multiplier": 1.0}
    settings["n_step"] = 1
    loss = make_loss(discrete, **settings)
    loss.eval()
    following = loss._contexts(loss.encoder, batch)[1][:, 1:]
    raw = loss._targets["critic"](following)
    values = loss.returns.to_returns(raw).mean(2)  # [B, T, A, G]
    next_value = torch.stack([values[:, t, only[t + 1]] for t in range(8)], 1)
    expected = batch["next", "reward"][:, :-1] + loss.gammas * next_value
    valid = loss._valid_transitions(batch)
    torch.testing.assert_close(loss(batch)["target_value"], expected[valid][:, -1].mean())
    free = loss(batch.exclude("action_mask"))["target_value"]
    assert not torch.allclose(free, expected[valid][:, -1].mean())


def test_entries_are_found_under_other_names(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch = make_batch(discrete)
    terms, _ = _run(make_loss(discrete), batch)
    keys = {
        "action": ("agent", "act"),
        "mask": ("info", "real"),
        "is_init": "fresh",
        "reward": ("agent", "r"),
        "terminated": ("agent", "end"),
    }
    renamed = batch.copy()
    for name, key in keys.items():
        old, new = (
            (("next", name), ("next", *key)) if name in ("reward", "terminated") else (name, key)
        )
        renamed.rename_key_(old, new)
    loss = make_loss(discrete)
    loss.encoder = TensorDictModule(
        loss.encoder.module, in_keys=["observation"], out_keys=[("hidden", "h")]
    )
    loss.set_keys(**keys, context=("hidden", "h"))
    assert set(loss.in_keys) == {
        "observation",
        ("agent", "act"),
        ("info", "real"),
        "fresh",
        ("next", "agent", "r"),
        ("next", "agent", "end"),
        "action_mask",
    }
    renamed_terms, _ = _run(loss, renamed)
    torch.testing.assert_close(renamed_terms["loss_critic"], terms["loss_critic"])
    with pytest.raises(KeyError, match="info"):
        loss(batch)
    with pytest.raises(ValueError, match="reword is not an accepted"):
        loss.set_keys(reword="r")


def test_the_loss_is_called_with_keywords(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch, loss = make_batch(discrete), make_loss(discrete)
    loss.eval()
    torch.manual_seed(1)
    terms = loss(batch)
    torch.manual_seed(1)
    values = loss(
        observation=batch["observation"],
        action=batch["action"],
        mask=batch["mask"],
        is_init=batch["is_init"],
        next_reward=batch["next", "reward"],
        next_terminated=batch["next", "terminated"],
    )
    for name, value in zip(loss.out_keys, values, strict=True):
        torch.testing.assert_close(value, terms[name])


def test_state_dict_restores_the_loss_exactly(
    space: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    batch, trained, other = make_batch(space), make_loss(space), make_loss(space, seed=5)
    trained(batch)  # moves the value statistics
    state = trained.state_dict()
    assert any(name.startswith("_targets.actor") for name in state)
    assert not any(name.startswith("_targets.encoder") for name in state)
    assert not torch.allclose(
        _run(other, batch)[0]["loss_critic"], _run(trained, batch)[0]["loss_critic"]
    )
    trained.load_state_dict(state)
    other.load_state_dict(trained.state_dict())
    (terms, grads), (other_terms, other_grads) = _run(trained, batch), _run(other, batch)
    torch.testing.assert_close(other_terms.to_dict(), terms.to_dict(), rtol=0, atol=0)
    torch.testing.assert_close(other_grads, grads, rtol=0, atol=0)


def test_targets_follow_as_a_plain_loop_moves_them_and_not_before(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    loss = make_loss(discrete, target_tau=0.25)
    networks = nn.ModuleList((loss.actor_network, loss.critic_network))
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    old = [target.clone() for target in loss._targets.parameters()]
    _objective(loss(make_batch(discrete))).backward()
    optimizer.step()
    pairs = list(zip(loss._targets.parameters(), networks.parameters(), old, strict=True))
    assert all(torch.equal(target, former) for target, _, former in pairs)
    loss.update_targets()
    for target, network, former in pairs:
        assert not torch.equal(network, former)
        # lerp adds the weighted difference; the last bits differ.
        torch.testing.assert_close(target, 0.75 * former + 0.25 * network, rtol=1e-5, atol=1e-6)
        assert not target.requires_grad


def test_targets_begin_as_copies_of_the_heads(discrete: ActionSpace, make_loss: Make) -> None:
    loss = make_loss(discrete)
    heads = {"actor": loss.actor_network, "critic": loss.critic_network}
    fresh = MultiGammaREDQLoss(
        loss.encoder, *heads.values(), loss.returns, action_space=discrete, gammas=loss.discounts
    )
    for name, head in heads.items():
        for target, parameter in zip(
            fresh._targets[name].parameters(), head.parameters(), strict=True
        ):
            assert target is not parameter
            assert torch.equal(target, parameter)


def test_the_mode_reaches_encoder_and_heads_and_no_target(
    discrete: ActionSpace, make_loss: Make
) -> None:
    loss = make_loss(discrete)
    for mode in (True, False, True):
        loss.train(mode)
        parts = (loss.encoder, loss.actor_network, loss.critic_network, loss.returns)
        assert [part.training for part in parts] == [mode] * 4
        assert not any(module.training for module in loss._targets.modules())


@pytest.mark.parametrize(
    ("gammas", "condition"),
    [
        ((), r"lie in \(0, 1\)"),
        ((0.9, 1.0), r"lie in \(0, 1\)"),
        ((0.0,), r"lie in \(0, 1\)"),
        ((0.9, 0.99, 0.9), "differ from each other"),
    ],
)
def test_discounts_must_be_different_numbers_inside_the_unit_interval(
    gammas: tuple[float, ...], condition: str, discrete: ActionSpace, make_loss: Make
) -> None:
    loss = make_loss(discrete)
    with pytest.raises(
        ValueError, match=rf"MultiGammaREDQLoss: gammas must {condition}.*got \{list(gammas)}"
    ):
        MultiGammaREDQLoss(
            loss.encoder,
            loss.actor_network,
            loss.critic_network,
            loss.returns,
            action_space=discrete,
            gammas=gammas,
        )


def test_heads_must_agree_with_the_number_of_discounts(
    discrete: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    def one_gamma(actor: nn.Module) -> nn.Module:
        return ActorHead(8, action_space=discrete, num_gammas=1)

    with pytest.raises(ValueError, match=r"actor\.num_gammas must be 3 as of the gammas, got 1"):
        make_loss(discrete, wrap_actor=one_gamma)

    def custom(actor: nn.Module) -> nn.Module:
        return nn.Sequential(one_gamma(actor))

    with pytest.raises(ValueError, match=r"actor must return 3 gammas .*got \(6, 8, 1, 4\)"):
        make_loss(discrete, wrap_actor=custom)(make_batch(discrete))


def test_a_box_may_have_one_dimension_with_bounds_that_exclude_zero(
    make_loss: Make, make_batch: MakeBatch
) -> None:
    space = ActionSpace(Bounded(torch.tensor([2.0]), torch.tensor([3.0])))
    terms, grads = _run(make_loss(space), make_batch(space))
    assert all(bool(value.isfinite()) for value in terms.values())
    assert all(bool(grad.isfinite().all()) for grad in grads)
