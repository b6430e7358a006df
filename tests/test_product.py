"""Prepared products are those of the library, laid out or not."""

import pytest
import torch
from yamame import product
from yamame.product import Product

needs_bfloat16 = pytest.mark.skipif(
    not product._multiplies_bfloat16(), reason="this CPU does not multiply bfloat16"
)


def given(rows: int, *, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, 24, dtype=dtype), torch.randn(24, 40), torch.randn(40)


@pytest.mark.parametrize("rows", [1, 3, 16, 300])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_product_is_the_product_in_its_dtype(rows, with_bias, dtype):
    x, weight, bias = given(rows, dtype=dtype)
    found = Product(weight, bias if with_bias else None, dtype)(x)
    expected = x @ weight.to(dtype) if not with_bias else torch.addmm(bias.to(dtype), x, weight.to(dtype))
    assert found.dtype is dtype
    torch.testing.assert_close(found, expected)


@needs_bfloat16
@pytest.mark.parametrize("transposed", [True, False])
def test_laying_a_weight_out_changes_no_number(monkeypatch, transposed):
    x, weight, bias = given(33, dtype=torch.bfloat16)
    if transposed:
        weight = weight.t().contiguous().t()
    laid_out = Product(weight, bias, torch.bfloat16)
    monkeypatch.setattr(product, "_multiplies_bfloat16", lambda: False)
    plain = Product(weight, bias, torch.bfloat16)
    assert laid_out._laid_out
    assert not plain._laid_out
    assert torch.equal(laid_out(x), plain(x))


def test_a_product_keeps_its_weights_when_the_layer_learns_on():
    x, weight, bias = given(4, dtype=torch.bfloat16)
    made = Product(weight.requires_grad_(), bias, torch.bfloat16)
    before = made(x)
    weight.data.zero_()
    assert torch.equal(made(x), before)
    assert not before.requires_grad


@pytest.fixture
def multiply(compiler):
    found = product._compiled()
    if found is None:
        pytest.skip("this processor lacks the instruction")
    return found


def rounded(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The exact product of rounded numbers, rounded once."""
    weight, bias = weight.bfloat16().double(), torch.zeros(1) if bias is None else bias.bfloat16()
    return (x.double() @ weight + bias.double()).bfloat16()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 63, 64])
@pytest.mark.parametrize("sizes", [(2, 1), (24, 40), (6, 16), (128, 31), (256, 48)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_few_rows_are_multiplied_in_c(rows, sizes, with_bias, multiply):
    torch.manual_seed(1)
    x, weight = torch.randn(rows, sizes[0]).bfloat16(), torch.randn(sizes)
    bias = torch.randn(sizes[1]) if with_bias else None
    made = Product(weight, bias, torch.bfloat16, compiled=True)
    assert made._few is not None
    found, expected = made(x), rounded(x, weight, bias)
    # Sums in float32 may fall on the other side of a border of bfloat16, never beyond.
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-5)
    assert (found == expected).double().mean() > 0.98


def test_small_integers_are_multiplied_exactly(multiply):
    torch.manual_seed(2)
    x, weight = torch.randint(-3, 4, (9, 10)).bfloat16(), torch.randint(-3, 4, (10, 37)).float()
    bias = torch.arange(37.0)
    assert torch.equal(Product(weight, bias, torch.bfloat16, compiled=True)(x), rounded(x, weight, bias))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_may_lie_apart_and_threads_share_columns(threads, multiply):
    torch.manual_seed(3)
    wide, weight, before = torch.randn(12, 60).bfloat16(), torch.randn(20, 100), torch.get_num_threads()
    made = Product(weight, None, torch.bfloat16, compiled=True)
    apart, turned = wide[:, 7:27], wide[:, 7:27].t().contiguous().t()
    expected = made(apart.contiguous())
    torch.set_num_threads(threads)
    try:
        assert torch.equal(made(apart), expected)
        assert torch.equal(made(turned), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("rows", "inner", "dtype"),
    [(65, 24, torch.bfloat16), (4, 23, torch.bfloat16), (4, 24, torch.float32)],
    ids=["many rows", "an odd row", "float32"],
)
def test_everything_else_is_multiplied_by_the_library(rows, inner, dtype, compiler):
    torch.manual_seed(4)
    x, weight, bias = torch.randn(rows, inner).to(dtype), torch.randn(inner, 40), torch.randn(40)
    found, library = Product(weight, bias, dtype, compiled=True), Product(weight, bias, dtype)
    if found._few is not None:
        found._few._multiply = pytest.fail
    assert library._few is None
    assert torch.equal(found(x), library(x))


def test_a_processor_without_the_instruction_uses_the_library(monkeypatch):
    monkeypatch.setattr(product, "_compiled", lambda: None)
    x, weight, bias = given(4, dtype=torch.bfloat16)
    assert torch.equal(
        Product(weight, bias, torch.bfloat16, compiled=True)(x), Product(weight, bias, torch.bfloat16)(x)
    )


def test_a_missing_compiler_is_told(monkeypatch):
    monkeypatch.setenv("CC", "/nowhere/compiler")
    product._compiled.cache_clear()
    try:
        with pytest.raises(ValueError, match="compile_policy must be false without a C compiler"):
            Product(torch.ones(2, 3), None, torch.bfloat16, compiled=True)
    finally:
        product._compiled.cache_clear()
