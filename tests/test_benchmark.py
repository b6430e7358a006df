"""The benchmark measures what it says: the published agent, on its environment or another one, in
its precision.
"""

import doctest
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

TOOLS = Path(__file__).parents[1] / "tools"
SMALL = [
    *(
        "encoder.d_model=16",
        "encoder.num_heads=2",
        "encoder.num_layers=1",
        "timestep_encoder.out_size=16",
    ),
    *(
        "timestep_encoder.hidden_size=16",
        "agent.actor.hidden_size=16",
        "agent.critic.hidden_size=16",
    ),
]
MACHINE = SimpleNamespace(product_rate=lambda _: 1e9, copy_rate=lambda: 1e6)


def called(call, **_):
    call()
    return 1.0


CLOCK = SimpleNamespace(time=called, once=called)
"""Every call takes a second."""


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        yield importlib.import_module("benchmark")
    for name in ("benchmark", "benchmark_sections", "benchmark_shapes", "speed"):
        del sys.modules[name]


@pytest.fixture(scope="module")
def sections(benchmark):
    return sys.modules["benchmark_sections"]


@pytest.fixture(scope="module")
def subject(benchmark):
    settings = [*SMALL, "schedule.batch_size=4", "budget.env_steps=160000"]
    return benchmark.Subject(settings, "cpu")


def test_the_examples_run(benchmark):
    tried = doctest.testmod(benchmark)
    assert tried.failed == 0 < tried.attempted


def test_the_published_agent_is_measured_on_its_maze(benchmark):
    subject = benchmark.Subject([], "cpu")
    assert (subject.cfg.env._target_, subject.cfg.env.size) == ("yamame_envs.MazeRunner", 11)
    assert subject.env.observation_spec["goal"].shape[-2] == 3
    assert (subject.cfg.encoder.d_model, subject.cfg.encoder.num_layers) == (256, 3)
    assert subject.cfg.schedule.batch_size == 24


def test_another_environment_is_measured_without_the_settings_of_the_maze(benchmark):
    subject = benchmark.Subject(["env=tmaze", "env.length=9", *SMALL], "cpu")
    settings = {"length": 9, "penalty": None, "observable": False}
    assert subject.cfg.env == {"_target_": "yamame_envs.PassiveTMaze", **settings}
    batch = subject.batch(3, 40)
    assert batch.shape == (3, 40)
    assert batch["mask"].all()
    assert batch["is_init"][:, 0].all()
    assert not batch["is_init"][:, 1:].any()


@pytest.mark.parametrize("autocast", ["null", "bfloat16"])
def test_an_update_and_its_parts_are_measured_in_its_precision(benchmark, autocast):
    subject = benchmark.Subject(
        [*SMALL, "schedule.batch_size=2", f"schedule.autocast={autocast}"], "cpu"
    )
    seen, asked = set(), []
    encoder = subject.agent.trajectory_encoder
    encoder.register_forward_pre_hook(lambda *_: seen.add(torch.is_autocast_enabled("cpu")))
    machine = SimpleNamespace(product_rate=lambda dtype: asked.append(dtype) or 1e9)
    whole, *parts = benchmark.update_rows(subject, CLOCK, machine, [9])
    assert whole.name == "2 x 9, whole"
    assert whole.limit > 0
    assert [part.limit for part in parts] == [None] * 5
    assert seen == {autocast != "null"}
    assert asked == [torch.float32 if autocast == "null" else torch.bfloat16]


def test_sequences_of_many_lengths_are_measured_packed(benchmark, subject, monkeypatch):
    batches, update = [], subject.update
    monkeypatch.setattr(subject, "update", lambda batch: batches.append(batch) or update(batch))
    *_, packed = benchmark.update_rows(subject, CLOCK, MACHINE, [9])
    assert batches[0].shape == (4, 9)
    assert batches[-1].shape == (3, 9)  # of 9; of 7 and 2; of 4
    assert batches[-1]["mask"].sum() == 2 + 4 + 7 + 9
    assert (packed.name, packed.note) == ("4 of 2 to 9, packed", "in 3 sequences, padded 4")


def test_acting_is_measured_by_the_environment_step_and_by_parts(
    benchmark, sections, subject, monkeypatch
):
    monkeypatch.setattr(sections, "_REMEMBERED", 4)
    whole, environment, policy, rest = benchmark.acting_rows(subject, CLOCK, MACHINE, [2])
    assert whole.name == "2 envs, whole"
    assert whole.seconds == 1 / (2 * 32)  # a call of 32 steps took a second
    assert (environment.seconds, policy.seconds) == (1 / 2, 1 / 2)
    assert rest.seconds == whole.seconds - 2 / 2
    assert whole.limit == policy.limit > 0


def test_a_decision_is_measured_after_as_many_timesteps_as_are_remembered(
    sections, subject, monkeypatch
):
    monkeypatch.setattr(sections, "_REMEMBERED", 5)
    ages, starts = [], []
    policy = subject.agent.policy()
    policy.register_forward_pre_hook(
        lambda _, args: ages.append(args[0]["step_index"].unique().item())
    )
    policy.register_forward_pre_hook(lambda _, args: starts.append(args[0]["is_init"].all().item()))
    monkeypatch.setattr(subject.agent, "policy", lambda: policy)
    times = iter(range(100))
    clock = SimpleNamespace(once=lambda call: (call(), float(next(times)))[1])
    seconds, flops = sections.policy_cost(subject, clock, 2, None)
    assert seconds == 5 + 31 / 2  # the median of steps 5 to 36
    assert flops > 0
    assert ages == list(range(5 + 32 + 1))
    assert starts == [True] + [False] * (5 + 32)


def test_acting_is_measured_with_every_setting_of_the_collector_that_is_on(
    benchmark, sections, monkeypatch
):
    given = ["collector.autocast=bfloat16", "collector.cuda_graph=true"]
    subject, settings = benchmark.Subject([*SMALL, *given], "cpu"), []
    collector = SimpleNamespace(collect=lambda _: None)
    monkeypatch.setattr(sections, "SyncCollector", lambda *_, **s: settings.append(s) or collector)
    precisions = []
    monkeypatch.setattr(
        sections, "policy_cost", lambda *args: precisions.append(args[-1]) or (1.0, 1.0)
    )
    assert len(list(benchmark.acting_rows(subject, CLOCK, MACHINE, [2]))) == 4
    assert settings == [{"autocast": "bfloat16", "cuda_graph": True}]
    assert precisions == ["bfloat16"]


def test_updates_that_would_be_replayed_are_counted(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["benchmark_shapes"], "NUM_UPDATES", 8)
    monkeypatch.setattr(sys.modules["benchmark_shapes"], "_NUM_ENVS", 4)
    monkeypatch.setattr(
        sys, "argv", ["benchmark.py", "shapes", "env=tmaze", "schedule.batch_size=4"]
    )
    benchmark.main()
    *_, row = capsys.readouterr().out.splitlines()
    # One shape: three updates are ordinary ones, the fourth is recorded, and replayed as all after
    # it.
    assert row == "| 1 | 12.5% | 62.5% | 0.0% |"


def test_what_an_agent_plays_is_shorter_than_random_actions(benchmark, monkeypatch):
    shapes, lengths = sys.modules["benchmark_shapes"], []
    monkeypatch.setattr(shapes, "NUM_UPDATES", 4)
    monkeypatch.setattr(shapes, "_NUM_ENVS", 8)
    for agent in (None, "zoo:cpu_mazerunner"):
        batches = shapes.sampled(
            ["experiment=cpu_mazerunner", "packing=null", "relabel=none"], agent
        )
        lengths.append(sum(float(batch["mask"].sum()) for batch in batches))
    assert lengths[1] < 0.5 * lengths[0]


def test_sampling_and_a_whole_run_are_measured(benchmark, sections, subject, monkeypatch):
    monkeypatch.setattr(sections, "_STORED", 6)
    monkeypatch.setattr(sections, "_LONGEST", 12)
    names = [row.name for row in benchmark.sampling_rows(subject, CLOCK, MACHINE)]
    assert names == ["6 x 12 appended", "4 x 12 read", "4 x 12 read and relabelled"]
    acting, learning, run = benchmark.fit_rows(subject, CLOCK)
    steps, updates = subject.cfg.budget.env_steps, int(run.name.split()[2].replace(",", ""))
    assert run.seconds == pytest.approx(steps * acting.seconds + updates * learning.seconds)
    assert updates > 1000
    plan = importlib.import_module("plan_scale")
    assert doctest.testmod(plan).failed == 0
    sampled = benchmark.sampling_rows(subject, CLOCK, MACHINE)
    costs = plan.read_costs(
        [asdict(row) for row in (acting, *sampled)], [asdict(learning), asdict(run)]
    )
    assert costs == plan.Costs(acting.seconds, 1.0, 1.0, 1.0 / (6 * 12), updates / steps)


def test_a_whole_run_is_measured_with_a_collector_in_this_process_only(
    benchmark, sections, subject, monkeypatch
):
    monkeypatch.setattr(sections, "instantiate", lambda *_, **__: object())
    with pytest.raises(ValueError, match="fit: collector must be sync, got object"):
        list(benchmark.fit_rows(subject, CLOCK))


def test_memory_is_what_one_update_adds(benchmark, sections, subject, monkeypatch):
    held = iter([100 * 2**20, 130 * 2**20])
    monkeypatch.setattr(sections, "used", lambda device: next(held))
    megabytes, seconds = benchmark.peak(subject, 64)
    assert megabytes == 30
    assert seconds > 0
    (row,) = benchmark.memory_rows(lambda *arguments: [int(arguments[1]), 0.5], [40])
    assert (row.name, row.seconds, row.note) == ("1 x 40", 0.5, "40 MB beyond the agent itself")


def test_two_sides_are_measured_in_turn_and_each_with_its_own_settings(
    benchmark, monkeypatch, capsys
):
    commands, seconds = [], iter([6.0, 1.0, 9.0, 2.0, 7.0, 4.0])

    def run(command, **_):
        commands.append(command[1:])
        rows = [{"section": "update", "name": "whole", "unit": "update", "seconds": next(seconds)}]
        return SimpleNamespace(stdout=json.dumps(rows))

    monkeypatch.setattr(benchmark.subprocess, "run", run)
    monkeypatch.setattr(benchmark.torch, "set_num_threads", lambda number: None)
    given = ["benchmark.py", "update", "encoder=gru", "--lengths", "9", "--versus", "encoder=lstm"]
    monkeypatch.setattr(sys, "argv", given)
    benchmark.main()
    here = [str(TOOLS / "benchmark.py"), "update", "encoder=gru", "--lengths", "9", "--json"]
    assert commands == [here, [*here, "encoder=lstm"]] * 3
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "| update | whole | 2 s / update |  |  | 7 s | 3.50 |"
    )


def test_a_row_stands_beside_the_one_of_its_name(benchmark, capsys):
    rows = [benchmark.Row("update", name, "call", 2.0) for name in ("new", "kept")]
    before = [benchmark.Row("update", name, "call", 6.0) for name in ("gone", "kept")]
    benchmark.show(rows, before)
    new, kept, gone = capsys.readouterr().out.splitlines()[2:]
    assert new == "| update | new | 2 s / call |  |  |  |  |"
    assert kept == "| update | kept | 2 s / call |  |  | 6 s | 3.00 |"
    assert gone == "| update | gone | | |  | 6 s / call | |"
