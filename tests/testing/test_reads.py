"""Undeclared reads of a captured computation raise, and a replay uses the recorded memory."""

import numpy as np
import pytest
import torch
from torch import nn
from yamame.testing import DeclaredReads, MemoryReplay

DECLARED = torch.full((4,), 2.0)
FOREIGN = torch.ones(4)
ARRAY = np.ones(4, dtype=np.float32)
SPARSE, DECLARED_SPARSE = torch.eye(4).to_sparse(), torch.eye(4).to_sparse()
GENERATOR = torch.Generator().manual_seed(0)
META = torch.ones(4, device="meta")
DECLARED_META = torch.ones(4, device="meta")
DECLARED_NUMBER = torch.tensor(3.0)
ALL = [DECLARED, DECLARED_META, DECLARED_NUMBER, DECLARED_SPARSE, torch.empty(0)]

REFUSED = {
    "a product": lambda: DECLARED * FOREIGN,
    "a view": lambda: DECLARED.view(2, 2) + FOREIGN.view(2, 2),
    "a write": lambda: FOREIGN.copy_(DECLARED),
    "NumPy": lambda: DECLARED * float(FOREIGN.numpy()[0]),
    "NumPy's own call": lambda: DECLARED * float(np.asarray(FOREIGN)[0]),
    "a list": lambda: DECLARED * FOREIGN.tolist()[0],
    "memory of NumPy": lambda: DECLARED + torch.from_numpy(ARRAY),
    "memory of NumPy, by another name": lambda: DECLARED + torch.as_tensor(ARRAY),
    "a generator": lambda: torch.rand(4, generator=GENERATOR) + DECLARED,
    "a generator, in place": lambda: torch.empty(4).uniform_(generator=GENERATOR),
    "sparse": lambda: torch.sparse.mm(SPARSE, DECLARED.unsqueeze(1)),
    "without memory": lambda: META * 2,
    "a host tensor on a device": lambda: DECLARED_META * DECLARED_NUMBER,
}
ALLOWED = {
    "declared": lambda: DECLARED * 2,
    "a view of declared": lambda: DECLARED[1:3].exp(),
    "made inside": lambda: (torch.zeros(4) + 1).mul_(DECLARED),
    "numbers in the code": lambda: torch.tensor([1.0, 2.0]) + DECLARED[:2],
    "the shape alone": lambda: torch.zeros_like(FOREIGN) + FOREIGN.new_ones(4),
    "the default generator": lambda: torch.empty(4).uniform_(generator=torch.default_generator),
    "declared sparse": lambda: torch.sparse.mm(DECLARED_SPARSE, DECLARED.unsqueeze(1)),
    "declared without memory": lambda: DECLARED_META * 2,
    "a host tensor on the host": lambda: DECLARED * DECLARED_NUMBER,
    "made inside, sparse": lambda: torch.sparse.mm(torch.eye(4).to_sparse(), DECLARED.unsqueeze(1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_undeclared_read_raises(name: str) -> None:
    # Negative control: outside of the context nothing raises.
    REFUSED[name]()
    with pytest.raises(AssertionError), DeclaredReads(ALL):
        REFUSED[name]()


@pytest.mark.parametrize("name", ALLOWED)
def test_a_read_of_declared_or_inner_memory_passes(name: str) -> None:
    with torch.random.fork_rng(), DeclaredReads(ALL):
        ALLOWED[name]()


def test_a_replay_reads_the_memory_of_the_recording_and_bakes_numbers() -> None:
    layer = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    total = torch.zeros(4, 2)
    factor = 2.0

    def compute() -> torch.Tensor:
        # Views, an operation in place and one with a result of its own.
        pairs = layer(x).unflatten(0, (2, 2))
        out = pairs.transpose(0, 1).flatten(0, 1) * factor
        total.add_(out)
        return out.softmax(-1)

    with torch.no_grad():
        with MemoryReplay() as recorded:
            result = compute()
        # New values in the same memory are read.
        x.copy_(torch.randn(4, 3))
        layer.weight.mul_(-3.0)
        total.zero_()
        recorded.replay()
        found = total.clone()
        total.zero_()
        assert torch.equal(result, compute())
        assert torch.equal(found, total)

        # A number is baked in.
        factor = 3.0
        recorded.replay()
        assert not torch.allclose(result, compute())

        # New values in other memory are not read.
        factor = 2.0
        layer.weight.data = layer.weight.data * 2
        recorded.replay()
        assert not torch.allclose(result, compute())


def test_a_replay_reads_tensors_as_they_were_before_their_shape_changed() -> None:
    x = torch.randn(2, 3)

    def compute() -> torch.Tensor:
        y = x * 2
        total = y.sum(0)
        y.t_()
        z = y @ y.clone().transpose_(0, 1)
        z.unsqueeze_(0)
        doubled = z * 2
        z.squeeze_(0)
        return doubled.squeeze_(0) + z + total.sum()

    with torch.no_grad():
        with MemoryReplay() as recorded, DeclaredReads([x]):
            result = compute()
        x.copy_(torch.randn(2, 3))
        # The control: the values of the recording are others.
        assert not torch.allclose(result, compute())
        recorded.replay()
        torch.testing.assert_close(result, compute())


def test_a_change_of_shape_in_place_reads_nothing() -> None:
    with DeclaredReads([DECLARED]):
        FOREIGN.unsqueeze_(0)
        FOREIGN.squeeze_(0)
