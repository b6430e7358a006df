"""Matrices move as torch's Muon moves them, alone or stacked; everything else as AdamW does."""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from yamame.execution.recorded_updates import make_capturable
from yamame.training import Learner, MuonAdamW
from yamame.training.muon import orthogonalized


def parameters(seed=0):
    """Two equal shapes, a tall and a wide matrix, a stack, and what is no matrix."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(40, 64), (40, 64), (64, 32), (3, 32, 48), (40,), (15, 64), (3, 15, 64)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def run(optimizer, params, updates=3, seed=1):
    """The parameters after updates along gradients of a seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        for parameter in params:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return [parameter.detach().clone() for parameter in params]


def close(ours, theirs, start):
    """Equal up to what bfloat16 rounds in the orthogonalisation."""
    return (ours - theirs).norm() < 0.1 * (theirs - start).norm()


def test_matrices_alone_and_stacked_move_as_by_torchs_muon():
    ours, start = parameters(), parameters()
    ours = run(MuonAdamW(ours, matrix_lr=0.2 * 0.01, momentum=0.9, weight_decay=0.0), ours)[:4]
    singles = [
        nn.Parameter(m) for p in start[:4] for m in p.detach().reshape(-1, *p.shape[-2:]).clone()
    ]
    theirs = torch.optim.Muon(
        singles, lr=0.01, momentum=0.9, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        gradients = [
            torch.randn(parameter.shape, generator=generator) for parameter in parameters()
        ]
        flat = [m for gradient in gradients[:4] for m in gradient.reshape(-1, *gradient.shape[-2:])]
        for single, gradient in zip(singles, flat, strict=True):
            single.grad = gradient
        theirs.step()
    begun = [m for p in start[:4] for m in p.detach().reshape(-1, *p.shape[-2:])]
    reached = [m for p in ours for m in p.reshape(-1, *p.shape[-2:])]
    assert all(close(a, b.detach(), c) for a, b, c in zip(reached, singles, begun, strict=True))


def test_what_is_no_matrix_moves_as_by_adamw():
    ours, theirs = parameters(), parameters()
    ours = run(MuonAdamW(ours, lr=0.01, weight_decay=0.1), ours)
    theirs = run(torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1, fused=True), theirs)
    equal = [torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)]
    assert equal == [False] * 4 + [True] * 3


def test_decay_is_in_units_of_the_learning_rate_of_each():
    params = [nn.Parameter(torch.ones(40, 40)), nn.Parameter(torch.ones(3))]
    optimizer = MuonAdamW(params, lr=0.1, matrix_lr=0.2, weight_decay=0.5)
    for parameter in params:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert [parameter[0].mean().item() for parameter in params] == pytest.approx([0.9, 0.95])


def test_decay_comes_before_the_step_and_leaves_it_whole():
    kept, decayed = nn.Parameter(torch.ones(40, 40)), nn.Parameter(torch.ones(40, 40))
    kept.grad = decayed.grad = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    MuonAdamW([kept], matrix_lr=0.1, weight_decay=0.0).step()
    MuonAdamW([decayed], matrix_lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(kept.detach() - decayed.detach(), torch.full((40, 40), 0.05))


def test_a_gradient_is_left_and_none_is_passed_over():
    params = parameters()
    optimizer = MuonAdamW(params)
    params[1].grad = gradient = torch.ones(40, 64)
    before = [parameter.detach().clone() for parameter in params]
    optimizer.step()
    changed = [not torch.equal(a, b) for a, b in zip(before, params, strict=True)]
    assert changed == [False, True, *[False] * 5]
    assert params[1].grad is gradient
    assert all(parameter.grad is None for parameter in (*params[:1], *params[2:]))


def test_a_saved_state_goes_on_exactly():
    params = parameters()
    optimizer = MuonAdamW(params)
    run(optimizer, params, seed=1)
    saved, copies = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(params)
    expected = run(optimizer, params, seed=2)
    other = MuonAdamW(copies)
    other.load_state_dict(saved)
    assert all(map(torch.equal, run(other, copies, seed=2), expected))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_goes_on_exactly(copied):
    params = parameters()
    optimizer = MuonAdamW(params, momentum=0.5, num_steps=3)
    run(optimizer, params, seed=1)
    other, copies = copied((optimizer, params))
    expected = run(optimizer, params, seed=2)
    assert all(map(torch.equal, run(other, copies, seed=2), expected))


def test_parameters_that_are_added_move_by_adamw():
    ours, added, theirs = parameters(), parameters(1), parameters(1)
    optimizer = MuonAdamW(ours, lr=0.01)
    optimizer.add_param_group({"params": added})
    expected = run(torch.optim.AdamW(theirs, lr=0.01, weight_decay=1e-3, fused=True), theirs)
    assert all(map(torch.equal, run(optimizer, added), expected))


def test_a_learning_rate_may_be_a_tensor_as_recorded_updates_have_it():
    params, copies = parameters(), parameters()
    optimizer = MuonAdamW(copies)
    make_capturable(optimizer)
    expected = run(MuonAdamW(params), params)
    for ours, theirs in zip(run(optimizer, copies), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_both_learning_rates_follow_the_schedule_of_a_learner():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix, self.vector = nn.Parameter(torch.eye(32)), nn.Parameter(torch.ones(32))

        def forward(self, batch):
            return TensorDict({"loss_a": (batch["x"] @ self.matrix * self.vector).square().mean()})

    loss = Loss()
    optimizer = MuonAdamW(loss.parameters(), lr=1.0, matrix_lr=2.0)
    learner = Learner(loss, optimizer, max_grad_norm=1.0, warmup_updates=4)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.5, 0.25])
    learner.update(TensorDict({"x": torch.ones(2, 32)}))
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize("num_steps", [1, 5])
def test_steps_of_an_orthogonalisation_are_those_of_torchs_muon(num_steps):
    ours, theirs = nn.Parameter(torch.zeros(40, 64)), nn.Parameter(torch.zeros(40, 64))
    ours.grad = theirs.grad = parameters()[0].detach()
    MuonAdamW([ours], matrix_lr=0.002, num_steps=num_steps).step()
    torch.optim.Muon([theirs], lr=0.01, ns_steps=num_steps, adjust_lr_fn="match_rms_adamw").step()
    torch.testing.assert_close(ours.norm(), theirs.norm(), rtol=0.02, atol=0.0)
    assert close(ours.detach(), theirs.detach(), torch.zeros(40, 64))


def test_the_size_of_a_gradient_does_not_matter():
    matrices = parameters()[3].detach()
    torch.testing.assert_close(
        orthogonalized(1e-6 * matrices), orthogonalized(matrices), rtol=0.0, atol=0.02
    )


def test_betas_and_fused_are_those_of_adamw():
    ours, theirs = parameters()[4:], parameters()[4:]
    ours = run(MuonAdamW(ours, lr=0.01, betas=(0.5, 0.9), fused=False, weight_decay=0.1), ours)
    theirs = run(torch.optim.AdamW(theirs, lr=0.01, betas=(0.5, 0.9), weight_decay=0.1), theirs)
    assert all(map(torch.equal, ours, theirs))


def test_a_closure_is_refused():
    with pytest.raises(ValueError, match="MuonAdamW: closure must be None"):
        MuonAdamW(parameters()).step(lambda: None)


def test_groups_of_a_callers_own_are_refused():
    with pytest.raises(ValueError, match="MuonAdamW: params must be tensors, got <class 'dict'>"):
        MuonAdamW([{"params": parameters()}])


def test_that_nothing_is_a_matrix_is_said(capsys):
    MuonAdamW(parameters())
    assert capsys.readouterr().err == ""
    MuonAdamW(parameters()[4:])
    with pytest.raises(ValueError, match="empty parameter list"):
        MuonAdamW([])
    (line,) = capsys.readouterr().err.splitlines()
    assert "smallest=32" in line


def test_a_gradient_of_zero_moves_nothing():
    assert torch.equal(orthogonalized(torch.zeros(2, 32, 40)), torch.zeros(2, 32, 40))


@pytest.mark.parametrize(
    "setting",
    [
        {"lr": -1.0},
        {"weight_decay": -1.0},
        {"matrix_lr": -1.0},
        {"momentum": -0.1},
        {"momentum": 1.0},
        {"smallest": 0},
        {"num_steps": 0},
        {"num_steps": 2.5},
        {"betas": (0.9,)},
        {"betas": (1.5, 0.9)},
    ],
)
def test_a_setting_out_of_range_is_refused(setting):
    (name,) = setting
    with pytest.raises(ValueError, match=f"MuonAdamW: {name} must "):
        MuonAdamW(parameters(), **setting)
