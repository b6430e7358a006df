"""Updates that are not finite: evidence, skipped updates, an end."""

import json

import pytest
import torch
from tensordict import TensorDict
from yamame.training.guard import NonFiniteGuard

BATCH = TensorDict({"observation": torch.arange(6.0).view(2, 3), "next": {"reward": torch.ones(2, 1)}}, [2])
FINE = {"loss": torch.tensor(1.0), "grad_norm": torch.tensor(2.0, dtype=torch.float64)}
BAD = {**FINE, "loss": torch.tensor(float("nan"), requires_grad=True)}
STEEP = {**FINE, "grad_norm": torch.tensor(float("inf"))}


def test_a_finite_update_passes_and_writes_nothing(tmp_path):
    assert NonFiniteGuard(tmp_path).check(FINE, BATCH, step=1) is True
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("metrics", "numbers"), [(BAD, ("nan", "2.0")), (STEEP, ("1.0", "inf"))])
def test_a_non_finite_update_stores_batch_numbers_step_and_seed_and_asks_to_skip(tmp_path, metrics, numbers):
    torch.manual_seed(3)
    assert NonFiniteGuard(tmp_path).check(metrics, BATCH, step=7) is False
    path = tmp_path / "nonfinite" / "step-000000000007-1"
    assert (TensorDict.load_memmap(path / "batch") == BATCH).all()
    info = json.loads((path / "info.json").read_text())
    assert (info["step"], info["seed"]) == (7, 3)
    assert (info["loss"], info["grad_norm"]) == numbers
    assert not BATCH.is_memmap()


def test_only_refusals_in_a_row_end_the_run_and_the_message_names_the_first(tmp_path):
    guard = NonFiniteGuard(tmp_path, patience=2)
    for step in (1, 3):
        assert guard.check(BAD, BATCH, step=step) is False
        assert guard.check(FINE, BATCH, step=step + 1) is True
    assert guard.check(BAD, BATCH, step=5) is False
    with pytest.raises(
        FloatingPointError, match=r"2 times in a row, first with the batch in .*step-0+5-1; those"
    ):
        guard.check(BAD, BATCH, step=6)
    assert (tmp_path / "nonfinite" / "step-000000000006-2" / "batch").is_dir()


def test_evidence_of_refusals_in_a_row_is_kept_and_replaced_when_a_resumed_run_fails_again(tmp_path):
    for _ in range(2):
        guard = NonFiniteGuard(tmp_path)
        for _ in range(2):
            assert guard.check(BAD, BATCH, step=1) is False
        evidence = sorted(path.name for path in (tmp_path / "nonfinite").iterdir())
        assert evidence == ["step-000000000001-1", "step-000000000001-2"]


def test_without_a_directory_refusals_leave_no_files_and_end_the_run_all_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guard = NonFiniteGuard(patience=2)
    assert guard.check(BAD, BATCH, step=1) is False
    with pytest.raises(FloatingPointError, match="2 times in a row"):
        guard.check(BAD, BATCH, step=1)
    assert list(tmp_path.iterdir()) == []


def test_patience_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="patience must be at least 1, got 0"):
        NonFiniteGuard(tmp_path, patience=0)
