"""The encoder without memory: the reference's size, the formula, and no trace of the past."""

import torch
from torch.nn import functional as F
from yamame.trajectory import MemorylessEncoder


def test_the_number_of_parameters_is_that_of_the_reference() -> None:
    assert sum(p.numel() for p in MemorylessEncoder(256, d_model=256).parameters()) == 657_664


def test_the_network_is_the_formula() -> None:
    torch.manual_seed(0)
    encoder = MemorylessEncoder(3, d_model=6, num_layers=2, activation="gelu")
    x = torch.randn(2, 5, 3)
    h = F.gelu(encoder.embed(x))
    for up, down in zip(encoder.up, encoder.down, strict=True):
        h = h + F.gelu(down(F.gelu(up(h))))
    nothing = torch.zeros(2, 5)
    assert torch.allclose(
        encoder.parallel(x, nothing.long(), nothing.bool()), encoder.norm(encoder.out(h))
    )


def test_dropout_acts_in_training_only() -> None:
    encoder = MemorylessEncoder(3, d_model=6, dropout=0.5)
    x, memory, is_init = torch.randn(2, 3), encoder.init_memory(2), torch.ones(2).bool()
    assert not torch.equal(encoder.step(x, memory, is_init)[0], encoder.step(x, memory, is_init)[0])
    encoder.eval()
    assert torch.equal(encoder.step(x, memory, is_init)[0], encoder.step(x, memory, is_init)[0])
