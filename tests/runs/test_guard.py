"""Non-finite losses: evidence, skipped updates, an end."""

import json

import pytest
import torch
from tensordict import TensorDict
from yamame.runs import NonFiniteGuard

BATCH = TensorDict({"observation": torch.arange(6.0).view(2, 3), "next": {"reward": torch.ones(2, 1)}}, [2])
NAN = torch.tensor(float("nan"))


def test_a_finite_loss_passes_and_writes_nothing(tmp_path):
    assert NonFiniteGuard(tmp_path).check(torch.tensor([1.0, 2.0]), BATCH, step=1, seed=0) is True
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("loss", [NAN, torch.tensor([0.0, float("inf")], requires_grad=True)])
def test_a_non_finite_loss_stores_batch_step_and_seed_and_asks_to_skip(tmp_path, loss):
    assert NonFiniteGuard(tmp_path).check(loss, BATCH, step=7, seed=3) is False
    path = tmp_path / "nonfinite" / "step-000000000007"
    assert (TensorDict.load_memmap(path / "batch") == BATCH).all()
    info = json.loads((path / "info.json").read_text())
    assert (info["step"], info["seed"]) == (7, 3)
    assert not BATCH.is_memmap()


def test_only_losses_in_a_row_end_the_run_and_the_message_names_the_evidence(tmp_path):
    guard = NonFiniteGuard(tmp_path, patience=2)
    for step in (1, 3):
        assert guard.check(NAN, BATCH, step=step, seed=0) is False
        assert guard.check(torch.tensor(1.0), BATCH, step=step + 1, seed=0) is True
    assert guard.check(NAN, BATCH, step=5, seed=0) is False
    with pytest.raises(FloatingPointError, match=r"2 times in a row; the batch of step 6 is in .*step-0+6$"):
        guard.check(NAN, BATCH, step=6, seed=0)
    assert (tmp_path / "nonfinite" / "step-000000000006" / "batch").is_dir()


def test_the_same_step_may_fail_again(tmp_path):
    guard = NonFiniteGuard(tmp_path)
    for _ in range(2):
        assert guard.check(NAN, BATCH, step=1, seed=0) is False
    assert len(list((tmp_path / "nonfinite").iterdir())) == 1


def test_patience_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="patience must be at least 1, got 0"):
        NonFiniteGuard(tmp_path, patience=0)
