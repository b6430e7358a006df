"""Attention compiled for sequences computes what the formula says, forward and backward."""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from torch.nn import functional as F
from torchrl.modules import set_recurrent_mode
from yamame.trajectory import TransformerEncoder
from yamame.trajectory.attention import sequence_attention
from yamame.trajectory.attention_maps import attention_maps
from yamame.trajectory.causal_kernel import causal_attention, causal_kernel

pytestmark = pytest.mark.usefixtures("compiler")

BLOCK, PANEL = 64, 48


def starting(batch: int, length: int, chance: float) -> torch.Tensor:
    starts = torch.rand(batch, length) < chance
    starts[:, 0] = True
    return starts


def exact(q, k, v, starts, window):
    """In float64, by a mask that a loop over the keys' distances would give."""
    column = torch.arange(starts.shape[1])
    behind, segment = column.unsqueeze(1) - column, starts.cumsum(1)
    seen = (behind >= 0) & (segment.unsqueeze(1) == segment.unsqueeze(2))
    if window is not None:
        seen &= behind < window
    return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=seen.unsqueeze(1))


def gradients(attend, inputs, weights):
    found = attend(*inputs)
    return [found, *torch.autograd.grad((found * weights).sum(), inputs)]


def assert_alike(found, expected, tolerance=1e-5):
    for mine, theirs in zip(found, expected, strict=True):
        mine, theirs = mine.detach().double(), theirs.detach().double()
        assert (mine - theirs).abs().max() <= tolerance * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("size", [1, 5, 8, 16, 24, 32, 48, 64])
@pytest.mark.parametrize("length", [1, 7, PANEL, PANEL + 1, BLOCK, BLOCK + 8, 3 * BLOCK - 5])
def test_values_and_gradients_are_those_of_the_formula(length, size):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, length, size, requires_grad=True) for _ in range(3)]
    weights, starts = torch.randn(2, 3, length, size), starting(2, length, 0.0)
    expected = gradients(lambda *qkv: exact(*qkv, starts, None), inputs, weights)
    found = gradients(sequence_attention(starts, window=None, sinks=0, compiled=True), inputs, weights)
    assert_alike(found, expected)


@pytest.mark.parametrize("window", [None, 1, 3, 20, 60, 1000])
@pytest.mark.parametrize("chance", [0.0, 0.02, 0.3, 1.0])
def test_starts_and_windows_hide_what_lies_before(window, chance):
    torch.manual_seed(0)
    inputs = [torch.randn(3, 2, 201, 16, requires_grad=True) for _ in range(3)]
    weights, starts = torch.randn(3, 2, 201, 16), starting(3, 201, chance)
    expected = gradients(lambda *qkv: exact(*qkv, starts, window), inputs, weights)
    found = gradients(sequence_attention(starts, window=window, sinks=0, compiled=True), inputs, weights)
    assert_alike(found, expected)


@pytest.mark.parametrize("chance", [0.0, 0.2])
def test_large_scores_neither_overflow_nor_vanish(chance):
    torch.manual_seed(0)
    inputs = [(50 * torch.randn(2, 2, 70, 16)).requires_grad_() for _ in range(3)]
    weights, starts = torch.randn(2, 2, 70, 16), starting(2, 70, chance)
    expected = gradients(lambda *qkv: exact(*qkv, starts, None), inputs, weights)
    found = gradients(sequence_attention(starts, window=None, sinks=0, compiled=True), inputs, weights)
    assert_alike(found, expected, tolerance=1e-2)  # a score of thousands has no more digits in float32


@pytest.mark.parametrize("length", [1, 30, 75])
def test_what_memory_held_before_enters_nothing(monkeypatch, length):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 2, length, 16, requires_grad=True) for _ in range(3)]
    weights, starts = torch.randn(2, 2, length, 16), starting(2, length, 0.1)
    attend = sequence_attention(starts, window=None, sinks=0, compiled=True)
    expected = gradients(attend, inputs, weights)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda x, *shape: x.new_full(shape, torch.nan))
    for mine, theirs in zip(gradients(attend, inputs, weights), expected, strict=True):
        assert torch.equal(mine, theirs)


def test_what_is_no_number_stays_none():
    q, k, v = (torch.randn(1, 1, 5, 16) for _ in range(3))
    k[0, 0, 2, 3] = torch.nan
    found = causal_attention(q, k, v, torch.zeros(1, 5, dtype=torch.int32))
    assert found[0, 0].isnan().any(-1).tolist() == [False, False, True, True, True]


@pytest.mark.parametrize("layout", ["chunks", "heads first", "last dimension apart"])
def test_any_layout_of_the_inputs_gives_the_same(layout):
    torch.manual_seed(0)
    joined, oldest = torch.randn(2, 30, 3 * 4 * 8), torch.zeros(2, 30, dtype=torch.int32)
    chunks = [part.unflatten(-1, (4, 8)).transpose(1, 2) for part in joined.chunk(3, -1)]
    expected = causal_attention(*(part.contiguous() for part in chunks), oldest)
    given = {
        "chunks": chunks,
        "heads first": [chunks[0].contiguous(), *chunks[1:]],
        "last dimension apart": [part.transpose(-1, -2).contiguous().transpose(-1, -2) for part in chunks],
    }
    assert torch.equal(causal_attention(*given[layout], oldest), expected)


def test_the_oldest_timesteps_may_lie_anyhow():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 1, 6, 8)
    oldest = torch.tensor([[0, 0], [0, 1], [0, 2], [3, 2], [3, 3], [5, 4]], dtype=torch.int32).t()
    expected = causal_attention(q, k, v, oldest.contiguous())
    assert torch.equal(causal_attention(q, k, v, oldest), expected)
    assert torch.equal(causal_attention(q, k, v, oldest.long()), expected)


def test_threads_change_nothing():
    torch.manual_seed(0)
    inputs = [torch.randn(8, 8, 200, 16, requires_grad=True) for _ in range(3)]
    weights, starts, before = torch.randn(8, 8, 200, 16), starting(8, 200, 0.01), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            attend = sequence_attention(starts, window=None, sinks=0, compiled=True)
            results.append(gradients(attend, inputs, weights))
    finally:
        torch.set_num_threads(before)
    for one, several in zip(*results, strict=True):
        assert torch.equal(one, several)


def test_gradients_of_gradients_are_refused():
    q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3))
    found = causal_attention(q, k, v, torch.zeros(1, 5, dtype=torch.int32))
    grad = torch.autograd.grad(found.square().sum(), q, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def encoders(**options):
    torch.manual_seed(0)
    plain = TransformerEncoder(6, d_model=32, num_heads=4, num_layers=2, dropout=0.0, **options)
    fast = TransformerEncoder(6, d_model=32, num_heads=4, num_layers=2, dropout=0.0, compiled=True, **options)
    fast.load_state_dict(plain.state_dict())
    return plain, fast


def sequences(batch=3, length=50):
    torch.manual_seed(1)
    starts = starting(batch, length, 0.06)
    return TensorDict(
        {"features": torch.randn(batch, length, 6), "is_init": starts.unsqueeze(-1)}, [batch, length]
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 9}, {"positions": "rotary"}, {"checkpoint_layers": True}, {"sigma_reparam": True}],
    ids=str,
)
def test_an_encoder_learns_and_acts_as_without(options):
    results = []
    for encoder in encoders(**options):
        with set_recurrent_mode(True):
            context = encoder(sequences())["context"]
        context.pow(2)[..., ::3].sum().backward()
        with torch.no_grad():
            acting = [encoder(row)["context"] for row in sequences(length=12).unbind(1)]
        results.append([context, *(p.grad for p in encoder.parameters()), torch.stack(acting)])
    assert_alike(*reversed(results), tolerance=1e-4)
    assert not torch.equal(results[0][0], results[1][0])  # it was computed in another way


def test_under_autocast_attention_is_in_float32_as_without():
    results = []
    for encoder in encoders():
        with set_recurrent_mode(True), torch.autocast("cpu", torch.bfloat16):
            results.append([encoder(sequences())["context"]])
    assert_alike(*results, tolerance=0.02)


def test_a_compiled_encoder_can_be_copied_and_pickled():
    _, encoder = encoders()
    with set_recurrent_mode(True):
        expected = encoder(sequences())["context"]
        for other in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
            assert torch.equal(other(sequences())["context"], expected)


def test_attention_maps_are_those_of_the_uncompiled_encoder():
    plain, fast = encoders()
    torch.testing.assert_close(attention_maps(fast, sequences()), attention_maps(plain, sequences()))
    assert fast.compiled


def test_what_cannot_be_compiled_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="compiled must be false with sinks, got true and 2 sinks"):
        TransformerEncoder(3, window=4, sinks=2, compiled=True)
    encoder = TransformerEncoder(6, d_model=32, num_heads=4, compiled=True).double()
    with (
        set_recurrent_mode(True),
        pytest.raises(ValueError, match=r"compiled must be false unless .*float64"),
    ):
        encoder(sequences().double())
    causal_kernel.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(
        ValueError,
        match=r"TransformerEncoder: compiled must be false without a C compiler .*no-such-compiler",
    ):
        TransformerEncoder(6, d_model=32, num_heads=4, compiled=True)
