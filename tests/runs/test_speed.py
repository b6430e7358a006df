"""Rates are those of the machine, and operations are counted as they are made."""

import time

import torch
from torch import nn
from torch.nn import functional as F
from yamame.runs.speed import Clock, Machine, counting_flops


def test_operations_of_a_layer_are_counted_forward_and_backward():
    layer, x = nn.Linear(8, 16), torch.randn(4, 8, requires_grad=True)
    with counting_flops() as count:
        out = layer(x)
        forward = count[0]
        out.sum().backward()
    assert forward == 2 * 4 * 8 * 16
    assert count[0] == 3 * forward


def test_causal_attention_is_counted_by_half():
    q, k, v = (torch.randn(2, 3, 32, 8, requires_grad=True) for _ in range(3))
    with counting_flops() as count:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        forward = count[0]
        out.sum().backward()
    products = 2 * (2 * 2 * 3 * 32 * 32 * 8)  # queries by keys, weights by values
    assert forward == products / 2
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


def test_calls_in_turn_are_timed_each_by_itself_and_given_what_is_made_for_it():
    clock, said, a = Clock(), [], torch.randn(300, 300)

    def given():
        said.append("given")
        a @ a  # is not timed
        return len(said)

    def little(number):
        said.append(f"little {number}")

    def much(number):
        said.append(f"much {number}")
        for _ in range(20):
            a @ a

    once, twenty = clock.in_turn(little, much, given=given, seconds=0.0, least=3)
    assert once * 20 < twenty
    assert all(word == "given" for word in said[::2])
    assert [int(word.split()[1]) for word in said[1::2]] == list(range(1, len(said), 2))
    # Once each beforehand; then the one that was last is first.
    turns = [word.split()[0] for word in said[1::2]]
    assert turns == ["little", "much", "much", "little", "little", "much", "much", "little"]


def test_rates_are_plausible_and_larger_work_takes_longer():
    machine = Machine("cpu", Clock())
    assert 1e8 < machine.product_rate(torch.float32, size=256) < 1e15
    assert 1e7 < machine.copy_rate(megabytes=4) < 1e14
