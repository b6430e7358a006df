"""Conversion of the weights of AMAGO's agents to those of Yamame's.

Layers are the same functions. What differs is the order of rows and columns: inputs of a timestep,
heads and their channels, actions and discount factors.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from tensordict import NestedKey
from torch import Tensor, nn

from yamame.agent import InContextAgent
from yamame.deploy.amago.network import GRU, Block, Layer, Network, SigmaLayer, Transformer
from yamame.heads.ensemble import EnsembleLinear

_SMALLEST_STD, _LARGEST_STD = 1e-3, 1e6
_STABLE_STD = 0.01
"""Standard deviation up to which AMAGO shifts a feature only; Yamame's normaliser does below it."""
_ROTARY_BASE = 10_000.0


@torch.no_grad()
def fill(
    agent: InContextAgent, network: Network, columns: Mapping[NestedKey, Sequence[int]]
) -> None:
    """Copy the weights of a network into an agent of its sizes.

    Args:
        agent: The agent.
        network: Networks of AMAGO's agent.
        columns: Columns of AMAGO's inputs of a timestep for each of the agent's inputs; none for
            inputs that AMAGO's agent does not read.
    """
    _fill_timestep(agent.timestep_encoder, network, columns)
    if isinstance(network.memory, GRU):
        _fill_gru(agent.trajectory_encoder, network.memory)
    else:
        _fill_transformer(agent.trajectory_encoder, network.memory)
    _fill_linears(agent.actor.mlp, network.actor)
    _fill_critics(agent, network)
    _fill_popart(agent.returns, network.popart)


def _fill_timestep(
    encoder: Any, network: Network, columns: Mapping[NestedKey, Sequence[int]]
) -> None:
    (weight, bias), *others = network.timestep
    mean, variance, updates = _moments(*network.moments)
    own_weight = torch.zeros(len(weight), sum(encoder.in_sizes.values()))
    first = 0
    # Inputs that AMAGO's agent does not read have weights of 0, until they are trained.
    for key, size in encoder.in_sizes.items():
        chosen = list(columns.get(key, ()))
        if chosen:
            place = slice(first, first + size)
            own_weight[:, place] = weight[:, chosen]
            if encoder.normalizer is not None:
                encoder.normalizer.mean[place] = mean[chosen]
                encoder.normalizer.variance[place] = variance[chosen]
        first += size
    if encoder.normalizer is not None:
        encoder.normalizer.num_updates.fill_(updates)
    _fill_linears(encoder.mlp, [(own_weight, bias), *others])
    _fill_norm(encoder.norm, network.timestep_norm)


def _moments(mu: Tensor, nu: Tensor, counter: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return mean and variance in float64, and the number of updates."""
    # In float32 as AMAGO computes it: the difference of squares rounds.
    std = torch.sqrt(nu - mu**2 + 1e-5).nan_to_num().clamp(_SMALLEST_STD, _LARGEST_STD)
    variance = std.double().square()
    is_shifted = std <= _STABLE_STD
    smaller = torch.full_like(variance, (0.999 * _STABLE_STD) ** 2)
    return mu.double(), torch.where(is_shifted, variance.minimum(smaller), variance), int(counter)


def _fill_transformer(encoder: Any, transformer: Transformer) -> None:
    _fill_layer(encoder.embed, transformer.embed)
    if transformer.positions is not None:
        encoder.positions.weight.copy_(transformer.positions)
    elif encoder.rotary:
        size = encoder.positions.size
        even = torch.arange(0, size, 2).float()
        encoder.positions.frequencies.copy_(1.0 / (_ROTARY_BASE ** (even / size)))
    for own, block in zip(encoder.layers, transformer.blocks, strict=True):
        _fill_block(own, block)
    _fill_norm(encoder.norm, transformer.norm)


def _fill_block(own: Any, block: Block) -> None:
    # AMAGO's rows are in the order (3, channel, head), Yamame's in (3, head, channel).
    num_heads = len(block.head_scale)
    rows = torch.arange(block.qkv.weight.shape[0]).unflatten(0, (3, -1, num_heads))
    _fill_sigma(own.qkv, block.qkv, rows.transpose(1, 2).flatten())
    _fill_sigma(own.out, block.out)
    _fill_sigma(own.ff1, block.ff1)
    _fill_sigma(own.ff2, block.ff2)
    own.head_scale.copy_(block.head_scale.view(-1, 1, 1))
    for norm, layer in zip((own.norm1, own.norm2, own.norm3, own.norm4), block.norms, strict=True):
        if layer is not None:
            _fill_norm(norm, layer)


def _fill_sigma(own: Any, layer: SigmaLayer, rows: Tensor | None = None) -> None:
    order = torch.arange(layer.weight.shape[0]) if rows is None else rows
    own.weight.copy_(layer.weight[order])
    if layer.bias is not None:
        own.bias.copy_(layer.bias[order])
    if layer.gamma is not None and layer.u is not None and layer.v is not None:
        own.gamma.copy_(layer.gamma.squeeze())
        own.u.copy_(layer.u[order])
        own.v.copy_(layer.v)


def _fill_gru(encoder: Any, gru: GRU) -> None:
    for own, layer in zip(encoder.layers.all_weights, gru.layers, strict=True):
        for parameter, weight in zip(own, layer, strict=True):
            parameter.copy_(weight)
    _fill_layer(encoder.out, gru.out)
    _fill_norm(encoder.norm, gru.norm)


def _fill_critics(agent: InContextAgent, network: Network) -> None:
    assert agent.critic is not None
    layers = [layer for layer in agent.critic.modules() if isinstance(layer, EnsembleLinear)]
    for own, (weight, bias) in zip(layers, network.critics, strict=True):
        own_weight = weight.mT  # [C, out, in]
        if own is layers[-1] and network.action_kind == "discrete":
            # From outputs in the order (gamma, action) to (action, gamma).
            sizes = (network.num_gammas, network.num_actions)
            own_weight = own_weight.unflatten(1, sizes).transpose(1, 2).flatten(1, 2)
            bias = bias.unflatten(1, sizes).transpose(1, 2).flatten(1, 2)
        own.weight.copy_(own_weight)
        own.bias.copy_(bias)


def _fill_popart(returns: Any, popart: Sequence[Tensor]) -> None:
    mu, nu, scale, shift, counter = popart
    if not returns.enabled:
        return
    returns.moments.mean.copy_(mu)
    # In float32 as AMAGO computes it: the difference of squares rounds.
    returns.moments.variance.copy_(nu - mu**2)
    # AMAGO counts the initial moments as an update.
    returns.moments.num_updates.fill_(int(counter[0]) - 1)
    returns.scale.copy_(scale)
    returns.shift.copy_(shift)


def _fill_linears(mlp: Iterable[nn.Module], layers: Sequence[Layer]) -> None:
    linears = [layer for layer in mlp if isinstance(layer, nn.Linear)]
    for own, layer in zip(linears, layers, strict=True):
        _fill_layer(own, layer)


def _fill_layer(own: Any, layer: Layer) -> None:
    weight, bias = layer
    own.weight.copy_(weight)
    own.bias.copy_(bias)


_fill_norm = _fill_layer
