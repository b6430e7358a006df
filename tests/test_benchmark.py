"""The benchmark measures what it says: the published agent, on its environment or another one."""

import importlib
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


def test_memory_is_what_one_update_adds(benchmark, monkeypatch):
    held = iter([100 * 2**20, 130 * 2**20])
    monkeypatch.setattr(sys.modules["benchmark_memory"], "used", lambda device: next(held))
    megabytes, seconds = benchmark.peak(benchmark.Subject(SMALL, "cpu"), 64, at_once=False)
    assert megabytes == 30
    assert seconds > 0


def test_memory_is_told_of_blocks_of_rows_and_of_all_rows_at_once(benchmark):
    def child(*arguments):
        return int(arguments[arguments.index("--peak") + 1]) * (1 + ("--at-once" in arguments)), 0.5

    rows = list(benchmark.memory_parts(child, [40, 70]))
    assert [(name, note.split()[0]) for name, *_, note in rows] == [
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


def test_all_rows_at_once_are_one_block(benchmark, monkeypatch):
    defaults, subject = in_row_blocks.__kwdefaults__, benchmark.Subject(SMALL, "cpu")
    monkeypatch.setitem(defaults, "rows_per_thread", 8)
    benchmark.peak(subject, 64, at_once=False)
    assert defaults["rows_per_thread"] == 8
    benchmark.peak(subject, 64, at_once=True)
    assert defaults["rows_per_thread"] > 10**9


def test_keeping_freed_memory_is_measured_beside_giving_it_back_and_changes_no_loss(benchmark):
    asked, losses = [], iter([0.5] * 11 + [0.25])

    def child(*arguments):
        asked.append(arguments)
        return next(losses), 2.0 + (arguments[-1] == "--giving-back") * len(asked)

    ((name, _, seconds, _, note),) = benchmark.keeping_parts(child, 24, 50)
    assert asked == [("--updates", "50"), ("--updates", "50", "--giving-back")] * 3
    assert (name, seconds) == ("24 x 50, freed memory kept", 2.0)
    assert note.startswith("0.33 of 6e+03 ms")  # the median of 4, 6 and 8 seconds
    with pytest.raises(ValueError, match="both ways must compute the same loss"):
        list(benchmark.keeping_parts(lambda *_: (next(losses), 1.0), 24, 50))


def test_a_process_of_its_own_keeps_or_gives_back_and_tells_numbers(benchmark, monkeypatch, capsys):
    kept, options = [], SimpleNamespace(device="cpu", threads=1, overrides=[*SMALL, "schedule.batch_size=2"])
    monkeypatch.setattr("yamame.runs.keep_freed_memory", lambda: kept.append(True))
    monkeypatch.setattr(benchmark.torch, "set_num_threads", lambda number: None)

    def run(command, **_):
        monkeypatch.setattr(sys, "argv", command[1:])
        benchmark.main()
        return SimpleNamespace(stdout=capsys.readouterr().out)

    monkeypatch.setattr(benchmark.subprocess, "run", run)
    found = [benchmark.child(options, "--updates", "9", *more) for more in ([], ["--giving-back"])]
    assert len(kept) == 1
    assert found[0][0] == found[1][0]
    assert min(found[0][1], found[1][1]) > 0


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


def test_acting_is_measured_with_every_setting_of_the_collector_that_is_on(benchmark, monkeypatch):
    given = ["collector.autocast=bfloat16", "collector.compile_policy=true", "collector.cuda_graph=true"]
    subject, seen = benchmark.Subject([*SMALL, *given], "cpu"), []
    monkeypatch.setattr(benchmark, "acting_parts", lambda *_, settings, **__: seen.append(settings) or [])
    machine = SimpleNamespace(product_rate=lambda _: 1e9, copy_rate=lambda: 1e9)
    assert list(benchmark.acting_rows(subject, None, machine, [2])) == []
    assert seen == [{"autocast": "bfloat16", "compile_policy": True, "cuda_graph": True}]
