"""Tensors that never change are copied to a device once."""

import copy
import pickle

import torch
from yamame.execution.capturing import Constant


def test_a_device_gets_one_copy_and_pickles_none():
    value, meta = torch.arange(3.0), torch.device("meta")
    constant = Constant(value)
    assert constant.on(value.device) is value
    assert constant.on(meta).device == meta
    assert constant.on(meta) is constant.on(meta)
    for other in (copy.deepcopy(constant), pickle.loads(pickle.dumps(constant))):
        assert list(other._copies) == [value.device]
        assert torch.equal(other.on(value.device), value)
        assert other.on(meta) is not constant.on(meta)


def test_a_copy_made_while_acting_can_be_used_in_learning():
    constant = Constant(torch.arange(3.0))
    with torch.inference_mode():
        assert not constant.on(torch.device("meta")).is_inference()
