"""Batches that are fetched in advance: in the order in which they are drawn otherwise, one at a
time.
"""

import pytest
import torch
from tensordict import TensorDict
from yamame.training import Prefetcher


def noting(notes):
    """A transfer that copies at once, and notes when."""

    def begin(batch):
        notes.append(f"begin {int(batch['x'])}")

        def arrived():
            notes.append(f"arrived {int(batch['x'])}")
            return batch

        return arrived

    return begin


@pytest.fixture
def notes():
    return []


@pytest.fixture
def sample(notes):
    drawn = iter(range(100))

    def draw():
        number = next(drawn)
        notes.append(f"draw {number}")
        return TensorDict({"x": torch.tensor([number])}, [1])

    return draw


def test_what_is_fetched_is_taken_next_and_drawn_once(notes, sample):
    batches = Prefetcher(sample, "cpu", transfer=noting(notes))
    assert int(batches.take()["x"]) == 0
    batches.fetch()
    batches.fetch()
    assert notes == ["draw 0", "begin 0", "arrived 0", "draw 1", "begin 1"]
    assert [int(batches.take()["x"]) for _ in range(2)] == [1, 2]
    assert notes[5:] == ["arrived 1", "draw 2", "begin 2", "arrived 2"]


def test_on_a_cpu_nothing_is_drawn_in_advance(notes, sample):
    batches = Prefetcher(sample, "cpu")
    batches.fetch()
    assert notes == []
    assert int(batches.take()["x"]) == 0


def test_batches_come_on_the_device_asked_for(sample):
    assert Prefetcher(sample, "meta").take().device == torch.device("meta")


@pytest.mark.parametrize("transfer", [None, lambda batch: lambda: batch.to("meta")])
def test_a_batch_comes_with_the_number_of_its_segments(transfer):
    starts, real = torch.zeros(2, 3, 6, 1, dtype=torch.bool)
    starts[0, 2] = starts[1, 0] = starts[2, 3] = (
        True  # beside the first column; the last lies in padding
    )
    real[0], real[1, :4], real[2, 0] = True, True, True
    batch = TensorDict({"is_init": starts, "mask": real}, [3, 6])
    batches = Prefetcher(lambda: batch, "meta", transfer=transfer)
    batches.fetch()
    taken = batches.take()
    assert (taken.device, taken["num_segments"]) == (torch.device("meta"), 4)
    assert "num_segments" not in batch.keys()  # what was sampled stays as it is
    real[2, 3] = True
    assert batches.take()["num_segments"] == 5


@pytest.mark.gpu
def test_batches_fetched_behind_work_on_a_gpu_are_whole():
    generator = torch.Generator().manual_seed(0)
    drawn = []

    def draw():
        x = torch.rand(64, 500, 32, generator=generator)
        batch = TensorDict({"x": x, "nested": {"y": x.sum(-1)}}, [64])
        drawn.append(batch.clone())
        return batch

    batches, weight = Prefetcher(draw, "cuda"), torch.rand(4096, 4096, device="cuda")
    for number in range(20):
        batch = batches.take()
        assert batch.device.type == "cuda"
        used = batch.clone()
        for _ in range(20):
            weight = (weight @ weight).clamp(0, 1)  # the device is busy when the next is fetched
        batches.fetch()
        assert len(drawn) == number + 2
        assert (used.cpu() == drawn[number]).all()
        del batch, used
