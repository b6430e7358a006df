"""Attention compiled for acting finds what products find."""

import os
from pathlib import Path

import pytest
import torch
from yamame.trajectory import TransformerEncoder
from yamame.trajectory.attention_kernel import AttentionKernel, attention_kernel

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
@pytest.mark.parametrize("first", [True, False])
def test_a_memory_survives_a_change_between_kernel_and_products(dtype, first):
    encoder, num_rows = make(), 70
    encoder.prepare(dtype)
    exact = play(encoder, num_rows)
    # Products move rows of about the same age together; a kernel wants them where they act.
    assert not torch.equal(encoder.memory_state_dict()["place"], torch.arange(num_rows))
    encoder.prepare(dtype, compiled=first)
    found = play(encoder, num_rows, switch={"dtype": dtype, "compiled": not first})
    memory = encoder.memory_state_dict()
    assert memory["entries"].shape[3] == (1 if dtype is not None or not first else 2)
    assert set(memory) == {"age", "entries"} | ({"place", "waste"} if first else set())
    assert relative_error(found, exact) < (1e-5 if dtype is None else 2**-5)


def stored_and_found(q, kv, cache, slot, last) -> tuple[torch.Tensor, torch.Tensor]:
    """What `AttentionKernel` is to do, row by row in float64: the cache afterwards, and what the queries find."""
    cache, found = cache.clone(), []
    for row, (to, end) in enumerate(zip(slot.tolist(), last.tolist(), strict=True)):
        cache[:, row, to] = kv[:, row].flatten(1)
        keys, values = cache[:, row, : end + 1].double().unflatten(-1, q.shape[1:]).transpose(1, 2)
        weights = (keys @ q[row].double().unsqueeze(-1)).softmax(1)
        found.append((weights * values).sum(1))
    return cache, torch.stack(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_heads", "head_size"), [(2, 4), (1, 1), (3, 5), (4, 24), (8, 32), (1, 48)])
def test_a_row_stores_its_entries_and_reads_up_to_its_last_slot(num_heads, head_size, dtype):
    generator = torch.Generator().manual_seed(0)
    width, (slot, last) = num_heads * head_size, torch.tensor([[0, 4, 2, 69, 9], [0, 6, 2, 69, 0]])
    qkv = torch.randn(5, 3, num_heads, head_size, generator=generator).to(dtype)
    cache = torch.randn(2, 5, 70, width, generator=generator).to(dtype)
    q, kv = qkv[:, 0], qkv[:, 1:].transpose(0, 1)
    stored, expected = stored_and_found(q, kv, cache, slot, last)
    kernel = attention_kernel(num_heads, head_size, dtype)
    found = kernel(q, kv, cache, slot, last)
    assert torch.equal(cache, stored)
    assert found.dtype == dtype
    # However they lie in memory.
    turned = (x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, kv))
    assert torch.equal(kernel(*turned, cache, slot, last), found)
    if dtype is torch.float32:
        assert torch.allclose(found.double(), expected, atol=1e-6)
    else:  # one rounding, to the nearest
        assert torch.allclose(found.double(), expected, rtol=2**-8 * 1.001, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 3.0, 30.0, 1000.0])
def test_weights_are_exact_however_far_scores_lie_apart(scale):
    generator = torch.Generator().manual_seed(0)
    q, slot = torch.full((1, 1, 1), scale), torch.tensor([499])
    cache = torch.randn(2, 1, 500, 1, generator=generator)
    kv = torch.randn(2, 1, 1, 1, generator=generator)
    _, expected = stored_and_found(q, kv, cache, slot, slot)
    found = attention_kernel(1, 1, torch.float32)(q, kv, cache, slot, slot)
    # Scores are rounded to float32 before their differences are taken.
    assert float(found) == pytest.approx(float(expected), rel=1e-6 + 1e-6 * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_number_stays_none_and_stays_in_its_row(dtype):
    q, cache = torch.ones(3, 2, 4, dtype=dtype), torch.zeros(2, 3, 8, 8, dtype=dtype)
    cache[0, 0, 5] = cache[1, 1, 2] = cache[:, 2, 7] = torch.nan
    last = torch.full((3,), 6)
    found = attention_kernel(2, 4, dtype)(q, torch.ones(2, 3, 2, 4, dtype=dtype), cache, last, last)
    assert found.isnan().flatten(1).all(1).tolist() == [True, True, False]
    assert not found[2].isnan().any()


def test_threads_change_nothing():
    generator = torch.Generator().manual_seed(0)
    q, kv = torch.randn(999, 2, 8, generator=generator), torch.randn(2, 999, 2, 8, generator=generator)
    cache, slot = torch.randn(2, 999, 400, 16, generator=generator), torch.arange(999) % 400
    kernel, threads = attention_kernel(2, 8, torch.float32), torch.get_num_threads()
    found = []
    try:
        for number in (1, 3, 64):
            torch.set_num_threads(number)
            found.append(kernel(q, kv, cache, slot, slot))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_heads_of_one_size_are_compiled_once():
    assert attention_kernel(2, 4, torch.float32) is attention_kernel(2, 4, torch.float32)
    assert attention_kernel(2, 4, torch.float32) is not attention_kernel(2, 4, torch.bfloat16)


def script(folder: Path, text: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_without_openmp_will_do(monkeypatch, tmp_path):
    refuse = 'case "$*" in *-fopenmp*) echo "no OpenMP" >&2; exit 1;; esac'
    monkeypatch.setenv("CC", script(tmp_path, f'{refuse}\nexec {os.environ.get("CC", "cc")} "$@"'))
    q, kv, cache = torch.ones(1, 2, 4), torch.ones(2, 1, 2, 4), torch.zeros(2, 1, 3, 8)
    slot = torch.zeros(1, dtype=torch.int64)
    assert torch.equal(AttentionKernel(2, 4, torch.float32)(q, kv, cache, slot, slot), torch.ones(1, 2, 4))


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/nowhere/compiler", "No such file"),
        ("echo no licence >&2; exit 1", "no licence"),
        ("exit 0", "attention_kernel.so"),
    ],
)
def test_what_cannot_be_compiled_is_told_before_anything_acts(compiler, reason, monkeypatch, tmp_path):
    named = compiler if compiler.startswith("/") else script(tmp_path, compiler)
    monkeypatch.setenv("CC", named)
    attention_kernel.cache_clear()
    encoder = make()
    with pytest.raises(ValueError, match=f"compile_policy must be false without a C compiler.*{reason}"):
        encoder.prepare(compiled=True)
    assert encoder._prepared is None


@pytest.mark.parametrize(
    ("where", "got"), [({"dtype": torch.float64}, "float64"), ({"device": "meta"}, "meta")]
)
def test_other_dtypes_and_devices_are_refused(where, got):
    with pytest.raises(ValueError, match=f"compile_policy must be false.*{got}"):
        make().to(**where).prepare(compiled=True)
