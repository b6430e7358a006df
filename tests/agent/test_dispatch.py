"""Operators of a decision, which cost more than its arithmetic for a few environments."""

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from yamame.trajectory import GRUEncoder, TransformerEncoder
from yamame_envs import MazeRunner

NUM_ENVS = 4


class Operators(TorchDispatchMode):
    """Counts operators, without those that they consist of."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def operators_of_a_decision(small_agent, trajectory_encoder) -> list[str]:
    env = MazeRunner(num_envs=NUM_ENVS, size=9)
    policy = small_agent(env, trajectory_encoder).policy().eval()
    timestep = env.reset()
    for _ in range(3):
        timestep = env.step_and_maybe_reset(policy(timestep))[1]
    with Operators() as counted:
        policy(timestep)
    return counted.names


ENCODERS = {
    "transformer": partial(TransformerEncoder, d_model=16, num_heads=2),
    "gru": partial(GRUEncoder, hidden_size=8, out_features=8),
}


@pytest.mark.parametrize(
    ("kind", "most", "most_per_layer"), [("transformer", 148, 29), ("gru", 112, 18)]
)
def test_a_decision_and_each_of_its_layers_are_few_operators(
    small_agent, kind, most, most_per_layer
):
    two, three = (
        len(operators_of_a_decision(small_agent, partial(ENCODERS[kind], num_layers=layers)))
        for layers in (2, 3)
    )
    assert two <= most
    assert 10 < three - two <= most_per_layer


class ReadsItsLength(TransformerEncoder):
    """Does not tell for how many steps there is room, so that its length is read at each."""

    def grow_by(self, memory, num_steps):
        larger, _ = super().grow_by(memory, num_steps)
        return larger, 1


@pytest.mark.parametrize(("encoder", "reads"), [(TransformerEncoder, 1), (ReadsItsLength, 2)])
def test_the_length_of_a_memory_is_read_once_and_not_again_for_its_room(
    small_agent, encoder, reads
):
    names = operators_of_a_decision(small_agent, partial(encoder, d_model=16, num_heads=2))
    assert names.count("aten.max.default") == reads
