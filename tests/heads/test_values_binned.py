import pytest
import torch
from yamame.heads import BinnedReturns

G = 3
VALUES = torch.tensor([-3.0, 0.0, 1.0, 10.0, 250.0])


def binned(labels="two_hot", **changes):
    arguments = {"num_bins": 64, "min_return": -1e3, "max_return": 1e4} | changes
    return BinnedReturns(G, labels=labels, **arguments)


@pytest.mark.parametrize("symlog", [True, False])
def test_two_hot_labels_decode_to_the_value(symlog):
    returns = binned(symlog=symlog, num_bins=128)
    labels = returns.encode(VALUES)
    torch.testing.assert_close(labels.sum(-1), torch.ones(5))
    assert ((labels > 0).sum(-1) <= 2).all()
    assert (labels >= 0).all()
    # Positions are float32: about 1e-5 of a bin, which linear bins of width 87 turn into 1e-3.
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if symlog else {"rtol": 0, "atol": 2e-3}
    torch.testing.assert_close(returns.decode(labels), VALUES, **tolerance)


def test_the_default_bins_decode_to_the_value_too():
    returns = BinnedReturns(1)
    assert returns.num_outputs == 128
    torch.testing.assert_close(returns.bins[[0, -1]], torch.tensor([-11.513, 11.513]), rtol=0, atol=1e-3)
    torch.testing.assert_close(returns.decode(returns.encode(VALUES)), VALUES, rtol=2e-5, atol=2e-5)


def test_a_value_on_a_bin_is_that_bin_alone():
    returns = BinnedReturns(1, num_bins=5, min_return=-2.0, max_return=2.0, symlog=False)
    assert returns.encode(torch.tensor([-2.0, 0.0, 1.0])).tolist() == [
        [1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
    ]


def test_hl_gauss_labels_hold_the_mass_of_a_normal_in_each_bin():
    returns = BinnedReturns(
        1, num_bins=11, min_return=-5.0, max_return=5.0, symlog=False, labels="hl_gauss", sigma=0.75
    )
    for value in (-5.0, -0.3, 1.0, 4.8):
        normal = torch.distributions.Normal(value, 0.75)
        edges = torch.arange(-5.5, 6.0)
        mass = normal.cdf(edges[1:]) - normal.cdf(edges[:-1])
        labels = returns.encode(torch.tensor(value))
        torch.testing.assert_close(labels, mass / mass.sum(), rtol=1e-4, atol=1e-6)
    # Far from the ends the mean of the label is the value, up to the discretisation of the normal.
    inner = torch.tensor([-2.0, -0.3, 1.25])
    torch.testing.assert_close(returns.decode(returns.encode(inner)), inner, rtol=0, atol=1e-3)


@pytest.mark.parametrize("labels", ["two_hot", "hl_gauss"])
def test_values_outside_the_bounds_count_as_the_bound(labels):
    returns = binned(labels)
    outside, bounds = torch.tensor([-1e9, 1e9]), torch.tensor([-1e3, 1e4])
    # The bounds' own positions are rounded in float32.
    torch.testing.assert_close(returns.encode(outside), returns.encode(bounds), rtol=0, atol=1e-4)
    assert not torch.allclose(returns.encode(bounds), returns.encode(bounds / 2), atol=1e-2)


@pytest.mark.parametrize("labels", ["two_hot", "hl_gauss"])
def test_the_binned_loss_is_the_cross_entropy_and_least_at_the_labels(labels):
    returns = binned(labels)
    targets, raw = torch.randn(5, G) * 20, torch.randn(5, G, 64)
    flat = torch.nn.functional.cross_entropy(
        raw.flatten(0, 1), returns.encode(targets).flatten(0, 1), reduction="none"
    )
    torch.testing.assert_close(returns.loss(raw, targets), flat.view(5, G))
    best = returns.encode(targets).clamp_min(1e-12).log()
    assert (returns.loss(best, targets) < returns.loss(best + 0.3 * raw, targets)).all()


def test_the_binned_loss_trains_values_to_their_targets():
    returns = binned()
    raw, targets = torch.zeros(G, 64, requires_grad=True), torch.tensor([-2.0, 0.5, 100.0])
    optimizer = torch.optim.Adam([raw], lr=0.3)
    for _ in range(300):
        optimizer.zero_grad()
        returns.loss(raw, targets).sum().backward()
        optimizer.step()
    torch.testing.assert_close(returns.to_returns(raw.detach()), targets, rtol=0.02, atol=0.02)


def test_binned_values_are_normalised_by_the_moments_of_the_targets():
    returns, raw = binned(), torch.randn(5, G, 64)
    targets = torch.randn(50, G) * 30 + 10
    returns.update(targets, torch.ones(50, dtype=torch.bool))
    expected = (returns.to_returns(raw) - returns.mean) / returns.std
    torch.testing.assert_close(returns.to_normalized(raw), expected)
    assert returns.mean.abs().min() > 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: binned(num_bins=1), "BinnedReturns: num_bins must be at least 2, got 1"),
        (
            lambda: binned(min_return=5.0, max_return=5.0),
            r"BinnedReturns: min_return must be below max_return=5\.0, got 5\.0",
        ),
        (
            lambda: binned("one_hot"),
            r"BinnedReturns: labels must be one of \('two_hot', 'hl_gauss'\), got 'one_hot'",
        ),
        (lambda: binned(sigma=0.0), r"BinnedReturns: sigma must be positive, got 0\.0"),
    ],
)
def test_impossible_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
