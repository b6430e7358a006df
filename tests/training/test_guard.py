"""Updates that are not finite: evidence, counts, lines, skipped updates, an end."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from yamame.files.checkpoint import Checkpointer
from yamame.training.guard import NonFiniteGuard, require_finite

BATCH = TensorDict(
    {"observation": torch.arange(6.0).view(2, 3), "next": {"reward": torch.ones(2, 1)}}, [2]
)
FINE = {"loss": torch.tensor(1.0), "grad_norm": torch.tensor(2.0, dtype=torch.float64)}
BAD = {**FINE, "loss": torch.tensor(float("nan"), requires_grad=True)}
STEEP = {**FINE, "grad_norm": torch.tensor(float("inf"))}


def refuse(guard, step=1, metrics=BAD):
    assert guard.accepts(metrics) is False
    guard.refuse(metrics, step=step, evidence={"update": {"batch": BATCH}})


def accept(guard, times=1):
    for _ in range(times):
        assert guard.accepts(FINE) is True


def bundles(path):
    return sorted(bundle.name for bundle in (path / "nonfinite").iterdir())


def test_a_finite_update_passes_and_writes_nothing(tmp_path):
    accept(NonFiniteGuard(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("metrics", "numbers"), [(BAD, "nan 2.0"), (STEEP, "1.0 inf")])
def test_a_bundle_is_a_checkpoint_with_batch_numbers_configuration_and_what_else_is_kept(
    tmp_path, metrics, numbers
):
    guard = NonFiniteGuard(tmp_path, config={"seed": 3})
    guard.kept = {"agent": nn.Linear(1, 1)}
    refuse(guard, 7, metrics)
    asked = dict.fromkeys(("agent", "update", "numbers"))
    loaded = Checkpointer(tmp_path / "nonfinite" / "step-000000000007-1").load(asked)
    assert (loaded.values["update"]["batch"] == BATCH).all()
    assert (loaded.step, loaded.config, loaded.values["agent"].keys()) == (
        7,
        {"seed": 3},
        {"weight", "bias"},
    )
    kept = loaded.values["numbers"]
    assert f"{kept['loss']} {kept['grad_norm']}" == numbers


def test_a_rank_deletes_no_evidence_of_another_which_may_be_writing_it(tmp_path, monkeypatch):
    number_of_rank = []
    monkeypatch.setattr("yamame.training.guard.rank", lambda: number_of_rank[-1])
    guards = [NonFiniteGuard(tmp_path, patience=100), NonFiniteGuard(tmp_path, patience=100)]
    for step in range(8):
        for number, guard in enumerate(guards):
            number_of_rank.append(number)
            refuse(guard, step)
            accept(guard)
    assert bundles(tmp_path) == [
        f"step-{step:012d}-1{end}" for step in (0, 4, 5, 6, 7) for end in ("", "-rank1")
    ]


def test_only_refusals_in_a_row_end_the_run_and_the_message_names_the_evidence(tmp_path):
    guard = NonFiniteGuard(tmp_path, patience=2)
    for step in (1, 3):
        refuse(guard, step)
        accept(guard)
    refuse(guard, 5)
    with pytest.raises(FloatingPointError, match=r"2 times in a row: loss nan .*step-0+6-2"):
        refuse(guard, 6)
    assert (tmp_path / "nonfinite" / "step-000000000006-2").is_dir()
    assert guard.num_refused == 4


@pytest.mark.parametrize(
    ("every", "share", "ends"), [(2, 0.5, 20), (3, 0.3, 30), (3, 0.5, None), (4, 0.5, None)]
)
def test_a_share_of_refusals_ends_the_run(every, share, ends):
    guard, steps = NonFiniteGuard(max_refused=share), range(1, 301 if ends is None else ends)
    for step in steps:
        if step % every:
            accept(guard)
        else:
            refuse(guard)
    if ends is not None:
        assert not guard.accepts(BAD)
        with pytest.raises(
            FloatingPointError, match=f"in {ends // every} of the last {ends} updates"
        ):
            guard.refuse(BAD, step=ends)


def test_only_the_last_hundred_updates_count():
    guard = NonFiniteGuard(max_refused=0.3)
    for _ in range(5):
        accept(guard, 100)
        for _ in range(29):
            refuse(guard)
            accept(guard)
    assert guard.num_refused == 5 * 29


def test_lines_are_written_when_the_number_of_refusals_has_doubled_or_fallen_to_a_quarter():
    lines = []
    guard = NonFiniteGuard(tell=lines.append, max_refused=0.9)
    accept(guard, 100)
    assert lines == []
    for _ in range(9):
        refuse(guard)
        accept(guard, 2)
    assert [line.split(" updates")[0] for line in lines] == [
        f"{n} of the last 100" for n in (1, 2, 4, 8)
    ]
    assert lines[-1].endswith("skipped: loss nan and grad_norm 2, 8 in all")
    accept(guard, 200)
    assert [line.split(" updates")[0] for line in lines[4:]] == [
        "2 of the last 100",
        "0 of the last 100",
    ]


def test_at_most_five_bundles_are_kept_the_first_and_the_latest(tmp_path):
    guard = NonFiniteGuard(tmp_path, max_refused=1.0)
    for step in range(9):
        refuse(guard, step)
        accept(guard)
    assert bundles(tmp_path) == [f"step-{step:012d}-1" for step in (0, 5, 6, 7, 8)]


def test_evidence_of_refusals_in_a_row_is_kept_and_replaced_when_a_resumed_run_fails_again(
    tmp_path,
):
    for _ in range(2):
        guard = NonFiniteGuard(tmp_path)
        for _ in range(2):
            refuse(guard)
        assert bundles(tmp_path) == ["step-000000000001-1", "step-000000000001-2"]


def test_a_restored_guard_goes_on_counting():
    guard, restored = NonFiniteGuard(), NonFiniteGuard()
    accept(guard, 20)
    for _ in range(2):
        refuse(guard)
    restored.load_state_dict(guard.state_dict())
    assert restored.num_refused == 2
    with pytest.raises(FloatingPointError, match="3 times in a row"):
        refuse(restored)


def test_without_a_directory_refusals_leave_no_files_and_end_the_run_all_the_same(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    guard = NonFiniteGuard(patience=2)
    refuse(guard)
    with pytest.raises(FloatingPointError, match="2 times in a row"):
        refuse(guard)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"), [("patience", 0), ("max_refused", 0.0), ("max_refused", 1.5)]
)
def test_numbers_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"NonFiniteGuard: {name} must be .* got {value}"):
        NonFiniteGuard(**{name: value})


def test_parameters_statistics_and_moments_of_the_optimizer_must_be_finite():
    net = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    components = {"net": net, "optimizer": optimizer, "note": float("nan")}
    require_finite(components)
    for tensor, name in (
        (net[0].weight, "net does not: 0.weight"),
        (net[1].running_var, "net does not: 1.running_var"),
        (optimizer.state[net[0].bias]["exp_avg"], "optimizer does not: exp_avg of parameter 1"),
    ):
        former = tensor.detach().clone()
        with torch.no_grad():
            tensor.view(-1)[0] = torch.inf
        with pytest.raises(FloatingPointError, match=name):
            require_finite(components)
        with torch.no_grad():
            tensor.copy_(former)
