"""The benchmark measures what it says: the published agent, on its environment or another one."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from yamame.rows import in_row_blocks

TOOLS = Path(__file__).parents[1] / "tools"
SMALL = ["encoder.d_model=16", "encoder.num_heads=2", "encoder.num_layers=1", "timestep_encoder.out_size=16"]


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        yield importlib.import_module("benchmark")
    for name in [name for name in sys.modules if name.startswith("benchmark")]:
        del sys.modules[name]


def test_the_published_agent_is_measured_on_its_maze(benchmark):
    subject = benchmark.Subject([], "cpu")
    assert (subject.cfg.env._target_, subject.cfg.env.size) == ("yamame_envs.MazeRunner", 11)
    assert subject.env.observation_spec["goal"].shape[-2] == 3
    assert (subject.cfg.encoder.d_model, subject.cfg.encoder.num_layers) == (256, 3)
    assert subject.cfg.schedule.batch_size == 24


def test_another_environment_is_measured_without_the_settings_of_the_maze(benchmark):
    subject = benchmark.Subject(["env=tmaze", "env.length=9", *SMALL], "cpu")
    assert subject.cfg.env == {"_target_": "yamame_envs.PassiveTMaze", "length": 9, "penalty": None}
    batch = subject.batch(3, 40)
    assert batch.shape == (3, 40)
    assert batch["mask"].all()
    assert batch["is_init"][:, 0].all()
    assert not batch["is_init"][:, 1:].any()


def test_memory_is_what_one_update_adds(benchmark, capsys, monkeypatch):
    held = iter([100 * 2**20, 130 * 2**20])
    monkeypatch.setattr(benchmark, "used", lambda device: next(held))
    benchmark.peak(64, SMALL, "cpu", at_once=False)
    megabytes, seconds = json.loads(capsys.readouterr().out)
    assert megabytes == 30
    assert seconds > 0


def test_memory_is_told_of_blocks_of_rows_and_of_all_rows_at_once(benchmark, monkeypatch):
    def measured(command, **_):
        megabytes = int(command[command.index("--peak") + 1]) * (1 + ("--at-once" in command))
        return SimpleNamespace(stdout=json.dumps([megabytes, 0.5]))

    monkeypatch.setattr(benchmark.subprocess, "run", measured)
    rows = list(benchmark.memory_rows([40, 70], [], "cpu"))
    assert [(row.name, row.note.split()[0]) for row in rows] == [
        *(("1 x 40", "40"), ("1 x 40, all rows at once", "80")),
        *(("1 x 70", "70"), ("1 x 70, all rows at once", "140")),
    ]


def test_freed_memory_is_kept_before_anything_is_measured(benchmark, monkeypatch):
    order = []
    monkeypatch.setattr("yamame.runs.keep_freed_memory", lambda: order.append("kept"))
    monkeypatch.setattr(benchmark.torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(benchmark, "measure", lambda options: order.append("measured") or [])
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "update"])
    benchmark.main()
    assert order == ["kept", "measured"]


def test_all_rows_at_once_are_one_block(benchmark, monkeypatch, capsys):
    defaults = in_row_blocks.__kwdefaults__
    monkeypatch.setitem(defaults, "rows_per_thread", 8)
    benchmark.peak(64, SMALL, "cpu", at_once=False)
    assert defaults["rows_per_thread"] == 8
    benchmark.peak(64, SMALL, "cpu", at_once=True)
    assert defaults["rows_per_thread"] > 10**9
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.usefixtures("compiler")
def test_operations_are_counted_whether_compiled_or_not(benchmark):
    counts = []
    for compiled in ("false", "true"):
        subject = benchmark.Subject([*SMALL, f"encoder.compiled={compiled}", "schedule.batch_size=2"], "cpu")
        batch = subject.batch(2, 30)
        with subject.counting_flops() as count:
            subject.learner.loss(batch)["loss_critic"].backward()
        counts.append(count[0])
        assert all(str(module.compiled).lower() == compiled for module in encoders(subject))
    assert counts[0] == counts[1] > 0


def encoders(subject):
    found = [module for module in subject.learner.loss.modules() if hasattr(module, "compiled")]
    assert found
    return found


@pytest.mark.parametrize("autocast", ["null", "bfloat16"])
def test_an_update_and_its_parts_are_measured_in_its_precision(benchmark, autocast):
    settings = [*SMALL, "schedule.batch_size=2", f"schedule.autocast={autocast}"]
    subject, seen, asked = benchmark.Subject(settings, "cpu"), set(), []
    encoder = subject.agent.trajectory_encoder
    encoder.register_forward_pre_hook(lambda *_: seen.add(torch.is_autocast_enabled("cpu")))
    clock, machine = (
        SimpleNamespace(time=timed),
        SimpleNamespace(product_rate=lambda d: asked.append(d) or 1e9),
    )
    rows = list(benchmark.update_parts(subject, clock, machine, [9]))
    assert [name.split(", ")[1] for name, *_ in rows][:2] == ["whole", "encoders forward"]
    assert seen == {autocast != "null"}
    assert asked == [torch.float32 if autocast == "null" else torch.bfloat16]


def test_sequences_of_many_lengths_are_measured_in_shared_rows(benchmark, monkeypatch):
    subject, batches = benchmark.Subject([*SMALL, "schedule.batch_size=4"], "cpu"), []
    update = subject.learner.update
    monkeypatch.setattr(
        subject.learner, "update", lambda batch, *a, **k: batches.append(batch) or update(batch, *a, **k)
    )
    clock, machine = SimpleNamespace(time=timed), SimpleNamespace(product_rate=lambda _: 1e9)
    rows = list(benchmark.update_parts(subject, clock, machine, [9]))
    assert batches[0].shape == (4, 9)
    assert batches[-1].shape == (3, 9)  # of 9; of 7 and 2; of 4
    assert batches[-1]["mask"].sum() == 2 + 4 + 7 + 9
    assert rows[-1][0] == "4 of 2 to 9, packed"
    assert rows[-1][-1] == "in 3 rows, padded 4"


def test_acting_is_measured_by_the_environment_step_with_the_memory_that_it_reads(benchmark):
    subject = benchmark.Subject(["env=tmaze", "env.length=200", *SMALL], "cpu")
    rows = list(
        benchmark.acting_parts(
            (subject.make_env(2), subject.make_env(2)),
            subject.agent.policy(),
            clock=SimpleNamespace(time=timed),
            counting_flops=benchmark.speed.counting_flops,
            rates=(1e9, 1e9, 1e6),
            settings={},
        )
    )
    (name, seconds, _, note), *parts = rows
    assert name == "whole"
    assert seconds == 1 / (2 * 32)
    # Steps 101 to 132 of an episode, with a key and a value of 16 numbers for every timestep so far.
    read = sum(range(101, 133)) / 32 * 2 * 16 * 4
    assert note.endswith(f" {read:.0f} us for 15 KB of memory")
    # Each of the others was timed once for both rows; what remains is told last.
    assert [part[1] for part in parts[:-1]] == [1 / 2] * 4
    assert parts[-1][1] == seconds - 4 / 2


def timed(call, **_):
    call()
    return 1.0
