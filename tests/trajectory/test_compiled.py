"""Attention compiled for acting finds what products find, and little is ever compiled."""

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn import functional as F
from yamame.trajectory import TransformerEncoder
from yamame.trajectory.cache import _alike
from yamame.trajectory.compiled import attention_kernel

pytestmark = pytest.mark.usefixtures("compiler")

KINDS = {
    "default": {},
    "sinks": {"positions": "rotary", "window": 3, "sinks": 1},
    "ring": {"context_length": 40},
    "one slot": {"context_length": 1},
}


def make(**settings) -> TransformerEncoder:
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=2, **settings).eval()
    for parameter in encoder.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return encoder


def play(encoder: TransformerEncoder, num_rows: int, num_steps: int = 60, switch=None) -> torch.Tensor:
    """Contexts ``[N, L, D]`` of rows that end at random, a third of them much more often than the rest."""
    generator = torch.Generator().manual_seed(1)
    encoder.reset_memory()
    often = torch.where(torch.arange(num_rows) % 3 == 0, 0.3, 0.02)
    found = []
    for t in range(num_steps):
        if switch is not None and t == num_steps // 2:
            encoder.prepare(**switch)
        starts = torch.rand(num_rows, generator=generator) < often
        found.append(encoder.step(torch.randn(num_rows, 3, generator=generator), None, starts))
    return torch.stack(found, 1)


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("num_rows", [1, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_steps_equal_those_by_products(kind, num_rows):
    encoder = make(**KINDS[kind])
    exact = play(encoder, num_rows)
    encoder.prepare(compiled=True)
    assert torch.allclose(play(encoder, num_rows), exact, atol=2e-5)
    # In lower precision they are as near as products are.
    errors = []
    for compiled in (False, True):
        encoder.prepare(torch.bfloat16, compiled=compiled)
        errors.append(relative_error(play(encoder, num_rows), exact))
    assert 2**-12 < errors[1] < 1.5 * errors[0]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_memory_survives_a_change_between_kernel_and_products(dtype):
    encoder = make()
    encoder.prepare(dtype)
    exact = play(encoder, 5)
    for first in (True, False):
        encoder.prepare(dtype, compiled=first)
        found = play(encoder, 5, switch={"dtype": dtype, "compiled": not first})
        groups = encoder.memory_state_dict()["entries"].shape[3]
        assert groups == (1 if dtype is not None and first else 2)
        assert relative_error(found, exact) < (1e-5 if dtype is None else 2**-5)


def test_a_kernel_sees_no_slot_beyond_the_age_of_a_row():
    kernel = attention_kernel(2, 4, torch.float32, torch.device("cpu"))
    q, age = torch.randn(3, 2, 4), torch.tensor([0, 6, 3])
    keys, values = torch.randn(2, 3, 2, 20, 4)
    found = kernel(q, keys, values, age, 7)
    for row in range(3):
        seen = slice(0, int(age[row]) + 1)
        expected = F.scaled_dot_product_attention(
            q[row].unsqueeze(1), keys[row, :, seen], values[row, :, seen], scale=1.0
        )
        assert torch.allclose(found[row], expected.squeeze(1), atol=1e-6)


def test_lengths_numbers_of_rows_and_changed_weights_compile_nothing_anew():
    attention_kernel.cache_clear()
    torch.compiler.reset()
    encoder = make(context_length=40)
    before = counters["stats"]["unique_graphs"]
    for num_rows in (300, 1, 7, 64, 301):
        encoder.prepare(compiled=True)
        play(encoder, num_rows, num_steps=70)
    # Part of a cache and all of it, its first rows and later ones, and a single row may be told apart.
    assert 1 <= counters["stats"]["unique_graphs"] - before <= 4


def test_neighbours_of_about_the_same_age_are_read_at_once():
    assert _alike(torch.full((70,), 9)) == [70]
    assert _alike(torch.full((600,), 9)) == [256, 256, 88]
    assert _alike(torch.tensor([10, 35, 40, 42, 80]).repeat_interleave(32)) == [32, 96, 32]
    # What was joined is read up to its oldest row, whichever that is.
    assert _alike(torch.tensor([40, 42, 25]).repeat_interleave(32)) == [64, 32]
    ages = torch.randint(0, 200, (500,), generator=torch.Generator().manual_seed(0)).sort().values
    sizes = _alike(ages)
    assert sum(sizes) == 500
    assert len(sizes) < 16
    read = sum(size * int(part.max()) for size, part in zip(sizes, ages.split(sizes), strict=True))
    needed = sum(len(part) * int(part.max()) for part in ages.split(32))
    assert 0.875 * read <= needed < read


def test_what_cannot_be_compiled_is_told_before_anything_acts(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("no compiler found\nmore of it")

    monkeypatch.setattr(torch, "compile", lambda function, **kwargs: refuse)
    attention_kernel.cache_clear()
    encoder = make()
    with pytest.raises(
        ValueError, match=r"compile_policy must be false without .*g\+\+.*'no compiler found'"
    ):
        encoder.prepare(compiled=True)
    assert encoder._prepared is None
    encoder.prepare()
    attention_kernel.cache_clear()
