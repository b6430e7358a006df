import pytest
import torch
from yamame_envs.streams import bits, fold, integers, permutation, subset, uniform

MASK = 2**64 - 1


def reference_hash(x):
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def reference_bits(key, count):
    start = reference_hash((key & MASK) ^ 0x6A09E667F3BCC909)
    return [reference_hash(start + (i + 1) * 0x9E3779B97F4A7C15) for i in range(count)]


def test_bits_equal_unsigned_integer_arithmetic():
    keys = [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    drawn = bits(torch.tensor(keys), 3)
    expected = torch.tensor(
        [[b - 2**64 if b >= 2**63 else b for b in reference_bits(k, 3)] for k in keys]
    )
    assert torch.equal(drawn, expected)


def test_fold_equals_unsigned_integer_arithmetic():
    key, datum = 77, -5
    expected = reference_hash(reference_hash(key) + (datum + 1) * 0x9E3779B97F4A7C15)
    assert fold(torch.tensor(key), datum).item() & MASK == expected


def test_numbers_of_a_key_do_not_depend_on_the_batch():
    keys = torch.arange(64)
    assert torch.equal(uniform(keys, 5, 2)[7], uniform(keys[7], 5, 2))
    assert torch.equal(permutation(keys, 9)[3:5], permutation(keys[3:5], 9))
    assert torch.equal(fold(keys, 4)[9], fold(keys[9], 4))


def test_more_numbers_begin_with_the_same_numbers():
    assert torch.equal(uniform(torch.arange(3), 10)[:, :4], uniform(torch.arange(3), 4))


def flips(function):
    """Mean share of result bits that change when one bit of the key changes."""
    keys = bits(torch.tensor(11), 200)
    shares = []
    for position in range(64):
        changed = function(keys) ^ function(keys ^ (torch.tensor(1) << position))
        ones = torch.stack([(changed >> b) & 1 for b in range(64)]).double().mean()
        shares.append(ones.item())
    return torch.tensor(shares)


def test_every_bit_of_the_key_changes_half_of_the_result():
    # 12,800 bits per position: the standard error of the share is 0.0044, five of them 0.022.
    assert (flips(lambda k: bits(k, 1)[:, 0]) - 0.5).abs().max() < 0.022
    assert (flips(lambda k: fold(k, 0)) - 0.5).abs().max() < 0.022


def test_the_measure_of_changed_bits_rejects_a_linear_generator():
    assert (flips(lambda k: k * 6364136223846793005 + 1) - 0.5).abs().max() > 0.1


def chi_square(counts):
    expected = counts.sum() / counts.numel()
    return ((counts - expected) ** 2 / expected).sum().item()


@pytest.mark.parametrize("keys", ["counting", "one key"])
def test_uniform_numbers_fill_the_unit_interval_evenly(keys):
    n = 200_000
    drawn = uniform(torch.arange(n)) if keys == "counting" else uniform(torch.tensor(5), n)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    # 99 degrees of freedom: mean 99, standard deviation 14; 5 deviations are 70.
    assert abs(chi_square(torch.histc(drawn.float(), 100, 0, 1)) - 99) < 70


def test_pairs_from_neighbouring_keys_fill_the_unit_square_evenly():
    keys = torch.arange(100_000)
    for other in (keys + 1, keys ^ 1024, fold(keys, 0)):
        cell = (uniform(keys) * 10).long() * 10 + (uniform(other) * 10).long()
        assert abs(chi_square(torch.bincount(cell, minlength=100).double()) - 99) < 70


def test_the_square_rejects_numbers_that_move_together():
    drawn = uniform(torch.arange(100_000))
    other = (drawn + 0.05) % 1
    cell = (drawn * 10).long() * 10 + (other * 10).long()
    assert chi_square(torch.bincount(cell, minlength=100).double()) > 1000


def test_integers_are_even_and_below_their_bound():
    drawn = integers(torch.arange(70_000), 7)
    # 6 degrees of freedom: mean 6, standard deviation 3.5.
    assert chi_square(torch.bincount(drawn, minlength=7).double()) < 6 + 5 * 3.5
    assert drawn.max() == 6
    bounds = torch.tensor([1, 5])
    assert torch.equal(
        integers(torch.arange(2), bounds).clamp(max=bounds - 1), integers(torch.arange(2), bounds)
    )


def test_all_permutations_are_equally_likely():
    drawn = permutation(torch.arange(24_000), 4)
    assert torch.equal(drawn.sort(-1).values, torch.arange(4).expand(24_000, 4))
    code = (drawn * torch.tensor([64, 16, 4, 1])).sum(-1)
    counts = code.unique(return_counts=True)[1].double()
    assert counts.numel() == 24
    assert chi_square(counts) < 23 + 5 * 6.8  # 23 degrees of freedom


def test_ordered_subsets_are_equally_likely_and_allowed():
    allowed = torch.tensor([True, False, True, True, False, True])
    drawn = subset(torch.arange(24_000), allowed.expand(24_000, 6), 2)
    assert allowed[drawn].all()
    counts = (drawn[:, 0] * 6 + drawn[:, 1]).unique(return_counts=True)[1].double()
    assert counts.numel() == 12
    assert chi_square(counts) < 11 + 5 * 4.7  # 11 degrees of freedom


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_draw_the_same_numbers():
    keys = torch.arange(1000)
    for function in (lambda k: fold(k, 3), lambda k: uniform(k, 7), lambda k: permutation(k, 9)):
        assert torch.equal(function(keys.cuda()).cpu(), function(keys))
