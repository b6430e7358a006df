"""Dropout with masks drawn in C drops what PyTorch's drops and leaves the generator where PyTorch leaves it."""

import copy
import functools
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from yamame.trajectory import MemorylessEncoder, TransformerEncoder
from yamame.trajectory.dropout import Dropout, bernoulli_kernel


def drawn(count: int, seed: int) -> np.ndarray:
    """The first numbers in [0, 1) of PyTorch's generator of a CPU, as NumPy computes them."""
    words = np.random.RandomState(seed)._bit_generator.random_raw(2 * count).astype(np.uint64)
    return ((words[::2] << np.uint64(32) | words[1::2]) & np.uint64(2**53 - 1)) / 2**53


@pytest.fixture
def kernel(compiler):
    torch.manual_seed(11)
    if not np.array_equal(torch.empty(1000).bernoulli_(0.75).numpy(), drawn(1000, 11) < 0.75):
        pytest.skip("on this processor PyTorch draws otherwise")
    found = bernoulli_kernel()
    assert found is not None
    return found


@pytest.fixture
def calls(kernel, monkeypatch):
    """How many masks were drawn in C."""
    drawn = []

    class Counting:
        @staticmethod
        def bernoulli(*arguments):
            drawn.append(arguments)
            kernel.bernoulli(*arguments)

    monkeypatch.setattr("yamame.trajectory.dropout.bernoulli_kernel", lambda: Counting)
    return drawn


def both(p: float, x: torch.Tensor, already: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Outputs and states of the generator after, theirs and ours, ``already`` words from a fresh state."""
    results = []
    for module in (nn.Dropout(p), Dropout(p)):
        torch.manual_seed(7)
        torch.empty(already, dtype=torch.int32).random_()
        results.append((module(x), torch.get_rng_state()))
    return results


def is_the_same(p: float, x: torch.Tensor, already: int = 0) -> bool:
    (theirs, their_state), (ours, our_state) = both(p, x, already)
    return torch.equal(theirs, ours) and theirs.dtype is ours.dtype and torch.equal(their_state, our_state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [1e-3, 0.05, 0.3, 0.5, 0.77, 1 - 1e-3])
def test_numbers_are_those_of_pytorch(p, dtype, calls):
    x = torch.randn(3, 41, 64, dtype=dtype)
    assert is_the_same(p, x)
    assert len(calls) == 1


@pytest.mark.parametrize("which", [0, 700, -1])
def test_a_share_is_kept_to_its_last_bit(which, calls):
    numbers = drawn(4096, 7)
    share = float(numbers[numbers >= 0.5][which])  # of which 1 - p is exact
    kept = []
    for change in (0.0, 2.0**-53):
        assert is_the_same(1 - (share + change), torch.ones(4096))
        kept.append(both(1 - (share + change), torch.ones(4096))[1][0].count_nonzero())
    assert kept[1] == kept[0] + 1
    assert len(calls) == 4


@pytest.mark.parametrize("already", [0, 1, 2, 622, 623, 624, 625, 1247, 1248])
@pytest.mark.parametrize("count", [4096, 4097, 312 * 14 - 1, 312 * 14, 312 * 14 + 1])
def test_it_begins_and_ends_anywhere_in_a_state(count, already, calls):
    assert is_the_same(0.3, torch.randn(count), already)
    assert len(calls) == 1


def test_what_is_drawn_next_is_the_same():
    x = torch.randn(5000)
    following = []
    for module in (nn.Dropout(0.1), Dropout(0.1)):
        torch.manual_seed(3)
        first = torch.randn(1)  # leaves half of a pair of normal numbers behind
        module(x)
        following.append((first, torch.randn(3), torch.rand(700), module(x)))
    for theirs, ours in zip(*following, strict=True):
        assert torch.equal(theirs, ours)


def test_gradients_are_those_of_pytorch(calls):
    x = torch.randn(64, 80, requires_grad=True)
    gradients = []
    for module in (nn.Dropout(0.2), Dropout(0.2)):
        torch.manual_seed(1)
        gradients.append(torch.autograd.grad(module(x).square().sum(), x)[0])
    assert torch.equal(*gradients)
    assert gradients[0].count_nonzero() < x.numel()
    assert len(calls) == 1


@pytest.mark.parametrize(
    "x",
    [torch.randn(80, 64).t(), torch.randn(5000).double(), torch.randn(4095), torch.randn(0, 3)],
    ids=["not contiguous", "float64", "small", "empty"],
)
def test_other_inputs_are_left_to_pytorch(x, calls):
    assert is_the_same(0.3, x)
    assert not calls


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_is_drawn_where_nothing_is_random(p, calls):
    x = torch.randn(5000)
    assert torch.equal(Dropout(p)(x), nn.Dropout(p)(x))
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert not calls


def test_in_place_it_is_pytorchs(calls):
    x = torch.randn(5000)
    torch.manual_seed(0)
    expected = F.dropout(x, 0.5)
    torch.manual_seed(0)
    assert Dropout(0.5, inplace=True)(x) is x
    assert torch.equal(x, expected)
    assert not calls


def test_without_a_compiler_pytorch_draws(monkeypatch):
    monkeypatch.setenv("CC", "/nowhere/compiler")
    bernoulli_kernel.cache_clear()
    try:
        assert bernoulli_kernel() is None
        assert is_the_same(0.3, torch.randn(5000))
    finally:
        bernoulli_kernel.cache_clear()


def test_a_function_that_draws_otherwise_is_not_used(kernel, monkeypatch):
    monkeypatch.setattr("yamame.trajectory.dropout._RESOLUTION", 2.0**52)
    bernoulli_kernel.cache_clear()
    try:
        state = torch.get_rng_state()
        assert bernoulli_kernel() is None
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        bernoulli_kernel.cache_clear()


def test_compiled_graphs_hold_pytorchs(calls):
    # Tracing goes through without a break of the graph; what it draws is the compiler's own matter.
    graph = torch.export.export(nn.Sequential(Dropout(0.5)), (torch.randn(5000),))
    assert any("dropout" in str(node.target) for node in graph.graph.nodes)
    assert not calls


@pytest.mark.parametrize("transform", ["vmap", "grad", "fake"])
def test_what_is_no_memory_is_left_to_pytorch(transform, calls):
    x, found = torch.randn(3, 5000), []
    for module in (nn.Dropout(0.5), Dropout(0.5)):
        torch.manual_seed(5)
        if transform == "vmap":
            found.append(torch.vmap(module, randomness="different")(x))
        elif transform == "grad":
            found.append(torch.func.grad(lambda x, module=module: module(x).square().sum())(x))
        else:
            with FakeTensorMode():
                shape = module(torch.empty(3, 5000)).shape
            found.append(torch.zeros(shape))
    assert torch.equal(*found)
    assert not calls


SETTINGS = {"num_layers": 2, "d_model": 32, "dropout": 0.2}
ENCODERS = {
    "transformer": (functools.partial(TransformerEncoder, num_heads=2), 3),
    "checkpointed": (functools.partial(TransformerEncoder, num_heads=2, checkpoint_layers=True), 5),
    "memoryless": (MemorylessEncoder, 5),
}
"""And how many masks one forward and backward pass draws."""


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_draw_in_c_and_learn_the_same(name, calls):
    torch.manual_seed(0)
    make, number = ENCODERS[name]
    encoder = make(5, **SETTINGS)
    twin = copy.deepcopy(encoder)
    for module in twin.modules():
        if isinstance(module, Dropout):
            module.__class__ = nn.Dropout
    x, step, starts = (
        torch.randn(4, 40, 5),
        torch.arange(40).expand(4, -1),
        torch.zeros(4, 40, dtype=torch.bool),
    )
    gradients = []
    for one, expected in ((twin, 0), (encoder, number)):
        torch.manual_seed(2)
        loss = one.parallel(x, step, starts).square().sum()
        gradients.append(torch.autograd.grad(loss, list(one.parameters()), allow_unused=True))
        assert len(calls) == expected
    for theirs, ours in zip(*gradients, strict=True):
        assert (theirs is None and ours is None) or torch.equal(theirs, ours)


def test_it_travels(kernel):
    module = Dropout(0.25)
    assert isinstance(pickle.loads(pickle.dumps(module)), Dropout)
    assert copy.deepcopy(module).p == 0.25
