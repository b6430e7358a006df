import math

import pytest
import torch
from torch.distributions import (
    AffineTransform,
    Beta,
    Normal,
    TanhTransform,
    TransformedDistribution,
)
from torch.nn import functional as F
from yamame.actions import BetaDistribution, TanhNormalDistribution

FAMILIES = [TanhNormalDistribution, BetaDistribution]


def tanh_normal_reference(params):
    loc, raw = params.chunk(2, -1)
    log_std = -5 + 0.5 * (2 - (-5)) * (raw.tanh() + 1)
    return TransformedDistribution(Normal(loc, log_std.exp()), [TanhTransform()])


def beta_reference(params):
    alpha, beta = (F.softplus(params) + 1.0001).chunk(2, -1)
    return TransformedDistribution(Beta(alpha, beta), [AffineTransform(-1.0, 2.0)])


PAIRS = [(TanhNormalDistribution, tanh_normal_reference), (BetaDistribution, beta_reference)]
pairs = pytest.mark.parametrize(("family", "reference"), PAIRS)


@pairs
def test_log_densities_are_those_of_the_transformed_distribution(family, reference):
    params = torch.randn(50, 7, 6, dtype=torch.float64)
    action = torch.rand(50, 1, 3, dtype=torch.float64) * 1.9 - 0.95
    expected = reference(params).log_prob(action.expand(-1, 7, -1)).sum(-1)
    # float32 against float64: densities of up to e^5 per dimension, relative to their size.
    torch.testing.assert_close(
        family(params).log_prob(action.float()).double(), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_densities_are_taken_at_the_clipped_action(family):
    dist = family(torch.tensor([0.3, -0.5]))
    at = [
        dist.log_prob(torch.tensor([value])).item()
        for value in (0.98, 0.99, 0.995, 1.0, -0.99, -1.0)
    ]
    assert at[1] == at[2] == at[3]
    assert at[4] == at[5]
    assert at[0] != at[1]


@pairs
def test_samples_follow_the_reference_distribution(family, reference):
    torch.manual_seed(0)
    params = torch.tensor([0.4, -0.6, 0.1, -0.3])
    num_draws = 50_000
    sample = family(params.expand(num_draws, -1)).sample()
    expected = reference(params.expand(num_draws, -1)).sample()
    assert not sample.requires_grad
    for power in (1, 2, 3):
        ours, theirs = sample**power, expected**power
        five_sigma = 5 * (ours.var(0) / num_draws * 2).sqrt()
        assert ((ours.mean(0) - theirs.mean(0)).abs() < five_sigma).all()
    # Control: the two dimensions differ by more than that.
    assert (sample[:, 0].mean() - expected[:, 1].mean()).abs() > five_sigma.max()


def test_tanh_normal_samples_are_reparametrised():
    params = torch.tensor([[0.3, -0.2]], requires_grad=True)
    torch.manual_seed(0)
    sample = TanhNormalDistribution(params).rsample()
    torch.manual_seed(0)
    noise = torch.randn(1, 1)
    (gradient,) = torch.autograd.grad(sample.sum(), params)
    slope = 1 - sample.item() ** 2
    std = math.exp(-5 + 3.5 * (math.tanh(-0.2) + 1))
    assert gradient[0, 0].item() == pytest.approx(slope, rel=1e-5)
    d_log_std = 3.5 * (1 - math.tanh(-0.2) ** 2)
    assert gradient[0, 1].item() == pytest.approx(slope * std * d_log_std * noise.item(), rel=1e-4)


def test_beta_samples_carry_the_gradient_of_their_mean():
    torch.manual_seed(0)
    params = torch.tensor([0.5, -0.5], requires_grad=True)
    num_draws = 20_000
    (gradient,) = torch.autograd.grad(
        BetaDistribution(params.expand(num_draws, 2)).rsample().mean(), params
    )
    (expected,) = torch.autograd.grad(2 * beta_reference(params).base_dist.mean.sum() - 1, params)
    # The per-draw gradients are of order 1, so their mean is known to about 1 / sqrt(draws) =
    # 0.007.
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0.01)
    assert expected.abs().min() > 0.03


def test_the_scale_stays_in_its_range():
    params = torch.tensor([[0.0, -100.0], [0.0, 0.0], [0.0, 100.0]])
    density_at_zero = TanhNormalDistribution(params).log_prob(torch.zeros(1))
    log_std = -density_at_zero - 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(log_std, torch.tensor([-5.0, -1.5, 2.0]))


def test_the_mode_of_a_tanh_normal_is_its_squashed_location():
    params = torch.randn(5, 6, requires_grad=True)
    mode = TanhNormalDistribution(params).mode
    torch.testing.assert_close(mode, params[:, :3].tanh().detach())
    assert not mode.requires_grad


def test_the_mode_of_a_beta_is_the_peak_of_its_density():
    grid = torch.linspace(-0.99, 0.99, 1981).unsqueeze(-1)
    for raw in ([1.0, 2.0], [3.0, 0.5], [1.0, 1.0]):
        dist = BetaDistribution(torch.tensor(raw))
        peak = grid[dist.log_prob(grid).argmax()]
        torch.testing.assert_close(dist.mode, peak, rtol=0, atol=0.001)


@pytest.mark.parametrize("loc", [0.0, 2.0, -5.0])
@pytest.mark.parametrize("raw_scale", [-3.0, 0.0, 0.5, 3.0])
def test_the_entropy_of_a_tanh_normal_is_that_of_its_density(loc, raw_scale):
    # Exact up to the grid: minus the integral of p log p, over the pre-squashed variable in
    # float64.
    std = math.exp(-5 + 3.5 * (math.tanh(raw_scale) + 1))
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    x = loc + std * z
    log_slope = 2 * (math.log(2) - x - F.softplus(-2 * x))
    log_density = -0.5 * z**2 - 0.5 * math.log(2 * math.pi) - math.log(std) - log_slope
    weight = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    expected = -torch.trapezoid(weight * log_density, z).item()
    entropy = TanhNormalDistribution(torch.tensor([loc, raw_scale])).entropy().item()
    # The quadrature's own error at the widest normals.
    assert entropy == pytest.approx(expected, abs=0.02)


def test_the_entropy_of_a_beta_is_that_of_its_density():
    params = torch.randn(4, 2)
    alpha, beta = (F.softplus(params) + 1.0001).chunk(2, -1)
    expected = Beta(alpha, beta).entropy().squeeze(-1) + math.log(2.0)
    torch.testing.assert_close(BetaDistribution(params).entropy(), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_maths_is_done_in_float32(family):
    params = torch.randn(4, 6).bfloat16()
    half, full = family(params), family(params.float())
    action = torch.rand(4, 3)
    assert half.sample().dtype == torch.float32
    assert torch.equal(half.log_prob(action), full.log_prob(action))
