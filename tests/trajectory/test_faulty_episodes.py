"""NaN, infinity and empty batches: no encoder lets them pass a start, or takes them in silence."""

from functools import cache

import pytest
import torch
from hydra import compose, initialize_config_dir
from tensordict import TensorDict
from torchrl.modules import set_recurrent_mode
from yamame import conf_dir
from yamame.checks import ArgumentError
from yamame.cli.nodes import instantiate
from yamame.trajectory import LinearRecurrentEncoder, TrajectoryKeys, segment_positions
from yamame.trajectory.adapters.torchrl_modules import TorchRLBackbone

ENCODERS = sorted(path.stem for path in (conf_dir() / "encoder").glob("*.yaml"))
FEATURES = 8
FIRST, FAULT, LAST = 4, 6, 9
"""Starts of the second and third episode of a row of 13 timesteps, and the fault in the second."""


@cache
def make(choice):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        node = compose("train", overrides=[f"encoder={choice}"]).encoder
    torch.manual_seed(0)
    return instantiate(node)(FEATURES).eval()


@pytest.fixture(params=ENCODERS)
def encoder(request, skip_if_missing):
    try:
        return make(request.param)
    except ValueError as error:
        skip_if_missing(str(error))
        raise


def packed():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 13, FEATURES, generator=generator)
    starts = torch.zeros(2, 13, 1, dtype=torch.bool)
    starts[:, 0] = starts[0, FIRST] = starts[0, LAST] = True
    return x, starts


def encoded(encoder, x, starts):
    batch = TensorDict({encoder.keys.features: x, encoder.keys.is_init: starts}, x.shape[:2])
    with set_recurrent_mode(True):
        return encoder(batch)[encoder.keys.context]


def learned(encoder, x, starts, *, counted):
    """Contexts, and the gradients of those that count by features and parameters."""
    x = x.clone().requires_grad_()
    context = encoded(encoder, x, starts)
    weights = [weight for weight in encoder.parameters() if weight.requires_grad]
    loss = context[counted].pow(3).sum()
    gradients = torch.autograd.grad(loss, [x, *weights], materialize_grads=True, allow_unused=True)
    return context.detach(), gradients


@pytest.mark.parametrize("fault", [torch.nan, -torch.inf])
def test_a_fault_spoils_the_rest_of_its_episode_alone(encoder, fault):
    x, starts = packed()
    counted = torch.ones(2, 13, dtype=torch.bool)
    counted[0, FIRST:LAST] = False
    expected, expected_gradients = learned(encoder, x, starts, counted=counted)
    faulty = x.clone()
    faulty[0, FAULT, 2] = fault
    found, gradients = learned(encoder, faulty, starts, counted=counted)

    spoilt = torch.zeros_like(counted)
    spoilt[0, FAULT:LAST] = True
    assert found[spoilt].isnan().all()
    torch.testing.assert_close(found[~spoilt], expected[~spoilt], atol=1e-5, rtol=1e-4)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, wanted, atol=1e-4, rtol=1e-3)
    alone = encoded(encoder, x[:1, LAST:], starts[:1, LAST:])
    torch.testing.assert_close(found[:1, LAST:], alone, atol=1e-4, rtol=1e-3)


def test_without_care_a_scan_lets_nan_pass():
    encoder = LinearRecurrentEncoder(FEATURES, d_model=8)
    x, starts = packed()
    x[0, FAULT] = torch.nan
    starts = starts.squeeze(-1)
    context = encoder.parallel(x, segment_positions(starts), starts)
    assert context[0, LAST:].isnan().all()
    backbone = TorchRLBackbone(encoder)
    context, _ = backbone(x, segment_positions(starts))
    assert context[0, LAST:].isfinite().all()


def test_nan_in_padding_spoils_nothing(encoder):
    x, starts = packed()
    mask = torch.ones(2, 13, 1, dtype=torch.bool)
    mask[0, LAST:] = False
    batch = TensorDict({"features": x, "is_init": starts, "mask": mask}, [2, 13])
    outputs = []
    for filling in (0.0, torch.nan):
        filled = batch.clone()
        filled["features"] = x.masked_fill(~mask, filling)
        with torch.no_grad(), set_recurrent_mode(True):
            outputs.append(encoder(filled)["context"][:, :LAST])
    assert torch.equal(*outputs)
    assert outputs[0].isfinite().all()


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0), (0,)])
def test_an_empty_batch_is_refused(encoder, shape):
    x, starts = torch.zeros(*shape, FEATURES), torch.ones(*shape, 1, dtype=torch.bool)
    batch = TensorDict({"features": x, "is_init": starts}, shape)
    with set_recurrent_mode(True), pytest.raises(ArgumentError, match=r"at least one sequence"):
        encoder(batch)
    if len(shape) == 1:
        with pytest.raises(ArgumentError, match="at least one env"):
            encoder(batch)
        with pytest.raises(ArgumentError, match="not 0"):
            encoder.step(x, encoder.init_memory(0), starts[:, 0])
    one = TensorDict({"features": x.new_zeros(1, 1, FEATURES)}, [1, 1])
    with torch.no_grad(), set_recurrent_mode(True):
        assert encoder(one)["context"].shape == (1, 1, encoder.out_features)


def test_a_step_of_no_env_is_refused_with_memory_in_the_tensordict():
    encoder = LinearRecurrentEncoder(FEATURES, d_model=8, keys=TrajectoryKeys(memory="memory"))
    starts = torch.ones(0, 1, dtype=torch.bool)
    step = TensorDict({"features": torch.zeros(0, FEATURES), "is_init": starts}, [0])
    with pytest.raises(ArgumentError, match="not 0"):
        encoder(step)
