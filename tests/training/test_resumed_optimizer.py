"""The state of an optimizer whose steps were recorded as CUDA graphs goes on where they are not."""

import copy

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from yamame.training import Learner, MuonAdamW

KINDS = {
    "fused": lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
    "foreach": lambda params: torch.optim.AdamW(params, lr=0.1, foreach=True),
    "single": lambda params: torch.optim.AdamW(params, lr=0.1, foreach=False, fused=False),
    "muon": lambda params: MuonAdamW(params, lr=0.1, smallest=2),
    "muon, not fused": lambda params: MuonAdamW(params, lr=0.1, smallest=2, fused=False),
}


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Linear(3, 2)

    def forward(self, batch):
        return TensorDict({"loss_a": self.network(batch["x"]).square().mean()})


def learner(kind):
    loss = Loss()
    return Learner(loss, KINDS[kind](loss.parameters()), max_grad_norm=1.0)


def batch(seed):
    return TensorDict({"x": torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))})


def states(of):
    return {name: copy.deepcopy(part.state_dict()) for name, part in of.components().items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_was_recorded_goes_on_as_an_ordinary_one(kind):
    whole, resumed = learner(kind), learner(kind)
    for seed in range(3):
        whole.update(batch(seed))
    saved = states(whole)
    # As a recorded learner saves its groups.
    for group in saved["optimizer"]["param_groups"]:
        group |= {"capturable": True, "lr": torch.tensor(group["lr"])}
    for name, part in resumed.components().items():
        part.load_state_dict(saved[name])
    for group in resumed.optimizer.param_groups:
        assert not group["capturable"]
        assert isinstance(group["lr"], float)
    for seed in range(3, 6):
        whole.update(batch(seed))
        resumed.update(batch(seed))
    for one, other in zip(whole.loss.parameters(), resumed.loss.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_what_an_optimizer_was_built_with_stays():
    saved = learner("foreach").optimizer.state_dict()
    loss = Loss()
    optimizer = torch.optim.AdamW(loss.parameters(), lr=torch.tensor(0.1), capturable=True)
    made = Learner(loss, optimizer, max_grad_norm=1.0)
    for group in saved["param_groups"]:
        group |= {"capturable": True, "lr": torch.tensor(0.2)}
    made.optimizer.load_state_dict(saved)
    assert [group["capturable"] for group in optimizer.param_groups] == [True]
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)
