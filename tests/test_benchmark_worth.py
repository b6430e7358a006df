"""What has no setting is measured beside a plain way that computes the same, or not at all."""

import argparse
import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
import yamame.trajectory.dropout
from yamame.heads.mlp import EnsembleMLP
from yamame.replay import GoalFrequencies
from yamame.trajectory import SigmaReparamLinear

TOOLS = Path(__file__).parents[1] / "tools"
SMALL = [
    *("timestep_encoder.hidden_size=16", "timestep_encoder.out_size=16", "agent.critic.hidden_size=16"),
    *("encoder.num_layers=1", "schedule.batch_size=2", "schedule.num_envs=3"),
]
TRANSFORMER = [*SMALL, "encoder.d_model=16", "encoder.num_heads=2"]
LENGTHS = [129, 1600]
"""The shorter is enough for a function in C to draw masks, the longer for several blocks of rows."""
NAMES = [
    "2 rows, weights prepared once",
    "2 rows, matrices column by column",
    "130 rows, weights prepared once",
    "2 rows, matrices laid out once for bfloat16",
    "130 rows, matrices laid out once for bfloat16",
    "2 x 1600, feed-forward part in blocks of rows",
    "2 x 129, dropout with masks drawn in C",
    "2 x 129, 4 critics in one product",
    "2 x 1600, 4 critics in one product",
    "optimizer in one pass, beside foreach",
    "optimizer in one pass, beside a loop over parameters",
    "2 trajectories read as windows of one view",
    "2 trajectories relabelled in place",
    "goals of 3 new trajectories counted",
    "goals of 2 trajectories completed, in C",
]


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        module = importlib.import_module("benchmark")
        patch.setattr(module.speed.Clock, "in_turn", quickly(module.speed.Clock.in_turn))
        yield module
    for name in [name for name in sys.modules if name.startswith("benchmark")]:
        del sys.modules[name]


def quickly(in_turn):
    return lambda self, *calls, **given: in_turn(self, *calls, seconds=0.0, least=1, **given)


@pytest.fixture(scope="module")
def subject(benchmark):
    return benchmark.Subject(TRANSFORMER, "cpu")


@pytest.fixture(scope="module")
def worth(benchmark):
    return importlib.import_module("benchmark_worth")


def rows_of(benchmark, subject):
    return list(benchmark.worth_parts(subject, benchmark.speed.Clock(), [2, 130], LENGTHS))


def pairs_of(worth, subject):
    yield from worth.acting_pairs(subject, [2, 130])
    yield from worth.block_pairs(subject, 1600)
    yield from worth.mask_pairs(subject, 129)
    yield from worth.critic_pairs(subject, LENGTHS)
    yield from worth.optimizer_pairs(subject)
    yield from worth.replay_pairs(subject)


def test_every_row_has_a_time_and_tells_the_plain_one(benchmark, subject):
    rows = rows_of(benchmark, subject)
    assert [name for name, *_ in rows] == NAMES
    for _, _, seconds, limit, note in rows:
        assert seconds > 0
        assert limit is None
        ratio, _, plain, unit, *_ = note.split()
        assert unit == "ms"
        assert float(ratio) == pytest.approx(seconds * 1e3 / float(plain), abs=0.01, rel=0.01)


def test_other_agents_have_the_rows_of_what_they_are_made_of(benchmark):
    overrides = ["env=wind", "encoder=gru", *SMALL, "encoder.hidden_size=16", "optimizer.fused=false"]
    names = [name for name, *_ in rows_of(benchmark, benchmark.Subject(overrides, "cpu"))]
    of_others = ("feed-forward", "dropout", "optimizer", "relabelled", "goals")
    assert names == [name for name in NAMES if not any(part in name for part in of_others)]


def test_a_revision_from_before_an_optimisation_has_no_row_of_it(benchmark, subject, monkeypatch):
    monkeypatch.setitem(sys.modules, "yamame.trajectory.dropout", None)
    names = [name for name, *_ in rows_of(benchmark, subject)]
    assert names == [name for name in NAMES if "dropout" not in name]


def test_a_row_is_refused_whichever_number_of_a_way_is_another(worth, subject):
    tensors = sys.modules["benchmark_pair"]._tensors
    count = 0
    for pair in pairs_of(worth, subject):
        for index in range(len(list(tensors(pair.plain(pair.given()))))):

            def changed(given, pair=pair, index=index):
                found = [part.clone() for part in tensors(pair.plain(given))]
                one = found[index].view(-1)[-1:]
                one.copy_(~one if one.dtype is torch.bool else one + 1 + found[index].abs().max() / 10)
                return found

            with pytest.raises(ValueError, match=f"^{pair.name}: both ways must compute the same numbers"):
                worth.measured(dataclasses.replace(pair, plain=changed), clock=None)
        count += 1
    assert count == len(NAMES)


@pytest.mark.parametrize("other", [[], [torch.ones(3)] * 2, torch.ones(3).double(), torch.ones(1, 3)])
def test_a_row_is_refused_where_numbers_are_missing_or_of_another_kind(worth, other):
    pair = worth.Pair("sum", "call", lambda _: torch.ones(3), lambda _: other, "by hand", tolerance=0.1)
    with pytest.raises(ValueError, match=r"sum: both ways must compute .*\(by hand\)"):
        worth.measured(pair, clock=None)


def test_a_row_is_refused_where_a_number_is_none(worth):
    nan = torch.tensor([torch.nan])
    pair = worth.Pair("sum", "call", lambda _: nan, lambda _: nan, "by hand", tolerance=0.1)
    with pytest.raises(ValueError, match="sum: both ways"):
        worth.measured(pair, clock=None)


def spoil_masks(monkeypatch):
    mask = yamame.trajectory.dropout._mask
    monkeypatch.setattr(yamame.trajectory.dropout, "_mask", lambda *args: mask(*args).roll(1))


def spoil_critics(monkeypatch):
    forward = EnsembleMLP.forward
    monkeypatch.setattr(EnsembleMLP, "forward", lambda self, hidden: forward(self, hidden).flip(0))


def spoil_counts(monkeypatch):
    update = GoalFrequencies.update

    def forgetful(self, *trajectories):
        known = len(self)
        update(self, *trajectories)
        self.timesteps[:known] -= 1

    monkeypatch.setattr(GoalFrequencies, "update", forgetful)


def spoil_weights(monkeypatch):
    weight = SigmaReparamLinear.effective_weight
    monkeypatch.setattr(SigmaReparamLinear, "effective_weight", lambda self: 1.01 * weight(self))


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (spoil_masks, "2 x 129, dropout with masks drawn in C"),
        (spoil_critics, "2 x 129, 4 critics in one product"),
        (spoil_counts, "goals of 3 new trajectories counted"),
        (spoil_weights, "2 rows, weights prepared once"),
    ],
)
def test_a_row_is_refused_where_the_project_is_wrong(worth, subject, monkeypatch, spoil, name):
    spoil(monkeypatch)
    pair = next(pair for pair in pairs_of(worth, subject) if pair.name == name)
    with pytest.raises(ValueError, match=f"{name}: both ways"):
        worth.measured(pair, clock=None)


def test_the_section_is_measured_by_default_and_told_as_json(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "child", lambda options, *arguments: (0.5, 1.0))
    assert "worth" in benchmark.SECTIONS
    options = argparse.Namespace(
        device="cpu", sections=["worth"], overrides=TRANSFORMER, rows=[2, 130], lengths=LENGTHS
    )
    rows = [row for row in benchmark.measure(options) if row.section == "worth"]
    told = json.loads(json.dumps([dataclasses.asdict(row) for row in rows]))
    size = benchmark.Subject(TRANSFORMER, "cpu").cfg.schedule.batch_size
    assert [row["name"] for row in told] == [*NAMES, f"{size} x {max(LENGTHS)}, freed memory kept"]


def test_a_row_is_told_beside_that_of_its_name(benchmark, capsys):
    rows = [benchmark.Row("worth", name, "call", 2.0) for name in ("new", "kept")]
    benchmark.show(rows, [benchmark.Row("worth", "kept", "call", 6.0)])
    new, kept = capsys.readouterr().out.splitlines()[2:]
    assert new == "| worth | new | 2 s / call |  |  |  |  |"
    assert kept == "| worth | kept | 2 s / call |  |  | 6 s | 3.00 |"
