"""The parts of an update that have no setting, each beside the plain way to the same numbers."""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from benchmark_pair import LAST_BITS, ROUNDING, Pair, Way, differentiated
from torch import Tensor, nn


def block_pairs(subject: Any, length: int) -> Iterator[Pair]:
    """The feed-forward part of a Transformer's layer, forward and backward."""
    from yamame.trajectory import TransformerEncoder
    from yamame.trajectory.attention import fixed

    encoder, size = subject.agent.trajectory_encoder, subject.cfg.schedule.batch_size
    if not isinstance(encoder, TransformerEncoder):
        return
    layer = copy.deepcopy(encoder.layers[0]).eval()  # where sigma's estimate stays
    x = torch.randn(size * length, encoder.out_features, device=subject.device)
    # Without the factors of sigma: LayerNorm leaves of their gradients little but rounding.
    parts = (layer.norm3, layer.ff1, layer.norm4, layer.ff2)
    parameters = [p for part in parts for p in part.parameters() if p.ndim]

    def whole(x: Tensor) -> Tensor:
        up, down = fixed(layer.ff1, len(x)), fixed(layer.ff2, len(x))
        return down(layer.norm4(layer.activation(up(layer.norm3(x)))))

    def blocks(x: Tensor) -> Tensor:
        found: Tensor = layer._feedforward(x, fixed(layer.ff1, len(x)), fixed(layer.ff2, len(x)))
        return found

    ways = (differentiated(way, x, parameters) for way in (blocks, whole))
    name, how = f"{size} x {length}, feed-forward part in blocks of rows", "all rows at once"
    yield Pair(name, "forward and backward", *ways, how, tolerance=ROUNDING)


def mask_pairs(subject: Any, length: int) -> Iterator[Pair]:
    """Dropout in training mode, on what a layer of the trajectory encoder gives."""
    from yamame.trajectory.dropout import Dropout

    encoder, size = subject.agent.trajectory_encoder, subject.cfg.schedule.batch_size
    shares = [module.p for module in encoder.modules() if isinstance(module, Dropout)]
    if not shares:
        return
    x = torch.randn(size, length, encoder.out_features, device=subject.device)
    ours, plain = Dropout(shares[0]), nn.Dropout(shares[0])
    name, how = f"{size} x {length}, dropout with masks drawn in C", "by torch.nn.Dropout"
    yield Pair(name, "call", lambda _: ours(x), lambda _: plain(x), how, given=lambda: torch.manual_seed(0))


def critic_pairs(subject: Any, lengths: Sequence[int]) -> Iterator[Pair]:
    """All critics of an update, forward and backward."""
    from yamame.heads import ActionInputCritic, StateActionCritic

    critic, size = subject.agent.critic, subject.cfg.schedule.batch_size
    if not isinstance(critic, ActionInputCritic | StateActionCritic):
        return
    ensemble = critic.ensemble
    shared, number = list(ensemble.parameters()), ensemble.num_members
    members = [_member(ensemble, index).to(subject.device) for index in range(number)]
    each = [parameter for member in members for parameter in member.parameters()]
    for length in lengths:
        context = torch.randn(size * length, subject.agent.trajectory_encoder.out_features)
        whole, inputs = _critic_and_inputs(critic, len(context), subject.device)
        together = differentiated(whole, context.to(subject.device), shared)
        apart = differentiated(partial(_one_by_one, members, inputs), context.to(subject.device), each)

        def ours(_: None, together: Way = together) -> list[Any]:
            values, gradient, *gradients = together(None)
            return [values.flatten(2), gradient, *zip(*(part.unbind() for part in gradients), strict=True)]

        name, how = f"{size} x {length}, {number} critics in one product", "one after the other"
        yield Pair(name, "forward and backward", ours, apart, how, tolerance=ROUNDING)


def _member(ensemble: Any, index: int) -> nn.Module:
    """One member of an ensemble, as a perceptron of its own."""
    from yamame.heads.mlp import make_mlp

    (_, width, in_features), out_features = ensemble.first.weight.shape, ensemble.last.weight.shape[1]
    member = make_mlp(in_features, out_features, hidden_size=width, num_layers=1 + len(ensemble.middle))
    for parameter, stacked in zip(member.parameters(), ensemble.parameters(), strict=True):
        parameter.data.copy_(stacked[index])
    return member


def _critic_and_inputs(critic: Any, number: int, device: str) -> tuple[Way, Way]:
    """Values ``[N, C, *]`` of contexts, and what a perceptron reads ``[N, G or 1, in]`` of which they are values."""
    from yamame.heads import StateActionCritic

    if isinstance(critic, StateActionCritic):
        return critic, lambda x: x.unsqueeze(1)
    feature = critic.gamma_feature
    size = critic.ensemble.first.weight.shape[-1] - critic.in_features - 1
    action = 0.9 * torch.rand(number, len(feature), size, device=device)  # none is clipped
    given = torch.cat((feature.expand(number, -1, -1), action), -1)

    def inputs(x: Tensor) -> Tensor:
        return torch.cat((x.unsqueeze(1).expand(-1, len(feature), -1), given), -1)

    return lambda x: critic(x, action), inputs


def _one_by_one(members: list[nn.Module], inputs: Way, x: Tensor) -> Tensor:
    """Values ``[N, C, *]``."""
    from yamame.rows import in_row_blocks

    rows = inputs(x).flatten(0, 1)
    return torch.stack([in_row_blocks(member, rows).view(len(x), -1) for member in members], 1)


def optimizer_pairs(subject: Any) -> Iterator[Pair]:
    """A step of the optimizer over all of the agent's parameters."""
    from yamame.runs.hydra import instantiate

    node = subject.cfg.optimizer
    if not node.get("fused"):
        return
    learned = [p.detach() for p in subject.agent.parameters() if p.requires_grad]
    gradients = [torch.randn_like(p) for p in learned]

    def way(**changed: bool) -> Way:
        parameters = [p.clone().requires_grad_() for p in learned]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer = instantiate(node, params=parameters, **changed)

        def step(_: None) -> list[Tensor]:
            optimizer.step()
            return parameters

        return step

    for how, foreach in (("foreach", True), ("a loop over parameters", False)):
        name, other = f"optimizer in one pass, beside {how}", way(fused=False, foreach=foreach)
        yield Pair(name, "step", way(), other, how, tolerance=LAST_BITS)
