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
