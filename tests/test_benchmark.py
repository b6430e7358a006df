"""The benchmark measures what it says: the published agent, on its environment or another one."""

import importlib
import json
import sys
from pathlib import Path

import pytest

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
    benchmark.peak(64, SMALL, "cpu")
    megabytes, seconds = json.loads(capsys.readouterr().out)
    assert megabytes == 30
    assert seconds > 0
