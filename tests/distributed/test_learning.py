"""Two processes with half a batch each learn what one learns from the whole."""

import importlib.util
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from yamame import distributed
from yamame.checks import UsageError

PROGRAM = Path(__file__).with_name("learn.py")
BROKEN, EMPTY = (
    "transformer, maze: a reward of one rank is no number",
    "transformer, maze: a share is empty",
)


def load():
    spec = importlib.util.spec_from_file_location("learn", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


RANKS = """
import os, runpy, sys

sys.argv.pop(0)
children = []
for rank in range(int(os.environ["WORLD_SIZE"])):
    children.append(os.fork())
    if children[-1] == 0:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        runpy.run_path(sys.argv[0], run_name="__main__")
        os._exit(0)
assert {os.waitpid(child, 0)[1] for child in children} == {0}
"""


def learn_both_ways(
    run_forked: Callable, folder: Path, num: int, cases: list[str]
) -> SimpleNamespace:
    """What one process and what each of two got from the same batches, by case."""
    program = load()
    data = {case: program.batches(program.CASES[case], num) for case in cases}
    whole = data["transformer, maze"][0]
    broken, empty = whole.clone(), whole.clone()
    broken["next", "reward"][0, 0] = torch.nan
    empty["mask"][1::2] = False
    data |= {BROKEN: [whole, broken, whole], EMPTY: [empty]}
    torch.save(data, folder / "batches.pt")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for env in ({"WORLD_SIZE": "1"}, {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "test", **place}):
        done = run_forked(RANKS, str(PROGRAM), str(folder), cwd=folder, **env)
        assert done.returncode == 0, done.stderr
    alone, *both = (torch.load(folder / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
    return SimpleNamespace(alone=alone, both=both, folder=folder, cases=cases)


FEW = ["transformer, maze", "gru, box"]
"""Every encoder and every kind of action."""


@pytest.fixture(scope="module", params=[3, pytest.param(50, marks=pytest.mark.slow)])
def learned(request, run_forked, tmp_path_factory):
    cases = FEW if request.param == 3 else list(load().CASES)
    return learn_both_ways(run_forked, tmp_path_factory.mktemp("learned"), request.param, cases)


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The norm of the difference of gradients, in units of the first one's."""
    assert one.keys() == other.keys()
    squares = [(one[name] - other[name]).double().square().sum() for name in one]
    return float(
        (sum(squares) / sum(value.double().square().sum() for value in one.values())).sqrt()
    )


def test_gradients_are_those_of_the_whole_batch(learned):
    for case in [*learned.cases, EMPTY]:
        pairs = zip(learned.alone[case], learned.both[0][case], strict=True)
        off = sorted(difference(one["gradients"], two["gradients"]) for one, two in pairs)
        print(f"{case}: {len(off)} updates, median {off[len(off) // 2]:.1e}, largest {off[-1]:.1e}")
        assert off[-1] < 1e-12  # sums of float64 in another order


def test_gradients_of_other_batches_are_others(learned):
    for case in learned.cases:
        first, second, *_ = (told["gradients"] for told in learned.alone[case])
        assert difference(first, second) > 0.01


def test_metrics_are_those_of_the_whole_batch(learned):
    for case in learned.cases:
        for one, two in zip(learned.alone[case], learned.both[0][case], strict=True):
            assert one["metrics"].keys() == two["metrics"].keys()
            for name, value in one["metrics"].items():
                assert float(two["metrics"][name]) == pytest.approx(
                    float(value), rel=1e-9, abs=1e-12
                ), name


def test_the_loss_without_an_update_is_that_of_the_whole_batch_on_both_ranks(learned):
    for case in learned.cases:
        whole, one, other = (told[case][0]["evaluated"] for told in [learned.alone, *learned.both])
        assert "loss_critic" in whole
        assert one == other
        for name, value in whole.items():
            expected = pytest.approx(float(value), rel=1e-9, abs=1e-12)
            assert float(one[name]) == expected, name


def test_both_ranks_hold_the_same_state(learned):
    for case, told in learned.both[0].items():
        for one, other in zip(told, learned.both[1][case], strict=True):
            assert one["state"].keys() == other["state"].keys()
            assert all(
                torch.equal(value, other["state"][name]) for name, value in one["state"].items()
            )
            assert one["metrics"] == other["metrics"]


def test_an_update_that_one_rank_refuses_is_refused_by_all_and_evidence_is_kept_where_it_is(
    learned,
):
    before = learned.alone[BROKEN][0]["state"]
    for told in [learned.alone, *learned.both]:
        _, refused, after = told[BROKEN]
        assert refused["metrics"] == {}
        assert all(torch.equal(value, refused["state"][name]) for name, value in before.items())
        assert after["metrics"]
    (bundle,) = (learned.folder / "2" / BROKEN / "nonfinite").iterdir()
    assert bundle.name == "step-000000000001-1"


def test_what_cannot_be_shared_out_is_refused(monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    assert distributed.shard(8, "schedule.batch_size") == 4
    with pytest.raises(
        UsageError, match=r"schedule\.batch_size: must be a multiple of the 2 processes .*, got 7"
    ):
        distributed.shard(7, "schedule.batch_size")


def test_one_process_gives_back_what_it_is_given():
    value = torch.tensor(3.0)
    assert distributed.all_reduce(value)[0] is value
    assert distributed.mean_count(value) is value
    assert distributed.all_gather([1]) == [[1]]
    assert distributed.broadcast("yes") == distributed.on_rank0(lambda: "yes") == "yes"
    assert [distributed.any_rank(flag) for flag in (True, False)] == [True, False]
    assert distributed.rank_dir(Path("replay")) == Path("replay")
