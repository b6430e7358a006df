"""Every term trains its own parameters."""

from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn
from yamame.actions import ActionSpace
from yamame.losses import MultiGammaREDQLoss

Make = Callable[..., MultiGammaREDQLoss]
MakeBatch = Callable[..., TensorDict]


def _norms(loss: MultiGammaREDQLoss, batch: TensorDict, term: str) -> dict[str, float]:
    torch.manual_seed(0)
    loss.zero_grad()
    loss(batch)[term].backward()
    parts = {
        "encoder": loss.encoder.parameters(),
        "actor": loss.actor_network.parameters(),
        "critic": loss.critic_network.parameters(),
        "target": loss._targets.parameters(),
    }
    return {
        name: sum(float(p.grad.abs().sum()) for p in parameters if p.grad is not None)
        for name, parameters in parts.items()
    }


@pytest.mark.parametrize(
    ("term", "trained"),
    [
        ("loss_critic", {"critic", "encoder"}),
        ("loss_online", {"actor", "encoder"}),
        ("loss_cloning", {"actor", "encoder"}),
    ],
)
@pytest.mark.parametrize("binned", [False, True])
def test_every_term_trains_its_own_parts(
    term: str,
    trained: set[str],
    binned: bool,
    space: ActionSpace,
    make_loss: Make,
    make_batch: MakeBatch,
) -> None:
    norms = _norms(make_loss(space, binned=binned, num_action_samples=2), make_batch(space), term)
    assert {name for name, norm in norms.items() if norm > 0} == trained


class _Blocked(nn.Module):
    """Actor whose input gets no gradient."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, context: Tensor) -> Tensor:
        return self.actor(context.detach())


@pytest.mark.parametrize("term", ["loss_online", "loss_cloning"])
def test_policy_terms_reach_the_encoder_through_the_actor_alone(
    term: str, space: ActionSpace, make_loss: Make, make_batch: MakeBatch
) -> None:
    norms = _norms(make_loss(space, wrap_actor=_Blocked), make_batch(space), term)
    assert norms["encoder"] == 0.0
    assert norms["actor"] > 0.0
