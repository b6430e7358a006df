"""Errors of the critics per transition: those that the metric of an update averages."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from yamame.checks import ArgumentError, UsageError
from yamame.losses.functional import transition_mask
from yamame.training import Learner


def learner_of(loss):
    optimizer = torch.optim.SGD([p for p in loss.parameters() if p.requires_grad], lr=0.1)
    return Learner(loss, optimizer, max_grad_norm=1.0)


def valid_in(batch):
    return transition_mask(batch["mask"].squeeze(-1), batch["is_init"].squeeze(-1))


def test_their_mean_is_the_metric_of_an_update(space, make_loss, make_batch):
    batch = make_batch(space)
    loss = make_loss(space, num_critics=1, num_target_critics=1, n_step=1).eval()
    torch.manual_seed(1)
    errors = loss.td_errors(batch)
    torch.manual_seed(1)  # targets of continuous actions are sampled
    metric = loss(batch)["td_error"]
    valid = valid_in(batch)
    assert not errors[~valid].any()
    torch.testing.assert_close(errors[valid].abs().mean(), metric)
    other = make_batch(space)
    other["next", "reward"][:, 0] += 3.0
    torch.manual_seed(1)
    changed = (loss.td_errors(other) != errors).nonzero()
    assert set(changed[:, 1].tolist()) == {0}


def test_they_are_of_one_step_and_of_the_mean_of_the_critics(discrete, make_loss, make_batch):
    batch = make_batch(discrete)
    one, several = (make_loss(discrete, n_step=steps).eval() for steps in (1, 3))
    torch.manual_seed(1)
    first = one.td_errors(batch)
    torch.manual_seed(1)
    assert torch.equal(first, several.td_errors(batch))
    torch.manual_seed(1)
    assert not torch.equal(several(batch)["td_error"], one(batch)["td_error"])
    assert one.acting_discount == 0.97


def test_a_row_does_not_depend_on_others_nor_on_padding(discrete, make_loss, make_batch):
    batch = make_batch(discrete)
    loss = make_loss(discrete, num_target_critics=3).eval()
    errors = loss.td_errors(batch)
    padded = batch.clone()
    off = ~padded["mask"].squeeze(-1)
    for name in ("observation", ("next", "reward")):
        padded[name][off] = 7.0
    torch.testing.assert_close(loss.td_errors(padded), errors)
    torch.testing.assert_close(loss.td_errors(batch[2:4]), errors[2:4])


def test_the_learner_computes_them_without_a_trace(space, make_loss, make_batch):
    loss = make_loss(space).train()
    batch, learner = make_batch(space), learner_of(loss)
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    state = torch.get_rng_state()
    errors = learner.td_errors(batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert loss.training
    assert not errors.requires_grad
    for name, value in loss.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(learner.td_errors(batch), errors)
    learner.update(batch)
    assert not torch.equal(learner.td_errors(batch), errors)


def test_a_loss_without_critics_has_none(discrete, make_loss, make_batch):
    batch = make_batch(discrete)
    untrained = make_loss(discrete, critic_coeff=0.0).eval()
    with pytest.raises(ArgumentError, match="critic_coeff"):
        untrained.td_errors(batch)

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, batch):
            return TensorDict({"loss_plain": self.weight.sum()})

    with pytest.raises(UsageError, match="Plain must have td_errors"):
        learner_of(Plain()).td_errors(batch)
