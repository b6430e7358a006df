"""Rates are those of the machine, and operations are counted as they are made."""

import importlib.util
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

_SPEC = importlib.util.spec_from_file_location(
    "speed", Path(__file__).parents[1] / "tools" / "speed.py"
)
speed = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(speed)
Clock, Machine, counting_flops = speed.Clock, speed.Machine, speed.counting_flops


def test_operations_of_a_layer_are_counted_forward_and_backward():
    layer, x = nn.Linear(8, 16), torch.randn(4, 8, requires_grad=True)
    with counting_flops() as count:
        out = layer(x)
        forward = count[0]
        out.sum().backward()
    assert forward == 2 * 4 * 8 * 16
    assert count[0] == 3 * forward


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_counted_forward_and_backward_and_causal_attention_by_half(causal):
    q = torch.randn(2, 3, 32, 8, requires_grad=True)
    k, v = (torch.randn(2, 3, 32 if causal else 40, 8, requires_grad=True) for _ in range(2))
    with counting_flops() as count:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        forward = count[0]
        out.sum().backward()
    products = 2 * (2 * 2 * 3 * 32 * k.shape[2] * 8)  # queries by keys, weights by values
    assert forward == (products / 2 if causal else products)
    assert count[0] == forward + 2.5 * forward  # five products instead of two


def test_nothing_is_counted_outside():
    with counting_flops() as count:
        pass
    torch.ones(4, 4) @ torch.ones(4, 4)
    assert count == [0.0]


def test_the_clock_counts_work_and_not_waiting():
    clock = Clock()
    waiting = clock.time(lambda: time.sleep(0.02), seconds=0.0)
    a = torch.randn(300, 300)
    little = clock.time(lambda: a @ a, seconds=0.05)
    much = clock.time(lambda: [a @ a for _ in range(20)], seconds=0.05)
    assert waiting < 0.01
    assert much > 4 * little


def test_rates_are_plausible_and_larger_work_takes_longer():
    machine = Machine("cpu", Clock())
    assert 1e8 < machine.product_rate(torch.float32, size=256) < 1e15
    assert 1e7 < machine.copy_rate(megabytes=4) < 1e14
