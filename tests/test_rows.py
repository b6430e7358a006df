"""Blocks of rows give what one piece gives, and are small where they are used."""

import pytest
import torch
from torch import nn
from yamame.rows import in_row_blocks


@pytest.mark.parametrize("num_rows", [0, 1, 4, 5, 8, 9, 23])
def test_results_and_gradients_are_those_of_one_piece(num_rows: int) -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(3, 7), nn.LeakyReLU(inplace=True), nn.Linear(7, 2)).double()
    x = torch.randn(num_rows, 3, dtype=torch.float64, requires_grad=True)
    inputs = (x, *layer.parameters())
    whole, parts = layer(x), in_row_blocks(layer, x, rows_per_thread=4)
    assert torch.allclose(parts, whole, rtol=1e-13)
    weight = torch.randn_like(whole)
    expected = torch.autograd.grad((weight * whole).sum(), inputs)
    for found, gradient in zip(torch.autograd.grad((weight * parts).sum(), inputs), expected, strict=True):
        assert torch.allclose(found, gradient, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("num_rows", "sizes"), [(32, [32]), (33, [24, 9]), (70, [24, 24, 22]), (64, [32, 32])]
)
def test_blocks_are_few_about_equal_and_even(num_rows: int, sizes: list[int]) -> None:
    seen = []

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return x + y

    x = torch.arange(num_rows)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(in_row_blocks(function, x, x, rows_per_thread=64, rows_per_input=2), 2 * x)
        assert seen == sizes
        torch.set_num_threads(2)
        seen.clear()
        in_row_blocks(function, x, x, rows_per_thread=64, rows_per_input=2)
        assert max(seen) > max(sizes) or len(sizes) == 1
    finally:
        torch.set_num_threads(threads)
