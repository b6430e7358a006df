"""Batches have few shapes: with the multiples of hardware=gpu almost every update is replayed, and
little is padding.

The lengths are those of trajectories that were sampled from 256 episodes of each environment,
relabelled and cut as its configuration says: ``tools/benchmark.py shapes`` samples so. In what is
solved, the shortest way is taken nine times of ten.
"""

import json
import random
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import nn
from yamame import conf_dir
from yamame.execution.recorded_updates import RecordedUpdates
from yamame.replay import SequencePacking

RECORDED = json.loads(Path(__file__).with_name("lengths.json").read_text())
NUM_UPDATES, BATCH_SIZE = 600, 16


class Counting:
    """Records nothing, and counts what is replayed."""

    def __init__(self):
        self.replayed = 0

    def warm(self, function):
        return function()

    def wait(self):
        pass

    def record(self, function, *, reads):
        def replay():
            self.replayed += 1

        return replay, function()


def shares(name, **multiples):
    """How many of the updates are replayed, and how much of their batches is padding."""
    generator, lengths = random.Random(0), RECORDED[name]["lengths"]
    packing = SequencePacking(longest=RECORDED[name]["longest"], **multiples)
    recorder, norm = Counting(), {"grad_norm": torch.zeros(())}
    parts = {
        "loss": nn.Module(),
        "optimizer": torch.optim.AdamW([torch.zeros(1)]),
        "recorder": recorder,
    }
    updates, cells, real = RecordedUpdates(lambda batch: norm, lambda norm: None, **parts), 0, 0
    for _ in range(NUM_UPDATES):
        chosen = generator.choices(
            [int(length) for length in lengths], lengths.values(), k=BATCH_SIZE
        )
        _, *shape = packing.plan(chosen)
        gradients, step = updates.halves(
            TensorDict({"x": torch.empty(shape, device="meta")}, shape)
        )
        step(gradients(TensorDict({"x": torch.empty(shape, device="meta")}, shape))["grad_norm"])
        cells, real = cells + shape[0] * shape[1], real + sum(chosen)
    return recorder.replayed / 2 / NUM_UPDATES, 1 - real / cells  # two halves of an update


@pytest.mark.parametrize("name", RECORDED)
def test_with_the_multiples_for_a_gpu_nine_of_ten_updates_are_replayed(name):
    multiples = OmegaConf.load(conf_dir() / "hardware" / "gpu.yaml").packing
    replayed, padding = shares(name, **multiples)
    assert replayed >= 0.9
    assert padding < 0.2


@pytest.mark.parametrize("name", ["maze, solved", "lake, random actions"])
def test_without_multiples_most_updates_are_not(name):
    replayed, _ = shares(name)
    assert replayed < 0.5


def test_without_the_longest_length_a_short_environment_is_mostly_padding(monkeypatch):
    monkeypatch.setitem(RECORDED["T-Maze"], "longest", None)
    _, padding = shares("T-Maze", length_multiple=64)
    assert padding > 0.4
