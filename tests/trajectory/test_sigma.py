"""Sigma-reparametrised layers: the estimate, its gradient, and when it moves."""

import copy

import pytest
import torch
from tensordict import TensorDict
from torch.nn import functional as F
from torchrl.modules import set_recurrent_mode
from yamame.trajectory import SigmaReparamLinear, TransformerEncoder
from yamame.trajectory.sigma import power_iteration, sigma_layers


def sigma_of(layer: SigmaReparamLinear) -> torch.Tensor:
    """The estimate of the weight's spectral norm, from what it is divided by."""
    return (layer.gamma * layer.weight.norm() / layer.effective_weight().norm()).detach()


def spectral_norm(weight: torch.Tensor) -> torch.Tensor:
    return torch.linalg.matrix_norm(weight.detach().double(), ord=2)


def test_the_first_estimate_is_the_true_spectral_norm() -> None:
    layer = SigmaReparamLinear(12, 20).eval()
    assert torch.isclose(sigma_of(layer).double(), spectral_norm(layer.weight), rtol=1e-5)
    assert torch.isclose(
        spectral_norm(layer.effective_weight()), torch.tensor(1.0).double(), rtol=1e-5
    )


def test_weights_start_with_the_standard_deviation_of_the_reference() -> None:
    torch.manual_seed(0)
    layer = SigmaReparamLinear(200, 200)
    # 40,000 draws: the estimate of the standard deviation is good to 0.35 %, so 2 % is over five
    # times that.
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
        errors.append(abs(sigma_of(layer).double() - true) / true)
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


def test_layers_of_all_shapes_move_together_as_each_does_alone() -> None:
    torch.manual_seed(0)
    shapes = [(5, 7), (7, 5), (5, 7), (5, 5), (5, 7)]
    together = [SigmaReparamLinear(*shape) for shape in shapes]
    for layer in together:
        layer.weight.data += torch.randn_like(layer.weight)
    alone, before = copy.deepcopy(together), [layer.u.clone() for layer in together]
    power_iteration(together)
    for layer, other, u in zip(together, alone, before, strict=True):
        own_u = F.normalize(other.weight.detach() @ other.v, dim=0)
        assert torch.allclose(layer.u, own_u, atol=1e-6)
        assert torch.allclose(
            layer.v, F.normalize(other.weight.detach().T @ own_u, dim=0), atol=1e-6
        )
        assert not torch.allclose(layer.u, u, atol=1e-3)


def vectors(encoder: TransformerEncoder) -> torch.Tensor:
    return torch.cat([torch.cat((layer.u, layer.v)) for layer in sigma_layers(encoder)])


@pytest.mark.parametrize("checkpoint_layers", [True, False])
def test_a_training_forward_of_an_encoder_is_one_step_of_every_layer(
    checkpoint_layers: bool,
) -> None:
    torch.manual_seed(0)
    options = {"d_model": 8, "num_heads": 2, "num_layers": 2, "sigma_reparam": True, "dropout": 0.0}
    encoder = TransformerEncoder(3, **options, checkpoint_layers=checkpoint_layers)
    for layer in sigma_layers(encoder):
        layer.weight.data += 0.05 * torch.randn_like(layer.weight)
    original, expected = encoder, copy.deepcopy(encoder)
    encoder = copy.deepcopy(encoder)
    power_iteration(sigma_layers(expected))
    before = vectors(encoder)
    batch = TensorDict({"features": torch.randn(2, 6, 3)}, [2, 6])
    with set_recurrent_mode(True):
        encoder(batch)["context"].sum().backward()  # where layers are computed again
    assert torch.allclose(vectors(encoder), vectors(expected), atol=1e-6)
    assert not torch.allclose(vectors(encoder), before, atol=1e-3)
    assert torch.equal(vectors(original), before)
    moved = vectors(encoder)
    with set_recurrent_mode(True):
        encoder.eval()(batch)
    assert torch.equal(vectors(encoder), moved)


@pytest.mark.parametrize("training", [True, False])
def test_only_training_forwards_move_the_vectors(training: bool) -> None:
    layer = SigmaReparamLinear(5, 7).train(training)
    with torch.no_grad():
        layer.weight.add_(torch.randn(7, 5))
    u, v = layer.u.clone(), layer.v.clone()
    layer(torch.randn(3, 5))
    assert torch.equal(layer.u, u) is not training
    assert torch.equal(layer.v, v) is not training


def test_the_gradient_flows_through_the_weight_inside_sigma() -> None:
    torch.manual_seed(0)
    layer = SigmaReparamLinear(4, 6).double().eval()
    x = torch.randn(40, 4, dtype=torch.float64)
    u, v = layer.u.double(), layer.v.double()

    def forward(weight: torch.Tensor, gamma: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight * gamma / (u @ weight @ v), bias)

    inputs = tuple(
        p.detach().clone().requires_grad_() for p in (layer.weight, layer.gamma, layer.bias)
    )
    assert torch.autograd.gradcheck(forward, inputs)
    forward(*inputs).pow(3).sum().backward()
    layer(x).pow(3).sum().backward()
    for expected, parameter in zip(inputs, (layer.weight, layer.gamma, layer.bias), strict=True):
        # sigma itself is float32, hence float32 accuracy relative to the largest entry.
        assert torch.allclose(
            parameter.grad, expected.grad, atol=1e-5 * float(expected.grad.abs().max())
        )
    # Scaling the weight changes nothing, so the gradient has no component along it; without a path
    # through sigma it would.
    along = (layer.weight.grad * layer.weight).sum() / (
        layer.weight.grad.norm() * layer.weight.norm()
    )
    assert abs(along) < 1e-5


def test_inputs_are_multiplied_by_the_reparametrised_weight() -> None:
    layer = SigmaReparamLinear(6, 9).eval()
    x = torch.randn(20, 6)
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
    expected = sigma_of(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sigma_of(layer), expected)
        assert layer(torch.randn(3, 30)).dtype == torch.bfloat16


CHANGES = {
    "in place": lambda layer: layer.weight.mul_(torch.rand_like(layer.weight)),
    "through .data": lambda layer: layer.weight.data.copy_(torch.randn_like(layer.weight)),
    "gamma": lambda layer: layer.gamma.data.fill_(3.0),
    "by loading": lambda layer: layer.load_state_dict(SigmaReparamLinear(5, 7).state_dict()),
    "by assignment": lambda layer: setattr(layer, "weight", torch.nn.Parameter(torch.randn(7, 5))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_weight_change_is_seen_at_once_and_once_prepared_by_the_next_preparation(
    change: str,
) -> None:
    torch.manual_seed(0)
    layer, x = SigmaReparamLinear(5, 7).eval(), torch.randn(2, 5)
    prepared = copy.deepcopy(layer)
    prepared.prepare_to_act()
    with torch.no_grad():
        old = prepared(x)
        assert torch.equal(layer(x), old)
        for part in (layer, prepared):
            torch.manual_seed(1)
            CHANGES[change](part)
        expected = F.linear(
            x, layer.gamma / (layer.u @ layer.weight @ layer.v) * layer.weight, layer.bias
        )
        assert not torch.allclose(old, expected, atol=1e-4)
        assert torch.allclose(layer(x), expected, atol=1e-5)
        prepared.prepare_to_act()
        assert torch.equal(prepared(x), layer(x))


def test_loaded_weights_are_acted_by_at_once() -> None:
    torch.manual_seed(0)
    layer, other, x = (
        SigmaReparamLinear(5, 7).eval(),
        SigmaReparamLinear(5, 7).eval(),
        torch.randn(2, 5),
    )
    layer.prepare_to_act()
    with torch.no_grad():
        before = layer(x)
        layer.load_state_dict(other.state_dict())
        assert torch.equal(layer(x), other(x))
        assert not torch.allclose(layer(x), before, atol=1e-4)


def test_a_prepared_weight_never_reaches_gradients_training_or_copies() -> None:
    layer, x = SigmaReparamLinear(5, 7).eval(), torch.randn(2, 5)
    layer.prepare_to_act()
    layer(x).sum().backward()
    assert layer.weight.grad.any()
    copied = copy.deepcopy(layer)
    layer.weight.data.copy_(torch.randn(7, 5))
    copied.weight.data.copy_(layer.weight)
    with torch.no_grad():
        stale = layer(x)
        assert not torch.allclose(copied(x), stale, atol=1e-4)  # which was not prepared
        u = layer.u.clone()
        layer.train()
        assert not torch.allclose(layer(x), stale, atol=1e-4)
        assert not torch.equal(layer.u, u)
        layer.weight.data.mul_(torch.rand(7, 5))
        assert torch.allclose(layer.eval()(x), copy.deepcopy(layer)(x))


PREPARED_AGAIN = {
    "prepare_to_act": lambda layer: layer.prepare_to_act(),
    "load_state_dict": lambda layer: layer.load_state_dict(SigmaReparamLinear(5, 7).state_dict()),
    "train and eval": lambda layer: layer.train().eval(),
    "prepare_to_act in training": lambda layer: layer.train().prepare_to_act(),
    "a device that it is on": lambda layer: layer.to("cpu"),
    "inference mode": lambda layer: torch.inference_mode()(layer.prepare_to_act)(),
}


@pytest.mark.parametrize("change", PREPARED_AGAIN)
def test_a_prepared_weight_keeps_its_memory(change: str) -> None:
    layer = SigmaReparamLinear(5, 7).eval()
    layer.prepare_to_act()
    before = {name: value.data_ptr() for name, value in layer.named_buffers()}
    assert "prepared" not in layer.state_dict()
    layer.weight.data.copy_(torch.randn(7, 5))
    PREPARED_AGAIN[change](layer)
    assert {name: value.data_ptr() for name, value in layer.named_buffers()} == before
    assert not any(value.is_inference() for value in layer.buffers())
