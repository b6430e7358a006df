"""What may be seen, against a plain loop; attention, against the formula."""

import math
from itertools import pairwise

import pytest
import torch
from yamame.execution.capturing import recording
from yamame.trajectory import attention
from yamame.trajectory.attention import dot_product, sequence_attention, visibility


@pytest.mark.parametrize(("window", "sinks"), [(None, 0), (1, 0), (4, 0), (3, 2), (2, 5), (30, 1)])
@pytest.mark.parametrize("chance", [0.0, 0.2])
def test_visibility_agrees_with_a_plain_loop(window: int | None, sinks: int, chance: float) -> None:
    torch.manual_seed(0)
    starts = torch.rand(3, 14) < chance
    starts[:, 0] = True
    found = visibility(starts, window=window, sinks=sinks, divided=chance > 0)
    for b in range(3):
        start = 0
        for i in range(14):
            start = i if starts[b, i] else start
            for j in range(14):
                recent = window is None or i - j < window or start <= j < start + sinks
                expected = start <= j <= i and recent
                assert bool(found[min(b, found.shape[0] - 1), 0, i, j]) == expected, (b, i, j)


def mask_of(attend) -> torch.Tensor | None:
    return attend.keywords["mask"]


def test_a_plain_causal_pattern_needs_no_mask() -> None:
    starts = torch.zeros(2, 6).bool()
    starts[:, 0] = True
    assert mask_of(sequence_attention(starts, window=None, sinks=0)) is None
    assert mask_of(sequence_attention(starts, window=4, sinks=2)) is None
    assert mask_of(sequence_attention(starts, window=5, sinks=0)).shape == (1, 1, 6, 6)
    starts[1, 3] = True
    assert mask_of(sequence_attention(starts, window=None, sinks=0)).shape == (2, 1, 6, 6)


@pytest.mark.parametrize("queries", [1, 14])
def test_where_the_number_of_segments_is_known_nothing_is_read_back_and_no_mask_is_made_for_nothing(
    monkeypatch, nothing_read_back, queries
):
    torch.manual_seed(0)
    monkeypatch.setattr(attention, "_FEWEST_QUERIES", queries)
    monkeypatch.setattr(attention, "_LARGEST_MASK", 0)
    masks, starts = [], torch.zeros(2, 14).bool()
    starts[:, 0] = True
    q, k, v = torch.randn(3, 2, 4, 14, 3)

    def noted(*args, mask):
        masks.append(mask)
        return dot_product(*args, mask=mask)

    monkeypatch.setattr(attention, "dot_product", noted)
    for inner in (False, True):
        starts[1, 5] = inner
        expected = sequence_attention(starts, window=None, sinks=0)(q, k, v)
        masks.clear()
        with recording(), nothing_read_back():
            found = sequence_attention(starts, window=None, sinks=0, num_segments=2 + inner)(
                q, k, v
            )
        assert torch.allclose(found, expected, atol=1e-6)
        assert (masks[0] is None) == (not inner)
    with recording():  # what is not known may be so
        sequence_attention(starts, window=None, sinks=0)(q, k, v)
    assert masks[-1] is not None
    with pytest.raises(AssertionError, match="in what is recorded"), nothing_read_back():
        sequence_attention(starts, window=None, sinks=0)


@pytest.mark.parametrize("inner_start", [False, True])
def test_attention_is_the_formula(inner_start: bool) -> None:
    torch.manual_seed(0)
    starts = torch.zeros(2, 5).bool()
    starts[:, 0] = True
    starts[1, 3] = inner_start
    q, k, v = torch.randn(3, 2, 4, 5, 3)
    found = sequence_attention(starts, window=None, sinks=0)(q, k, v)
    for b in range(2):
        for i in range(5):
            first = 3 if inner_start and b == 1 and i >= 3 else 0
            for h in range(4):
                scores = torch.stack(
                    [q[b, h, i] @ k[b, h, j] / math.sqrt(3) for j in range(first, i + 1)]
                )
                expected = scores.softmax(0) @ v[b, h, first : i + 1]
                assert torch.allclose(found[b, h, i], expected, atol=1e-6)


@pytest.mark.parametrize(("window", "sinks"), [(None, 0), (1, 0), (4, 0), (3, 2), (30, 1)])
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 14])
def test_masks_made_piece_by_piece_change_nothing(
    monkeypatch: pytest.MonkeyPatch, window: int | None, sinks: int, divided: bool, rows: int
) -> None:
    torch.manual_seed(0)
    starts = torch.zeros(2, 14).bool()
    starts[:, 0] = True
    starts[1, 6] = starts[0, 11] = divided
    q, k, v = inputs = torch.randn(3, 2, 4, 14, 3, dtype=torch.float64).requires_grad_()
    results = []
    for fewest, largest in ((14, 10**6), (rows, 1)):
        monkeypatch.setattr(attention, "_FEWEST_QUERIES", fewest)
        monkeypatch.setattr(attention, "_LARGEST_MASK", largest)
        found = sequence_attention(starts, window=window, sinks=sinks)(q, k, v)
        results.append((found, *torch.autograd.grad(found.pow(3).sum(), inputs, retain_graph=True)))
    for whole, parts in zip(*results, strict=True):
        assert torch.allclose(whole, parts, atol=1e-12)


@pytest.mark.parametrize(("fewest", "largest", "batch"), [(4, 1, 1), (1, 4 * 3 * 64, 3)])
def test_no_mask_grows_with_the_square_of_the_length(
    monkeypatch: pytest.MonkeyPatch, fewest: int, largest: int, batch: int
) -> None:
    monkeypatch.setattr(attention, "_FEWEST_QUERIES", fewest)
    monkeypatch.setattr(attention, "_LARGEST_MASK", largest)
    made = []

    def noted(*args: object, **kwargs: object) -> torch.Tensor:
        mask = visibility(*args, **kwargs)
        made.append(mask.numel())
        return mask

    monkeypatch.setattr(attention, "visibility", noted)
    for length in (32, 64):
        starts = torch.zeros(batch, length).bool()
        starts[:, [0, 5]] = True
        q, k, v = torch.randn(3, batch, 2, length, 3, requires_grad=True)
        made.clear()
        sequence_attention(starts, window=None, sinks=0)(q, k, v).sum().backward()
        queries = max(fewest, largest // (length * batch))
        assert max(made) == batch * queries * length
        assert len(made) == 2 * length / queries  # forward and again backward


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_may_be_given_as_numbers_in_every_precision(dtype) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 5, 4).to(dtype)
    visible = torch.rand(2, 1, 5, 5) < 0.5
    visible[..., 0] = True
    bias = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf)
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            expected = dot_product(q, k, v, mask=visible)
            assert torch.equal(dot_product(q, k, v, mask=bias), expected)
            assert not torch.equal(dot_product(q, k, v, mask=torch.zeros_like(bias)), expected)


def test_autocast_on_a_cpu_keeps_attention_in_float32() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    exact = dot_product(q, k, v, mask=None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(dot_product(q, k, v, mask=None), exact)
        reduced = dot_product(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask=None)
    assert reduced.dtype == torch.float32


def by_definition(q, k, v, starts_q, starts_k, longest_q, longest_k, *, window_size):
    """Attention for sequences of different lengths, one after the other, as PyTorch defines it."""
    assert torch.equal(starts_q, starts_k)
    assert starts_q.dtype == torch.int32
    latest, ahead = window_size
    assert ahead == 0
    bounds, parts = starts_q.tolist(), []
    assert max(last - first for first, last in pairwise(bounds)) <= longest_q
    for first, last in pairwise(bounds):
        keys, values = (x[first:last].transpose(0, 1) for x in (k, v))
        age = torch.arange(last - first).unsqueeze(1) - torch.arange(last - first)
        seen = (age >= 0) & ((age <= latest) | (latest < 0))
        scores = q[first:last].transpose(0, 1) @ keys.mT / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        parts.append((weights @ values).transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("window", [None, 2, 4])
@pytest.mark.parametrize("spare", [0, 3])
def test_attention_within_segments_is_that_with_a_mask(monkeypatch, window, spare):
    torch.manual_seed(0)
    starts = torch.rand(3, 14) < 0.2
    starts[:, 0] = True
    number = int(starts.sum())
    qkv = torch.randn(3, 14, 3, 4, 8, dtype=torch.float64).requires_grad_()
    calls, results = [], []

    def kernel(*arguments, **options):
        calls.append(arguments)
        return by_definition(*arguments, **options)

    def attend(starts, sinks=0):
        inputs = qkv.permute(2, 0, 3, 1, 4).unbind()
        found = sequence_attention(starts, window=window, sinks=sinks, num_segments=number + spare)
        return found(*inputs)

    for present in (False, True):
        if present:
            monkeypatch.setattr(attention, "_segment_kernel", lambda device: kernel)
            monkeypatch.setattr(attention, "_is_supported", lambda q: True)
        out = attend(starts)
        results.append((out, *torch.autograd.grad(out.pow(3).sum(), qkv)))
    assert len(calls) == 1
    torch.testing.assert_close(*results)
    other = starts.clone()
    other[1, 7] = ~other[1, 7]
    number += 1
    assert not torch.allclose(attend(other), results[0][0], atol=1e-3)
    if window is not None:  # which the kernel has no sinks for
        calls.clear()
        attend(starts, sinks=2)
        assert calls == []


def test_dtypes_that_the_kernel_for_segments_does_not_take_get_a_mask(monkeypatch):
    starts = torch.zeros(2, 6).bool()
    starts[:, 0] = starts[1, 3] = True
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    expected = sequence_attention(starts, window=None, sinks=0)(q, k, v)
    monkeypatch.setattr(attention, "_segment_kernel", lambda device: by_definition)
    attend = sequence_attention(starts, window=None, sinks=0, num_segments=3)
    assert torch.equal(attend(q, k, v), expected)
    lower = attend(*(x.bfloat16() for x in (q, k, v)))
    assert lower.dtype == torch.bfloat16
    torch.testing.assert_close(lower.float(), expected, rtol=0.02, atol=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 5])
def test_on_a_gpu_attention_within_segments_is_that_with_a_mask(monkeypatch, window):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    torch.manual_seed(0)
    starts = (torch.rand(3, 200) < 0.05).cuda()
    starts[:, 0] = True
    number, results = int(starts.sum()), []
    if attention._segment_kernel(starts.device) is None:
        pytest.skip("no kernel for segments")
    for present in (True, False):
        if not present:
            monkeypatch.setattr(attention, "_segment_kernel", lambda device: None)
        qkv = torch.randn(3, 200, 3, 4, 32, generator=torch.Generator().manual_seed(1))
        qkv = qkv.cuda().bfloat16().requires_grad_()
        attend = sequence_attention(starts, window=window, sinks=0, num_segments=number + 2)
        out = attend(*qkv.permute(2, 0, 3, 1, 4).unbind())
        results.append((out, *torch.autograd.grad(out.float().pow(2).sum(), qkv)))
    torch.testing.assert_close(*results, rtol=0.05, atol=0.05)
