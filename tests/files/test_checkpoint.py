"""Checkpoints: exact, rotating, and loadable however the process ends."""

import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from yamame.checks import UsageError
from yamame.files.atomic import TEMPORARY_SUFFIX
from yamame.files.checkpoint import Checkpointer
from yamame.files.codec import decode, encode
from yamame.training.seeding import GlobalRNGState, seed_everything


def small_training(seed=0):
    seed_everything(seed)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
    )
    return {"net": net, "optimizer": torch.optim.AdamW(net.parameters(), lr=1e-2), "rng": GlobalRNGState()}


def train(parts, updates):
    losses = []
    for _ in range(updates):
        scale = random.random() + np.random.rand()
        loss = (parts["net"](torch.randn(16, 3)) * scale).square().mean()
        parts["optimizer"].zero_grad()
        loss.backward()
        parts["optimizer"].step()
        losses.append(loss.item())
    return losses


def test_a_restored_training_continues_bit_for_bit(tmp_path):
    parts = small_training()
    train(parts, 5)
    Checkpointer(tmp_path).save(parts, step=5)
    expected = train(parts, 5)
    other = small_training(seed=1)
    assert train(other, 3) != expected[:3]
    Checkpointer(tmp_path).load(other)
    assert train(other, 5) == expected
    for mine, theirs in zip(
        parts["net"].state_dict().values(), other["net"].state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_without_the_random_state_the_continuation_differs(tmp_path):
    parts = small_training()
    Checkpointer(tmp_path).save(parts, step=0)
    expected = train(parts, 5)
    other = small_training(seed=1)
    Checkpointer(tmp_path).load({name: other[name] for name in ("net", "optimizer")})
    assert train(other, 5) != expected


def test_plain_data_comes_back_equal_and_of_the_same_types(tmp_path):
    data = {
        "nested": [1, (2.5, None, True), {"name": "a", 3: b"bytes"}],
        "special": (float("inf"), torch.Size([2]), torch.float16, {1, 2}, 2j),
        "tensor": torch.arange(6).view(2, 3).t(),
        "numpy": (np.arange(3.0), np.float32(0.1), np.array([["a", "b"]])),
        "tensordict": TensorDict({"a": torch.ones(2, 3), "deep": {"b": torch.zeros(2)}}, [2]),
    }
    Checkpointer(tmp_path).save({"data": data}, step=1)
    loaded = Checkpointer(tmp_path).load({"data": None}).values["data"]
    assert loaded["nested"] == data["nested"]
    assert loaded["special"] == data["special"]
    assert torch.equal(loaded["tensor"], data["tensor"])
    for mine, theirs in zip(data["numpy"], loaded["numpy"], strict=True):
        assert type(mine) is type(theirs)
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)
    assert (loaded["tensordict"] == data["tensordict"]).all()
    assert loaded["tensordict"].batch_size == data["tensordict"].batch_size


def test_a_tensordict_is_restored_in_place_and_keeps_its_values(tmp_path):
    state = TensorDict({"count": torch.tensor([3, 4])}, [2])
    Checkpointer(tmp_path).save({"state": state}, step=1)
    state["count"].zero_()
    Checkpointer(tmp_path).load({"state": state})
    assert state["count"].tolist() == [3, 4]


def test_what_cannot_be_restored_is_refused_by_name_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match=r"agent\['parts'\]\[1\] must be tensors or plain data, got object"):
        Checkpointer(tmp_path / "new").save({"agent": {"parts": [1, object()]}}, step=1)
    assert not (tmp_path / "new").exists()


def test_a_view_of_a_large_storage_is_saved_alone():
    large = torch.zeros(1000)
    assert encode(large, "x").untyped_storage().nbytes() == 4000
    small = encode(large[:2], "x")
    assert small.untyped_storage().nbytes() == 8
    assert decode(small).tolist() == [0.0, 0.0]


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpointer = Checkpointer(tmp_path, keep_last=2)
    assert checkpointer.last is None
    assert checkpointer.best is None
    for step, metric in enumerate([0.2, 0.9, None, 0.5, float("nan"), 0.1]):
        checkpointer.save({"step": step}, step=step, metric=metric)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [
        f"step-{step:012d}.pt" for step in (1, 4, 5)
    ]
    for which, step, metric in (("last", 5, 0.1), ("best", 1, 0.9)):
        loaded = Checkpointer(tmp_path).load({"step": None}, which=which)
        assert (loaded.step, loaded.values["step"], loaded.metric) == (step, step, metric)


def test_missing_components_files_and_checkpoints_are_named(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    with pytest.raises(UsageError, match="found no last in"):
        checkpointer.load({})
    path = checkpointer.save({"net": 1}, step=1)
    with pytest.raises(UsageError, match="found no best in"):
        checkpointer.load({}, which="best")
    with pytest.raises(UsageError, match="must hold critic, it holds net"):
        checkpointer.load({"net": None, "critic": None})
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UsageError, match=f"{path.name} must be a checkpoint"):
        checkpointer.load({"net": None})


def test_the_configuration_travels_with_the_checkpoint(tmp_path):
    config = {"seed": 1, "agent": {"gammas": [0.9, 0.99]}}
    Checkpointer(tmp_path, config=config).save({}, step=1)
    assert Checkpointer(tmp_path).read_config() == config
    assert Checkpointer(tmp_path).load({}).config == config


def test_a_checkpoint_that_holds_code_is_not_read(tmp_path):
    torch.save({"components": {"a": os.system}}, tmp_path / "step-000000000001.pt")
    with pytest.raises(UsageError, match="must be a checkpoint, it cannot be read"):
        Checkpointer(tmp_path).load({"a": None})


def test_keep_last_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="keep_last must be at least 1, got 0"):
        Checkpointer(tmp_path, keep_last=0)


KILLER = """
import os, random, signal, sys, time, torch
from pathlib import Path
from yamame.files.checkpoint import Checkpointer

def save_until_killed(folder, output):
    torch.set_num_threads(1)
    checkpointer = Checkpointer(folder, keep_last=2)
    for step in range(1, 100_000):
        data = {"x": torch.full((200_000,), step), "step": step}
        checkpointer.save(data, step=step, metric=-step % 7)
        os.write(output, f"{step}\\n".encode())

pause = random.Random(0)
for attempt in range(10):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        save_until_killed(Path(sys.argv[1]) / str(attempt), writer)
    os.close(writer)
    with os.fdopen(reader) as lines:
        first = [lines.readline() for _ in range(3)]
        time.sleep(pause.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print([*first, *lines][-1].strip())
"""


def test_killing_the_process_at_any_moment_leaves_a_complete_checkpoint(tmp_path):
    command = [sys.executable, "-c", KILLER, str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, text=True, check=True)
    partial = 0
    for attempt, done in enumerate(map(int, killed.stdout.split())):
        folder = tmp_path / str(attempt)
        partial += len(list(folder.glob(f"*{TEMPORARY_SUFFIX}")))
        for which in ("last", "best"):
            loaded = Checkpointer(folder).load({"x": None, "step": None}, which=which)
            assert loaded.values["step"] == loaded.step
            assert torch.equal(loaded.values["x"], torch.full((200_000,), loaded.step))
        # What was reported as saved is there; one more may have become complete before it was reported.
        assert Checkpointer(folder).load({"step": None}).step in (done, done + 1)
        Checkpointer(folder).save({"x": 0, "step": 0}, step=10**6)
        assert not list(folder.glob(f"*{TEMPORARY_SUFFIX}"))
    assert attempt == 9
    assert partial, "no attempt was killed during a write, so this test has shown nothing"
