"""Positions from ``step_index``: the formula, the table behind it, and rotation."""

import math

import pytest
import torch
from yamame.trajectory.positions import Sinusoids, rotate


def test_sinusoids_agree_with_the_formula_at_any_index() -> None:
    sinusoids = Sinusoids(6)
    for index in (0, 1, 255, 256, 16_383, 16_384, 100_000, 10_000_000):
        found = sinusoids(torch.tensor([[index]]))
        assert found.shape == (1, 1, 6)
        assert found.dtype == torch.float32
        for i in range(3):
            angle = index / 10_000 ** (2 * i / 6)
            # float32 rounding of a value of at most one; the angle itself carries no error that shows.
            assert found[0, 0, 2 * i].item() == pytest.approx(math.sin(angle), abs=2e-7)
            assert found[0, 0, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=2e-7)


def test_rotation_keeps_lengths_and_makes_products_depend_on_the_distance_only() -> None:
    torch.manual_seed(0)
    sinusoids = Sinusoids(8)
    q, k = torch.randn(8), torch.randn(8)

    def product(i: int, j: int) -> float:
        at = sinusoids(torch.tensor([i, j]))
        return float(rotate(q, at[0]) @ rotate(k, at[1]))

    turned = rotate(q, sinusoids(torch.tensor(5)))
    assert turned.norm().item() == pytest.approx(q.norm().item(), rel=1e-6)
    assert product(0, 0) == pytest.approx(float(q @ k), rel=1e-5)
    assert product(9, 4) == pytest.approx(product(105, 100), abs=1e-5)
    assert abs(product(9, 4) - product(9, 5)) > 1e-3


def test_rotation_turns_pairs_half_a_head_apart() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    at = Sinusoids(4)(torch.tensor(3))
    expected = []
    for i in range(2):
        angle = 3 / 10_000 ** (2 * i / 4)
        expected.append((x[i] * math.cos(angle) - x[i + 2] * math.sin(angle)).item())
    for i in range(2):
        angle = 3 / 10_000 ** (2 * i / 4)
        expected.append((x[i + 2] * math.cos(angle) + x[i] * math.sin(angle)).item())
    assert rotate(x, at).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("size", [0, 3])
def test_the_size_must_be_even(size: int) -> None:
    with pytest.raises(ValueError, match=f"Sinusoids: size must be even and positive, got {size}"):
        Sinusoids(size)
