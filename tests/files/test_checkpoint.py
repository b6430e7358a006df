"""Checkpoints: exact, rotating, and loadable however the process ends."""

import os
import random
import resource

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
    return {
        "net": net,
        "optimizer": torch.optim.AdamW(net.parameters(), lr=1e-2),
        "rng": GlobalRNGState(),
    }


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
    with pytest.raises(
        TypeError, match=r"agent\['parts'\]\[1\] must be tensors or plain data, got object"
    ):
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


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def what_is_read(path) -> str:
    """All that a checkpoint says, as text; nothing if it is refused in one line."""
    message = ""
    try:
        loaded = Checkpointer(path.parent).load({"net": None, "note": None}, which=path)
    except UsageError as error:
        message = str(error)
    assert "\n" not in message
    return "" if message else f"{loaded!r} {loaded.values}"


def test_a_checkpoint_of_which_any_bit_is_flipped_is_refused_or_the_same(tmp_path):
    path = Checkpointer(tmp_path, config={"seed": 1}).save(
        {"net": torch.arange(40.0), "note": {"level": 3}}, step=1
    )
    data, whole = path.read_bytes(), what_is_read(path)
    seen = set()
    every = int(os.environ.get("YAMAME_EVERY_BIT", 97))  # 1: all of them
    for bit in range(0, 8 * len(data), every):
        path.write_bytes(flipped(data, bit))
        seen.add(what_is_read(path))
    assert seen == {"", whole}
    for length in range(0, len(data), 101):
        path.write_bytes(data[:length])
        assert what_is_read(path) == ""
    torch.save(torch.load(path.write_bytes(data) and path, weights_only=True), path)
    assert what_is_read(path) == whole  # it may be written by torch alone


def test_without_comparing_checksums_a_flipped_bit_would_be_another_parameter(
    tmp_path, monkeypatch
):
    path = Checkpointer(tmp_path).save({"net": torch.arange(40.0), "note": 1}, step=1)
    data, whole = path.read_bytes(), what_is_read(path)
    path.write_bytes(flipped(data, 8 * (data.index(torch.arange(40.0).numpy().tobytes()) + 50)))
    assert what_is_read(path) == ""
    monkeypatch.setattr("yamame.files.checkpoint._check_sums", lambda file: None)
    assert what_is_read(path) not in ("", whole)


def test_the_last_one_that_can_be_restored_is_loaded_and_those_after_it_are_told_and_set_aside(
    tmp_path, capsys
):
    checkpointer = Checkpointer(tmp_path, keep_last=3, config={"seed": 1})
    files = [
        checkpointer.save({"net": torch.full((3,), step)}, step=step, metric=step)
        for step in range(3)
    ]
    files[1].write_bytes(files[1].read_bytes()[:-100])
    files[2].write_bytes(flipped(files[2].read_bytes(), 4000))
    again = Checkpointer(tmp_path, keep_last=3)
    assert again.read_config() == {"seed": 1}
    with pytest.raises(
        UsageError, match=r"step-000000000001\.pt must be a checkpoint, it cannot be read"
    ):
        _ = again.best
    assert again.load({"net": None}).step == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("; ")[2] for line in lines] == [
        "continuing from step-000000000001.pt",
        "continuing from step-000000000000.pt",
    ]
    assert again.last == again.best == files[0]
    assert sorted(path.name for path in tmp_path.glob("damaged-*")) == [
        f"damaged-{file.name}" for file in files[1:]
    ]


def test_a_damaged_checkpoint_is_set_aside_when_others_are_pruned(tmp_path, capsys):
    Checkpointer(tmp_path).save({"net": 1}, step=1, metric=9)
    (tmp_path / "step-000000000001.pt").write_bytes(b"")
    best = Checkpointer(tmp_path).save({"net": 2}, step=2, metric=3)
    assert Checkpointer(tmp_path).best == best
    assert capsys.readouterr().err.endswith("File is not a zip file; it is set aside\n")


def test_when_no_checkpoint_can_be_restored_none_is_touched(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    files = [checkpointer.save({"net": 1}, step=step) for step in (1, 2)]
    for missing, text in (
        ({"net": 1, "critic": None}, "must hold critic"),
        ({"net": torch.nn.ReLU()}, "net must be"),
    ):
        with pytest.raises(UsageError, match=f"{text}.*none before it is left: the file is intact"):
            Checkpointer(tmp_path).load(missing)
    for file in files:
        file.write_bytes(b"PK")
    for read in (
        Checkpointer(tmp_path).read_config,
        lambda: Checkpointer(tmp_path).load({"net": None}),
    ):
        with pytest.raises(UsageError, match="none before it is left: restore a checkpoint"):
            read()
    assert sorted(tmp_path.iterdir()) == files


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_the_checkpoint_before(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save({"net": torch.zeros(10)}, step=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(OSError, match=r"File too large: '.*step-000000000002\.pt'"):
            checkpointer.save({"net": torch.zeros(100_000)}, step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001.pt"]
    assert Checkpointer(tmp_path).load({"net": None}).step == 1


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


def test_killing_the_process_at_any_moment_leaves_a_complete_checkpoint(run_forked, tmp_path):
    killed = run_forked(KILLER, str(tmp_path), cwd=tmp_path)
    assert killed.returncode == 0, killed.stderr
    partial = 0
    for attempt, done in enumerate(map(int, killed.stdout.split())):
        folder = tmp_path / str(attempt)
        partial += len(list(folder.glob(f"*{TEMPORARY_SUFFIX}")))
        for which in ("last", "best"):
            loaded = Checkpointer(folder).load({"x": None, "step": None}, which=which)
            assert loaded.values["step"] == loaded.step
            assert torch.equal(loaded.values["x"], torch.full((200_000,), loaded.step))
        # What was reported as saved is there; one more may have become complete before it was
        # reported.
        assert Checkpointer(folder).load({"step": None}).step in (done, done + 1)
        Checkpointer(folder).save({"x": 0, "step": 0}, step=10**6)
        assert not list(folder.glob(f"*{TEMPORARY_SUFFIX}"))
    assert attempt == 9
    assert partial, "no attempt was killed during a write, so this test has shown nothing"
