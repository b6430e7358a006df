"""`torch.compile(fullgraph=True)` and `torch.export` take both passes of every encoder, with starts
inside.
"""

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from yamame.trajectory import (
    DeltaNetEncoder,
    FFMEncoder,
    GRUEncoder,
    LinearRecurrentEncoder,
    LRUEncoder,
    LSTMEncoder,
    MemoEncoder,
    MemorylessEncoder,
    MLSTMEncoder,
    RSMEncoder,
    TransformerEncoder,
    WindowEncoder,
    segment_positions,
)

SMALL = {"d_model": 8, "num_heads": 2, "num_layers": 1}
ENCODERS = {
    "transformer": lambda: TransformerEncoder(3, **SMALL),
    "rotary in a window": lambda: TransformerEncoder(
        3, **SMALL, positions="rotary", sigma_reparam=True, window=3, sinks=1
    ),
    "gru": lambda: GRUEncoder(3, hidden_size=8, num_layers=2, out_features=8),
    "lstm": lambda: LSTMEncoder(3, hidden_size=8, num_layers=2, out_features=8),
    "linear recurrence": lambda: LinearRecurrentEncoder(3, d_model=8),
    "lru": lambda: LRUEncoder(3, d_model=8),
    "ffm": lambda: FFMEncoder(3, d_model=8, num_layers=1),
    "mlstm": lambda: MLSTMEncoder(3, **SMALL),
    "deltanet": lambda: DeltaNetEncoder(3, **SMALL),
    "rsm": lambda: RSMEncoder(3, **SMALL, segment_length=3),
    "memo": lambda: MemoEncoder(3, **SMALL, segment_length=3),
    "window": lambda: WindowEncoder(3, window=4, d_model=8),
    "memoryless": lambda: MemorylessEncoder(3, d_model=8),
}
every = pytest.mark.parametrize("name", ENCODERS)
pytestmark = [  # of torch's own code while it compiles and exports
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning"),
]
# Compiled code may order sums otherwise; these have fewer than a hundred terms of order one.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Parallel(nn.Module):
    """The parallel pass as a module of tensors."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x, step_index, is_init):
        return self.encoder.parallel(x, step_index, is_init)


class Step(nn.Module):
    """One step as a module of tensors: the memory goes in and comes out as a dictionary."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x, memory, is_init):
        context, memory = self.encoder.step(x, TensorDict(memory, [len(x)]), is_init)
        return context, dict(memory.items())


def sequences(name):
    torch.manual_seed(0)
    encoder = ENCODERS[name]().eval()
    is_init = torch.tensor([[1, 0, 0, 1, 0], [1, 0, 0, 0, 0]]).bool()
    return encoder, torch.randn(2, 5, 3), segment_positions(is_init), is_init


def compiled(module, backend):
    torch.compiler.reset()
    return torch.compile(module, fullgraph=True, backend=backend)


def exported(module, *inputs):
    return torch.export.export(module, inputs).module()


@every
@torch.no_grad()
def test_the_parallel_pass_exports_whole(name):
    encoder, *inputs = sequences(name)
    expected = encoder.parallel(*inputs)
    other_inputs = (inputs[0] + 1, inputs[1], inputs[2].logical_not())
    other_inputs[2][:, 0] = True
    other_expected = encoder.parallel(*other_inputs)
    function = exported(Parallel(encoder), *inputs)
    torch.testing.assert_close(function(*inputs), expected, **CLOSE)
    torch.testing.assert_close(function(*other_inputs), other_expected, **CLOSE)


@every
@torch.no_grad()
def test_a_step_compiles_and_exports_whole(name):
    encoder, x, _, is_init = sequences(name)
    expected = encoder.parallel(x, segment_positions(is_init), is_init)

    def memory():
        return dict(encoder.init_memory(2, capacity=8).items())

    functions = (
        compiled(Step(encoder), "eager"),
        exported(Step(encoder), x[:, 0], memory(), is_init[:, 0]),
    )
    for function in functions:
        state, contexts = memory(), []
        for t in range(5):
            context, state = function(x[:, t], state, is_init[:, t])
            contexts.append(context)
        torch.testing.assert_close(torch.stack(contexts, 1), expected, **CLOSE)


@every
def test_the_parallel_pass_compiles_whole_and_is_trained_like_an_ordinary_one(name):
    encoder, x, step_index, is_init = sequences(name)
    others = is_init.logical_not()
    others[:, 0] = True
    contexts, gradients = [], []
    for function in (
        encoder.parallel,
        compiled(Parallel(encoder), "aot_eager_default_partitioner"),
    ):
        encoder.zero_grad()
        contexts.append(function(x, step_index, is_init))
        contexts[-1].pow(3).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in encoder.parameters()]))
        contexts.append(function(x + 1, step_index, others))
    torch.testing.assert_close(contexts[2:], contexts[:2], **CLOSE)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)
