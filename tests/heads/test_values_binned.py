import itertools

import pytest
import torch
from torch.nn import functional
from yamame.heads import BinnedReturns

G = 3
BOUNDS = [
    (-1e5, 1e5),
    (0.0, 1e5),
    (-10.0, 310.0),
    (-1e3, 1e4),
    (-1.0, 1.0),
    (50.0, 60.0),
    (-1e7, 1e7),
]


def binned(labels="two_hot", **changes):
    arguments = {"num_bins": 64, "min_return": -1e3, "max_return": 1e4} | changes
    return BinnedReturns(G, labels=labels, **arguments)


def returns_of_bins(returns):
    """Return the value of each bin alone."""
    return returns.decode(torch.eye(returns.num_outputs))


def returns_within(low, high):
    """Return returns dense at the bounds, near zero and in between."""
    share = torch.logspace(-8, 0, 200, dtype=torch.float64)
    parts = [low + (high - low) * share, high - (high - low) * share, low * share, high * share]
    return torch.cat([torch.tensor([low, high]), *parts]).clamp(low, high).float()


@pytest.mark.parametrize("symlog", [True, False])
@pytest.mark.parametrize("labels", ["two_hot", "hl_gauss"])
@pytest.mark.parametrize("num_bins", [2, 3, 16, 51, 128])
def test_labels_decode_to_the_return_everywhere_within_the_bounds(labels, symlog, num_bins):
    for (low, high), sigma in itertools.product(
        BOUNDS, [0.1, 0.75, 3.0] if labels == "hl_gauss" else [0.75]
    ):
        returns = BinnedReturns(
            1,
            labels=labels,
            symlog=symlog,
            num_bins=num_bins,
            min_return=low,
            max_return=high,
            sigma=sigma,
        )
        targets = returns_within(low, high)
        encoded = returns.encode(targets)
        torch.testing.assert_close(encoded.sum(-1), torch.ones(len(targets)))
        assert (encoded >= 0).all()
        # Probabilities and returns of bins are float32; where bins of both signs cancel, their
        # rounding errors stay.
        rounding = 2e-6 * (encoded * returns_of_bins(returns).abs()).sum(-1)
        error = (returns.decode(encoded) - targets).abs()
        assert (error <= 1e-6 * targets.abs() + rounding).all(), (low, high, sigma)


def test_hl_gauss_labels_of_the_default_bins_decode_within_a_hundredth():
    returns = BinnedReturns(1, labels="hl_gauss")
    targets = torch.cat([sign * torch.logspace(-4, 5, 2000) for sign in (-1.0, 1.0)])
    torch.testing.assert_close(
        returns.decode(returns.encode(targets)), targets, rtol=0.01, atol=1e-6
    )
    by_bin = BinnedReturns(1, labels="hl_gauss", value="mean_bin")
    far = by_bin.decode(by_bin.encode(targets)) / targets - 1
    assert far.abs().max() > 0.05  # where a bound cuts the normal off


@pytest.mark.parametrize("symlog", [True, False])
@pytest.mark.parametrize("labels", ["two_hot", "hl_gauss"])
def test_the_value_of_a_distribution_is_the_mean_return_of_its_bins(labels, symlog):
    torch.manual_seed(0)
    returns = binned(labels, symlog=symlog)
    probs = torch.randn(20, 64).mul(3).softmax(-1)
    expected = (probs.double() * returns_of_bins(returns).double()).sum(-1).float()
    torch.testing.assert_close(returns.decode(probs), expected)


@pytest.mark.parametrize("symlog", [True, False])
@pytest.mark.parametrize("labels", ["two_hot", "hl_gauss"])
@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_the_best_distribution_for_random_returns_has_the_value_of_their_mean(
    chance, labels, symlog
):
    returns = BinnedReturns(1, labels=labels, symlog=symlog)
    weights = torch.tensor([chance, 1 - chance])
    for scale in (1e-2, 1.0, 1e2, 1e5):
        targets = scale * torch.tensor([1.0, 0.0])
        best = weights @ returns.encode(targets)  # the minimum of the cross-entropy
        # Bins of the linear space are 1575 wide, of which float32 has 7 digits.
        tolerance = {"rtol": 1e-3, "atol": 0.0 if symlog else 2e-3}
        torch.testing.assert_close(returns.decode(best), chance * targets[0], **tolerance)


def test_the_mean_bin_undervalues_random_returns():
    returns = BinnedReturns(1, value="mean_bin")
    best = returns.encode(torch.tensor([100.0, 0.0])).mean(0)
    assert returns.decode(best) == pytest.approx(9.05, abs=0.01)  # sqrt(1 + 100) - 1
    torch.testing.assert_close(
        returns.decode(returns.encode(torch.tensor([20.0]))), torch.tensor([20.0])
    )


@pytest.mark.parametrize("labels", ["two_hot", "hl_gauss"])
@pytest.mark.parametrize("low", [-1e5, 0.0])
def test_new_critics_value_everything_near_zero_whatever_the_bounds(low, labels):
    torch.manual_seed(0)
    returns = BinnedReturns(1, labels=labels, min_return=low)
    raw = 0.2 * torch.randn(1000, 1, 128)  # as of a new layer
    assert returns.to_returns(raw).abs().max() < 20
    evenly = returns.decode(raw.softmax(-1))  # every bin weighs alike at first
    assert evenly.abs().max() > 500


@pytest.mark.parametrize("symlog", [True, False])
@pytest.mark.parametrize("num_bins", [2, 7, 64, 128])
def test_outputs_of_zero_are_worth_what_lies_nearest_to_zero(num_bins, symlog):
    others = [
        (0.0, 100.0),
        (-1.0, 1e8),
        (-1e8, 1.0),
        (-100.0, 0.0),
        (-1e-6, 1e3),
        (-60.0, -50.0),
        (-1e8, 1e8),
    ]
    for low, high in [*BOUNDS, *others]:
        returns = BinnedReturns(
            1, num_bins=num_bins, min_return=low, max_return=high, symlog=symlog
        )
        value = returns.to_returns(torch.zeros(1, num_bins)).item()
        nearest = min(max(0.0, low), high)
        narrowest = returns_of_bins(returns).double().diff().min().item()
        assert abs(value - nearest) <= 0.5 * narrowest * 1.01 + 1e-6 * abs(nearest), (
            low,
            high,
            value,
        )


def test_outputs_near_zero_are_worth_little_where_bounds_are_not_symmetric():
    torch.manual_seed(0)
    raw = 0.2 * torch.randn(1000, 1, 128)
    for low, high in [(0.0, 100.0), (-1.0, 1e8), (-10.0, 310.0)]:
        for symlog in (True, False) if high < 1e4 else (True,):
            returns = BinnedReturns(1, min_return=low, max_return=high, symlog=symlog)
            assert returns.to_returns(raw).abs().max() < 5, (low, high, symlog)


def test_a_value_on_a_bin_is_that_bin_alone():
    returns = BinnedReturns(1, num_bins=5, min_return=-2.0, max_return=2.0, symlog=False)
    assert returns.encode(torch.tensor([-2.0, 0.0, 1.0])).tolist() == [
        [1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 0],
    ]


def test_hl_gauss_labels_hold_the_mass_of_a_normal_around_their_bin():
    returns = BinnedReturns(
        1,
        num_bins=21,
        min_return=-10.0,
        max_return=10.0,
        symlog=False,
        labels="hl_gauss",
        sigma=0.75,
    )
    edges = torch.arange(-10.5, 11.0)
    for value in (-3.0, 0.0, 1.0):
        normal = torch.distributions.Normal(value, 0.75)
        mass = normal.cdf(edges[1:]) - normal.cdf(edges[:-1])
        torch.testing.assert_close(returns.encode(torch.tensor(value)), mass, rtol=1e-4, atol=1e-6)
    wider = returns.encode(torch.tensor(0.5))
    torch.testing.assert_close(
        wider, wider[(21 - torch.arange(21)) % 21]
    )  # halfway between bins 10 and 11
    assert returns.encode(torch.tensor(10.0))[-1] == 1.0  # nothing else has the bound as its mean


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
    labels, logits = returns.encode(targets), returns.logits(raw)
    flat = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), reduction="none")
    torch.testing.assert_close(returns.loss(raw, targets), flat.view(5, G))
    best = labels.clamp_min(1e-12).log() - returns.logits(torch.zeros(64))
    assert torch.allclose(returns.to_returns(best), targets, rtol=1e-4, atol=1e-4)
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
        (
            lambda: binned(value="mode"),
            r"BinnedReturns: value must be one of .*mean_return.*, got 'mode'",
        ),
    ],
)
def test_impossible_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def of_earlier_version(returns):
    """Return a state as saved by earlier versions, without the rule of values."""
    state = returns.state_dict()
    state.pop("value_rule", None)
    return state


@pytest.mark.parametrize("symlog", [True, False])
def test_critics_of_an_earlier_version_keep_their_values_and_targets(symlog, capsys):
    torch.manual_seed(0)
    returns, raw, targets = binned(symlog=symlog), torch.randn(5, G, 64), torch.randn(5, G) * 100
    anew = returns.to_returns(raw), returns.loss(raw, targets)
    returns.load_state_dict(of_earlier_version(binned(symlog=symlog)))
    assert "mean_bin" in capsys.readouterr().err

    # Means in the space where bins are even, and labels on the neighbours there.
    def even(y):
        return y.sign() * y.abs().log1p() if symlog else y

    low, high = even(torch.tensor(-1e3)), even(torch.tensor(1e4))
    mean = (raw.softmax(-1) * torch.linspace(low, high, 64)).sum(-1)
    expected = mean.sign() * mean.abs().expm1() if symlog else mean
    torch.testing.assert_close(returns.to_returns(raw), expected, rtol=1e-4, atol=1e-3)
    position = (even(targets) - low) / (high - low) * 63
    labels = (1 - (position.unsqueeze(-1) - torch.arange(64)).abs()).clamp(min=0)
    torch.testing.assert_close(
        returns.loss(raw, targets), -(labels * raw.log_softmax(-1)).sum(-1), rtol=1e-4, atol=0
    )
    for former, now in zip(
        anew, (returns.to_returns(raw), returns.loss(raw, targets)), strict=True
    ):
        assert not torch.allclose(former, now, rtol=0.01)


def test_a_state_brings_the_rule_that_it_was_trained_by(capsys):
    raw = torch.randn(5, G, 64)
    for rule, other in itertools.permutations(["mean_return", "mean_bin"]):
        saved, loaded = binned(value=rule), binned(value=other)
        assert not torch.allclose(loaded.to_returns(raw), saved.to_returns(raw))
        loaded.load_state_dict(saved.state_dict())
        assert rule in capsys.readouterr().err
        assert torch.equal(loaded.to_returns(raw), saved.to_returns(raw))
        loaded.load_state_dict(saved.state_dict())
        assert capsys.readouterr().err == ""  # nothing changes


def test_a_state_without_values_leaves_the_rule_alone(capsys):
    returns = binned()
    returns.load_state_dict({}, strict=False)
    assert (returns.value, capsys.readouterr().err) == ("mean_return", "")


OTHER_BINS = {"min_return": -100.0, "max_return": 100.0, "symlog": False, "num_bins": 8}


@pytest.mark.parametrize("name", OTHER_BINS)
def test_a_state_of_other_bins_is_refused_by_name_and_values(name):
    own = {"min_return": -1e3, "max_return": 1e4, "symlog": True, "num_bins": 64}
    trained, returns = binned(**{name: OTHER_BINS[name]}), binned()
    for load in (
        lambda: returns.load_state_dict(trained.state_dict()),
        lambda: torch.nn.ModuleList([returns]).load_state_dict(
            torch.nn.ModuleList([trained]).state_dict()
        ),
    ):
        with pytest.raises(ValueError, match=rf"{name}.*{OTHER_BINS[name]}.*{own[name]}"):
            load()
    binned(**{name: OTHER_BINS[name]}).load_state_dict(trained.state_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_state_of_the_same_bins_loads_in_any_precision(dtype):
    bounds = {"min_return": -123.456, "max_return": 98765.4321}
    trained = binned(**bounds).to(dtype)
    binned(**bounds).load_state_dict(trained.state_dict())
    with pytest.raises(ValueError, match="min_return"):
        binned(**bounds | {"min_return": -150.0}).load_state_dict(trained.state_dict())


def test_a_state_without_a_record_of_bins_loads_as_before():
    trained, returns = binned(), binned(min_return=-100.0)
    trained.update(torch.full((5, G), 7.0), torch.ones(5, dtype=torch.bool))
    state = {key: value for key, value in trained.state_dict().items() if key != "binning"}
    returns.load_state_dict(state)
    assert torch.equal(returns.mean, trained.mean)
    saved = returns.state_dict()  # from now on with the bins that it has
    with pytest.raises(ValueError, match="min_return"):
        binned().load_state_dict(saved)
    with pytest.raises(RuntimeError, match="moments"):
        binned().load_state_dict({})
