"""Ways in which the weights of a module change during training, acting and loading."""

from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import nn


@torch.no_grad()
def _update_in_place(encoder: nn.Module) -> None:
    for parameter in encoder.parameters():
        parameter.mul_(1.1).add_(0.01)


def _update_data(encoder: nn.Module) -> None:
    # Writing through .data does not increment the version of a tensor.
    for parameter in encoder.parameters():
        parameter.data.copy_(parameter.data * 0.9 - 0.01)


def _update_by_loading(encoder: nn.Module) -> None:
    parameters = dict(encoder.named_parameters())
    state = {}
    for name, value in encoder.state_dict().items():
        # Buffers stay: scaled indices or statistics would have no meaning.
        state[name] = value * 1.2 + 0.01 if name in parameters else value
    encoder.load_state_dict(state)


def _update_like_a_collector(encoder: nn.Module) -> None:
    # TorchRL's weight updates write into the tensors of a TensorDict that views the parameters.
    weights = TensorDict.from_module(encoder).data.flatten_keys(".")
    names = [name for name, _ in encoder.named_parameters()]
    parameters = weights.select(*names)
    new = parameters.apply(lambda value: value * 0.9 + 0.02)
    parameters.update_(new)


UPDATES: dict[str, Callable[[nn.Module], object]] = {
    " after an update of weights in place": _update_in_place,
    " after an update of weights through .data": _update_data,
    " after load_state_dict": _update_by_loading,
    " after update_policy_weights_": _update_like_a_collector,
}
"""Ways in which weights change, by the words that follow a message."""
