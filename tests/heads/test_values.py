import math

import pytest
import torch
from yamame.heads import BinnedReturns, PopArt

G = 3


def binned(num_gammas):
    return BinnedReturns(num_gammas, num_bins=64, min_return=-1e3, max_return=1e4)


both = pytest.mark.parametrize("make", [PopArt, binned])


def everything(targets):
    return torch.ones(targets.shape[:-1], dtype=torch.bool)


def naive_popart(steps, decay=5e-4, second_moment=100.0):
    """Return (mean, std, scale, shift) of one gamma after lists of targets, in plain Python."""

    def sigma():
        return math.sqrt(min(max(nu - mu * mu, 1e-4), 1e8))

    mu, nu, w, b, t = 0.0, second_moment, 1.0, 0.0, 1
    for targets in steps:
        old_mu, old_sigma, t = mu, sigma(), t + 1
        rate = decay / (1 - (1 - decay) ** t)
        mu = (1 - rate) * mu + rate * sum(targets) / len(targets)
        nu = (1 - rate) * nu + rate * sum(y * y for y in targets) / len(targets)
        w, b = w * old_sigma / sigma(), (old_sigma * b + old_mu - mu) / sigma()
    return mu, sigma(), w, b


def test_popart_passes_the_acceptance_vector():
    popart = PopArt(1)
    popart.update(torch.full((4, 1), 50.0), torch.ones(4, dtype=torch.bool))
    numbers = [popart.mean, popart.std, popart.scale, popart.shift]
    # The vector comes from a float32 evaluation of the rate that is off in the fifth digit.
    assert [number.item() for number in numbers] == [
        pytest.approx(25.005, abs=2e-3),
        pytest.approx(25.98, abs=5e-3),
        pytest.approx(0.385, abs=5e-4),
        pytest.approx(-0.962, abs=1e-3),
    ]


@pytest.mark.parametrize("decay", [5e-4, 0.1])
def test_popart_follows_the_naive_recursion_for_each_gamma(decay):
    popart = PopArt(G, decay=decay)
    steps = [torch.randn(6, 5, G) * 30 * torch.tensor([0.1, 1.0, 10.0]) + 5 for _ in range(20)]
    masks = [torch.rand(6, 5) < 0.7 for _ in steps]
    for targets, mask in zip(steps, masks, strict=True):
        popart.update(targets, mask)
    for gamma in range(G):
        valid = [
            targets[mask][:, gamma].tolist() for targets, mask in zip(steps, masks, strict=True)
        ]
        ours = torch.stack((popart.mean, popart.std, popart.scale, popart.shift))[:, gamma]
        expected = torch.tensor(naive_popart(valid, decay))
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_popart_updates_preserve_returns_and_change_normalised_values():
    popart, raw = PopArt(G), torch.randn(7, 4, G, 1) * 3
    for scale in (1.0, 50.0, 0.2, 1000.0):
        targets = torch.randn(100, G) * scale + scale
        returns, normalized = popart.to_returns(raw), popart.to_normalized(raw)
        popart.update(targets, everything(targets))
        error = (popart.to_returns(raw) - returns).abs().max()
        assert error < 1e-5 * returns.abs().max()
        assert not torch.allclose(popart.to_normalized(raw), normalized, rtol=1e-3)


def test_popart_preserves_returns_and_the_deviation_where_the_mean_is_ten_thousand_times_larger():
    torch.manual_seed(0)
    popart, raw = PopArt(1, decay=0.05), torch.randn(20, 1, 1)
    first = popart.to_returns(raw)
    for _ in range(500):
        targets = 1e4 + torch.randn(256, 1)
        before = popart.to_returns(raw)
        popart.update(targets, everything(targets))
        # Normalised values reach 1e4, where float32 has steps of 1e-3.
        torch.testing.assert_close(popart.to_returns(raw), before, rtol=0, atol=5e-3)
    assert popart.mean.item() == pytest.approx(1e4, abs=0.1)
    assert popart.std.item() == pytest.approx(1.0, abs=0.05)
    torch.testing.assert_close(popart.to_returns(raw), first, rtol=0, atol=0.1)
    # A difference of squares, in float32, knows nothing of it.
    assert abs(targets.square().mean() - targets.mean().square() - 1.0) > 0.5


def test_popart_normalises_returns_by_the_moments():
    popart, raw = PopArt(G), torch.randn(7, G, 1)
    targets = torch.randn(100, G) * 5 + 3
    popart.update(targets, everything(targets))
    again = (popart.to_returns(raw) - popart.mean) / popart.std
    torch.testing.assert_close(popart.to_normalized(raw), again)
    returns = torch.randn(7, G)
    error = popart.to_normalized(raw) - (returns - popart.mean) / popart.std
    torch.testing.assert_close(popart.loss(raw, returns), error**2)
    assert popart.loss(raw, popart.to_returns(raw)).max() < 1e-10


def test_popart_statistics_converge_to_those_of_the_targets():
    torch.manual_seed(0)
    popart = PopArt(1, decay=0.01)
    for _ in range(1000):
        targets = torch.randn(200, 1) * 4 - 7
        popart.update(targets, everything(targets))
    # The moving average spans about 100 steps of 200 targets.
    assert popart.mean.item() == pytest.approx(-7, abs=0.15)
    assert popart.std.item() == pytest.approx(4, abs=0.15)


def test_a_constant_target_leaves_a_positive_standard_deviation():
    popart = PopArt(1, decay=0.5)
    for _ in range(100):
        popart.update(torch.full((4, 1), 1e3), torch.ones(4, dtype=torch.bool))
    assert popart.std.item() == pytest.approx(0.01)
    assert popart.to_returns(torch.ones(1, 1)).isfinite().all()


def test_disabled_popart_is_the_identity():
    popart, raw = PopArt(G, enabled=False), torch.randn(7, G, 1)
    targets = torch.randn(7, G) * 50
    popart.update(targets, everything(targets))
    assert torch.equal(popart.to_returns(raw), raw[..., 0])
    assert torch.equal(popart.to_normalized(raw), raw[..., 0])
    torch.testing.assert_close(popart.loss(raw, targets), (raw[..., 0] - targets) ** 2)
    assert popart.moments.num_updates == 0


@both
def test_statistics_move_by_valid_targets_alone(make):
    targets, mask = torch.randn(4, 6, G) * 9, torch.rand(4, 6) < 0.5
    dirty = targets.clone()
    dirty[~mask] = torch.nan
    clean, masked, ignoring = make(G), make(G), make(G)
    clean.update(targets[mask], torch.ones(int(mask.sum()), dtype=torch.bool))
    masked.update(dirty, mask)
    ignoring.update(targets, everything(targets))
    # Sums in float32 over another number of numbers.
    torch.testing.assert_close(masked.state_dict(), clean.state_dict(), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(ignoring.mean, clean.mean)


@both
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_targets_that_are_not_finite_do_not_reach_the_statistics(make, value):
    targets, mask = torch.randn(4, 6, G) * 9, torch.ones(4, 6, dtype=torch.bool)
    spoilt, without = make(G), make(G)
    mask[1, 2] = False
    without.update(targets, mask)
    targets[1, 2, 0] = value
    spoilt.update(targets, everything(targets))
    torch.testing.assert_close(spoilt.state_dict(), without.state_dict())


@both
def test_an_update_without_valid_targets_changes_nothing(make):
    returns = make(G)
    returns.update(torch.randn(4, G), torch.ones(4, dtype=torch.bool))
    before = {key: value.clone() for key, value in returns.state_dict().items()}
    returns.update(torch.randn(4, G), torch.zeros(4, dtype=torch.bool))
    assert all(torch.equal(value, before[key]) for key, value in returns.state_dict().items())
    returns.update(torch.randn(4, G), torch.ones(4, dtype=torch.bool))
    assert not torch.equal(returns.moments.mean, before["moments.mean"])


def test_a_mask_broadcasts_over_further_leading_dimensions():
    targets, mask = torch.randn(5, 4, G), torch.tensor([True, True, False, True])
    wide, flat = PopArt(G), PopArt(G)
    wide.update(targets, mask)
    flat.update(targets[:, mask].flatten(0, 1), torch.ones(15, dtype=torch.bool))
    torch.testing.assert_close(wide.state_dict(), flat.state_dict())


@both
def test_one_gamma_does_not_depend_on_the_others(make):
    order = [1, 0, 2]
    targets = torch.randn(20, G) * torch.tensor([1.0, 5.0, 25.0])
    returns, permuted = make(G), make(G)
    raw = torch.randn(6, G, returns.num_outputs)
    returns.update(targets, everything(targets))
    permuted.update(targets[:, order], everything(targets))
    for name in ("to_returns", "to_normalized"):
        ours, theirs = getattr(permuted, name)(raw[:, order]), getattr(returns, name)(raw)
        torch.testing.assert_close(ours, theirs[:, order])
    torch.testing.assert_close(
        permuted.loss(raw[:, order], targets[:6, order]), returns.loss(raw, targets[:6])[:, order]
    )


@both
def test_targets_serve_an_ensemble_by_broadcasting(make):
    returns = make(G)
    raw, targets = torch.randn(5, 4, G, returns.num_outputs), torch.randn(5, G)
    loss = returns.loss(raw, targets.unsqueeze(1))
    assert loss.shape == (5, 4, G)
    for critic in range(4):
        torch.testing.assert_close(loss[:, critic], returns.loss(raw[:, critic], targets))


@both
def test_values_and_statistics_stay_in_float32_under_autocast(make):
    returns = make(G)
    targets = torch.full((4, G), 1234.5)
    raw = torch.randn(4, G, returns.num_outputs).bfloat16()
    plain = make(G)
    plain.update(targets, everything(targets))
    with torch.autocast("cpu", torch.bfloat16):
        returns.update(targets, everything(targets))
        outputs = [returns.to_returns(raw), returns.to_normalized(raw), returns.loss(raw, targets)]
    assert all(output.dtype == torch.float32 for output in outputs)
    torch.testing.assert_close(returns.state_dict(), plain.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(outputs[0], plain.to_returns(raw.float()))


@both
def test_statistics_survive_a_checkpoint(make):
    first, second = make(G), make(G)
    for _ in range(3):
        targets = torch.randn(9, G) * 20
        first.update(targets, everything(targets))
    second.load_state_dict(first.state_dict())
    raw, targets = torch.randn(5, G, first.num_outputs), torch.randn(9, G)
    for returns in (first, second):
        returns.update(targets, everything(targets))
    assert torch.equal(first.to_normalized(raw), second.to_normalized(raw))
