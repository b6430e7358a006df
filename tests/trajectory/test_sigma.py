"""Sigma-reparametrised layers: the estimate, its gradient, and when it moves."""

import copy

import pytest
import torch
from torch.nn import functional as F
from yamame.trajectory import SigmaReparamLinear, folded_weights


def spectral_norm(weight: torch.Tensor) -> torch.Tensor:
    return torch.linalg.matrix_norm(weight.detach().double(), ord=2)


def test_the_first_estimate_is_the_true_spectral_norm() -> None:
    layer = SigmaReparamLinear(12, 20).eval()
    assert torch.isclose(layer.sigma().double(), spectral_norm(layer.weight), rtol=1e-5)
    assert torch.isclose(spectral_norm(layer.effective_weight()), torch.tensor(1.0).double(), rtol=1e-5)


def test_weights_start_with_the_standard_deviation_of_the_reference() -> None:
    torch.manual_seed(0)
    layer = SigmaReparamLinear(200, 200)
    # 40,000 draws: the estimate of the standard deviation is good to 0.35 %, so 2 % is over five times that.
    assert layer.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert not layer.bias.any()
    assert layer.gamma.item() == 1.0


def test_training_forwards_follow_a_weight_that_moved() -> None:
    torch.manual_seed(0)
    layer = SigmaReparamLinear(12, 20).train()
    with torch.no_grad():
        # A spectrum with a gap, whose top direction the initial vectors do not know.
        layer.weight.copy_(torch.randn(20, 12) + 3 * torch.outer(torch.randn(20), torch.randn(12)))
    true = spectral_norm(layer.weight)
    errors = []
    for _ in range(30):
        layer(torch.randn(4, 12))
        layer.eval()
        errors.append(abs(layer.sigma().double() - true) / true)
        layer.train()
    assert errors[0] > 1e-3
    assert errors[-1] < 1e-5
    assert errors[10] < errors[0]


def test_a_training_forward_is_exactly_one_power_iteration_step() -> None:
    layer = SigmaReparamLinear(5, 7).train()
    with torch.no_grad():
        layer.weight.add_(torch.randn(7, 5))
    u = F.normalize(layer.weight.detach() @ layer.v, dim=0)
    v = F.normalize(layer.weight.detach().T @ u, dim=0)
    out = layer(torch.eye(5))
    assert torch.allclose(layer.u, u, atol=1e-6)
    assert torch.allclose(layer.v, v, atol=1e-6)
    assert torch.allclose(out, (layer.weight / (u @ layer.weight @ v)).T, atol=1e-6)


@pytest.mark.parametrize("num_rows", [2, 40])
def test_a_fixed_map_is_one_step_however_many_parts_it_is_given(num_rows: int) -> None:
    torch.manual_seed(0)
    layer = SigmaReparamLinear(5, 7).train()
    with torch.no_grad():
        layer.weight.add_(torch.randn(7, 5))
    twin, x = copy.deepcopy(layer), torch.randn(num_rows, 5)
    expected = twin(x)
    part = layer.fixed(num_rows)
    assert torch.allclose(torch.cat([part(x[:1]), part(x[1:])]), expected, atol=1e-6)
    assert torch.equal(layer.u, twin.u)
    assert torch.equal(layer.v, twin.v)


@pytest.mark.parametrize("training", [True, False])
def test_only_training_forwards_move_the_vectors(training: bool) -> None:
    layer = SigmaReparamLinear(5, 7).train(training)
    with torch.no_grad():
        layer.weight.add_(torch.randn(7, 5))
    u, v = layer.u.clone(), layer.v.clone()
    layer(torch.randn(3, 5))
    assert torch.equal(layer.u, u) is not training
    assert torch.equal(layer.v, v) is not training


@pytest.mark.parametrize("num_rows", [2, 40])
def test_the_gradient_flows_through_the_weight_inside_sigma(num_rows: int) -> None:
    torch.manual_seed(0)
    layer = SigmaReparamLinear(4, 6).double().eval()
    x = torch.randn(num_rows, 4, dtype=torch.float64)
    u, v = layer.u.double(), layer.v.double()

    def forward(weight: torch.Tensor, gamma: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight * gamma / (u @ weight @ v), bias)

    inputs = tuple(p.detach().clone().requires_grad_() for p in (layer.weight, layer.gamma, layer.bias))
    assert torch.autograd.gradcheck(forward, inputs)
    forward(*inputs).pow(3).sum().backward()
    layer(x).pow(3).sum().backward()
    for expected, parameter in zip(inputs, (layer.weight, layer.gamma, layer.bias), strict=True):
        # sigma itself is float32, hence float32 accuracy relative to the largest entry.
        assert torch.allclose(parameter.grad, expected.grad, atol=1e-5 * float(expected.grad.abs().max()))
    # Scaling the weight changes nothing, so the gradient has no component along it; without a path
    # through sigma it would.
    along = (layer.weight.grad * layer.weight).sum() / (layer.weight.grad.norm() * layer.weight.norm())
    assert abs(along) < 1e-5


@pytest.mark.parametrize("num_rows", [2, 40])
def test_few_and_many_rows_are_multiplied_by_the_same_weight(num_rows: int) -> None:
    layer = SigmaReparamLinear(6, 9).eval()
    x = torch.randn(num_rows, 6)
    with torch.no_grad():
        layer.weight.add_(0.1 * torch.randn(9, 6))
        layer.gamma.fill_(1.7)
        layer.bias.normal_()
        expected = x @ (1.7 / (layer.u @ layer.weight @ layer.v) * layer.weight).T + layer.bias
        assert torch.allclose(layer(x), expected, atol=1e-6)


def test_a_second_forward_before_backward_is_allowed() -> None:
    layer = SigmaReparamLinear(5, 7).train()
    x = torch.randn(20, 5)
    (layer(x) + layer(x)).sum().backward()
    layer.eval()
    out = layer(x)
    layer.train()(x)
    out.sum().backward()


def test_copies_and_state_dicts_are_exact() -> None:
    layer = SigmaReparamLinear(5, 7).train()
    layer(torch.randn(3, 5))
    other = SigmaReparamLinear(5, 7)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(3, 5)
    for twin in (copy.deepcopy(layer), other.train()):
        assert torch.equal(twin(x), copy.deepcopy(layer)(x))
        assert twin.state_dict().keys() == {"weight", "bias", "gamma", "u", "v"}
    assert {name for name, _ in layer.named_parameters()} == {"weight", "bias", "gamma"}


def test_the_vectors_stay_float32_whatever_the_weights_are() -> None:
    layer = SigmaReparamLinear(5, 7).bfloat16()
    assert layer.weight.dtype == torch.bfloat16
    assert layer.u.dtype == layer.v.dtype == torch.float32
    assert layer(torch.randn(3, 5).bfloat16()).dtype == torch.bfloat16


def test_sigma_keeps_its_precision_under_autocast() -> None:
    layer = SigmaReparamLinear(30, 40).eval()
    expected = layer.sigma()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.sigma(), expected)
        assert layer(torch.randn(3, 30)).dtype == torch.bfloat16


CHANGES = {
    "in place": lambda layer: layer.weight.mul_(torch.rand_like(layer.weight)),
    "through .data": lambda layer: layer.weight.data.copy_(torch.randn_like(layer.weight)),
    "gamma": lambda layer: layer.gamma.data.fill_(3.0),
    "by loading": lambda layer: layer.load_state_dict(SigmaReparamLinear(5, 7).state_dict()),
    "by assignment": lambda layer: setattr(layer, "weight", torch.nn.Parameter(torch.randn(7, 5))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_weight_change_is_seen_at_once_and_by_the_next_fold(change: str) -> None:
    layer = SigmaReparamLinear(5, 7).eval()
    x = torch.randn(2, 5)
    with torch.no_grad():
        with folded_weights(layer):
            old = layer(x)
        CHANGES[change](layer)
        expected = F.linear(x, layer.gamma / (layer.u @ layer.weight @ layer.v) * layer.weight, layer.bias)
        assert not torch.allclose(old, expected, atol=1e-4)
        assert torch.allclose(layer(x), expected, atol=1e-5)
        with folded_weights(layer):
            assert torch.allclose(layer(x), expected, atol=1e-5)


def test_folding_never_touches_gradients_training_copies_or_what_follows_an_error() -> None:
    layer = SigmaReparamLinear(5, 7).eval()
    x = torch.randn(2, 5)
    with folded_weights(layer):
        layer(x).sum().backward()
        assert layer.weight.grad.any()
        assert copy.deepcopy(layer)._folded is None
        u = layer.u.clone()
        layer.train()
        layer.weight.data.copy_(torch.randn(7, 5))
        layer(x)
        assert not torch.equal(layer.u, u)
    layer.eval()
    with pytest.raises(RuntimeError, match="stop"), folded_weights(layer):
        raise RuntimeError("stop")
    assert layer._folded is None


@pytest.mark.parametrize(("argument", "sizes"), [("in_features", (0, 2)), ("out_features", (2, 0))])
def test_sizes_must_be_positive(argument: str, sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"SigmaReparamLinear: {argument} must be at least 1, got 0"):
        SigmaReparamLinear(*sizes)
