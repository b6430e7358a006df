"""Timestep encoders in a lower precision, while their weights stay."""

import copy

import pytest
import torch
from tensordict import TensorDict
from yamame.timestep import MLPTimestepEncoder


def make(num_layers=2):
    torch.manual_seed(0)
    return MLPTimestepEncoder({"observation": 5}, hidden_size=16, out_size=8, num_layers=num_layers).eval()


def features(encoder):
    torch.manual_seed(1)
    with torch.no_grad():
        return encoder(TensorDict({"observation": torch.randn(4, 5)}, [4]))["features"]


@pytest.mark.parametrize("num_layers", [1, 3])
def test_products_in_bfloat16_are_near_and_features_stay_in_float32(num_layers):
    encoder = make(num_layers)
    exact = features(encoder)
    encoder.prepare(torch.bfloat16)
    found = features(encoder)
    assert found.dtype is torch.float32
    assert 2**-12 < (found - exact).norm() / exact.norm() < 2**-5


def test_in_the_precision_of_the_weights_nothing_changes():
    encoder = make()
    exact = features(encoder)
    encoder.prepare()
    assert torch.equal(features(encoder), exact)


@pytest.mark.parametrize(
    "change",
    [
        lambda encoder: encoder.train().eval(),
        lambda encoder: encoder.prepare(),
        lambda encoder: encoder.load_state_dict(encoder.state_dict()),
        lambda encoder: encoder.double().float(),
        copy.deepcopy,
    ],
)
def test_what_was_prepared_ends_with_the_weights(change):
    encoder = make()
    exact = features(encoder)
    encoder.prepare(torch.bfloat16)
    changed = change(encoder)
    encoder = changed if isinstance(changed, MLPTimestepEncoder) else encoder
    assert torch.equal(features(encoder), exact)


def test_training_is_not_prepared():
    encoder = make().train()
    encoder.prepare(torch.bfloat16)
    assert encoder._prepared is None
