"""Positions from ``step_index``: the formula, the tables behind it, and rotation."""

import copy
import math
import pickle
from contextlib import nullcontext

import pytest
import torch
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchrl.modules import set_recurrent_mode
from yamame.execution.capturing import recording
from yamame.trajectory import TransformerEncoder
from yamame.trajectory.positions import Float32Sinusoids, Sinusoids, rotate


def by_formula(index: torch.Tensor, size: int) -> torch.Tensor:
    angle = index.double().unsqueeze(-1) / 10_000.0 ** (torch.arange(0, size, 2).double() / size)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)


BORDERS = [base + offset for base in (4096, 3 * 4096, 4096**2 // 2) for offset in (-1, 0, 1)]
INDICES = torch.tensor([[0, 1, 255, 100_000, 10_000_000, 4096**2 - 1, *BORDERS]])


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("size", [6, 128])
def test_sinusoids_agree_with_the_formula_at_any_index(size: int, captured: bool) -> None:
    with recording() if captured else nullcontext():
        for index in (INDICES, *INDICES.T):
            found = Sinusoids(size)(index)
            assert found.shape == (*index.shape, size)
            assert found.dtype == torch.float32
            # Captured, two products and a sum of numbers that were rounded to float32: some units
            # of 6e-8.
            expected = by_formula(index, size)
            torch.testing.assert_close(
                found.double(), expected, rtol=0, atol=2.5e-7 if captured else 4e-8
            )
        below = torch.arange(4096)
        assert torch.equal(Sinusoids(size)(below), by_formula(below, size).float())


def test_on_a_cpu_there_is_no_last_index_and_in_a_capture_a_larger_one_is_no_other() -> None:
    index = torch.tensor([4096**2, 10**9])
    torch.testing.assert_close(Sinusoids(8)(index), by_formula(index, 8).float(), rtol=0, atol=1e-6)
    with recording(), pytest.raises(IndexError):
        Sinusoids(8)(index)


def test_a_negative_index_is_no_other_either() -> None:
    for index in (
        torch.tensor([-1]),
        torch.tensor([[-7, 0], [5, -4096]]),
        torch.tensor([-(10**6), 10**6]),
    ):
        torch.testing.assert_close(
            Sinusoids(8)(index), by_formula(index, 8).float(), rtol=0, atol=1e-6
        )
        with recording(), pytest.raises(IndexError):
            Sinusoids(8)(index)
    counted_from_the_end = Sinusoids(8)(torch.tensor([4095]))
    assert (Sinusoids(8)(torch.tensor([-1])) - counted_from_the_end).abs().max() > 0.5


def test_values_do_not_depend_on_other_indices_and_tables_are_not_copied() -> None:
    sinusoids, index = Sinusoids(8), INDICES.flatten()
    together = sinusoids(index)
    assert torch.equal(torch.cat([sinusoids(one) for one in index.split(1)]), together)
    for other in (copy.deepcopy(sinusoids), pickle.loads(pickle.dumps(sinusoids))):
        assert torch.equal(other(index), together)
    assert len(pickle.dumps(sinusoids)) < 2000
    assert not [*sinusoids.buffers(), *sinusoids.state_dict()]


class Dtypes(TorchDispatchMode):
    """Notes the types of all results."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.seen |= {value.dtype for value in tree_leaves(out) if isinstance(value, torch.Tensor)}
        return out


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_nothing_is_computed_in_double_precision(positions: str) -> None:
    encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=1, positions=positions)
    batch = TensorDict(
        {"features": torch.randn(2, 6, 3), "is_init": torch.ones(2, 6, 1).bool()}, [2, 6]
    )
    with set_recurrent_mode(True), recording(), Dtypes() as parallel:
        encoder(batch.copy())
    with Dtypes() as step:
        encoder(batch[:, 0].copy())
    for dtypes in (parallel, step):
        assert torch.float32 in dtypes.seen
        assert torch.float64 not in dtypes.seen


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("first", [0, 4_092, 10**6])
def test_acting_equals_the_parallel_pass_wherever_an_episode_has_got_to(
    positions: str, first: int
) -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(
        3, d_model=8, num_heads=2, num_layers=1, positions=positions
    ).eval()
    is_init, index = (
        torch.zeros(2, 8, 1).bool(),
        torch.arange(first, first + 8).view(1, 8, 1).expand(2, 8, 1),
    )
    is_init[:, 0] = True
    batch = TensorDict(
        {"features": torch.randn(2, 8, 3), "is_init": is_init, "step_index": index.clone()}, [2, 8]
    )
    with set_recurrent_mode(True), torch.no_grad():
        expected = encoder(batch.clone())["context"]
    found = torch.stack([encoder(step.clone())["context"] for step in batch.unbind(1)], 1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


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


def test_positions_in_float32_are_products_in_float32() -> None:
    """Bit for bit, unlike those of `Sinusoids`, from which they part with the index."""
    index = torch.tensor([[0, 3, 999], [5_000, 100_000, 4_000_000]])
    positions = Float32Sinusoids(16)
    found = positions(index)
    angle = index.float().unsqueeze(-1) * positions.frequencies
    assert torch.equal(found[..., 0::2], angle.sin())
    assert torch.equal(found[..., 1::2], angle.cos())
    error = (found - Sinusoids(16)(index)).abs().amax(-1)
    assert error[0, :2].max() < 1e-6
    assert error[1, 1:].min() > 1e-4
    assert list(positions.state_dict()) == ["frequencies"]


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_the_precision_of_positions_is_an_option(positions: str) -> None:
    """Other frequencies, which the state holds, give other contexts; saved ones the same."""
    torch.manual_seed(0)
    options = {"d_model": 8, "num_heads": 2, "positions": positions}
    encoder = TransformerEncoder(3, position_precision="float32", d_ff=12, **options).eval()
    assert encoder.layers[0].ff1.out_features == 12
    x = torch.randn(2, 40, 3)
    step_index = torch.arange(40).expand(2, -1)
    is_init = step_index == 0
    with torch.no_grad():
        before = encoder.parallel(x, step_index, is_init)
        other = copy.deepcopy(encoder)
        other.positions.frequencies.mul_(1.01)
        assert not torch.allclose(other.parallel(x, step_index, is_init), before, atol=1e-3)
        other.load_state_dict(encoder.state_dict())
        assert torch.equal(other.parallel(x, step_index, is_init), before)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"position_precision .*'float16'"):
        TransformerEncoder(3, d_model=8, num_heads=2, position_precision="float16")
