"""What a machine cannot do is refused before a run begins, in a line with key and value."""

from functools import cache, partial

import pytest
import torch
from hydra import compose, initialize_config_dir
from yamame import conf_dir, distributed
from yamame.checks import UsageError
from yamame.runs import machine
from yamame.runs.build import build_agent, build_env
from yamame.runs.machine import check_machine
from yamame.runs.run import Run

RECORDED = ("schedule.cuda_graph", "collector.cuda_graph")
COMPILED = ("schedule.compile", "collector.compile")


@cache
def composed(*choices):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", overrides=["logger=none", *choices])


def configured(*settings, choices=()):
    """A configuration of choices, in which settings are changed."""
    cfg = composed(*choices).copy()
    cfg.merge_with_dotlist(list(settings))
    return cfg


@pytest.fixture
def any_device(monkeypatch):
    """A machine that has every device and a compiler for each."""
    monkeypatch.setattr(machine, "check_device", lambda device: device)
    monkeypatch.setattr(machine, "missing_compiler", lambda device: None)


@pytest.mark.parametrize("key", RECORDED)
def test_a_cpu_records_nothing(any_device, key):
    with pytest.raises(UsageError, match=f"^{key}: must be false on cpu, got true$"):
        check_machine(configured(f"{key}=true"))
    check_machine(configured(f"{key}=true", "device=cuda:1"))
    check_machine(configured())


@pytest.mark.parametrize("key", COMPILED)
def test_without_a_compiler_nothing_is_compiled(any_device, monkeypatch, key):
    check_machine(configured(f"{key}=true"))
    monkeypatch.setattr(machine, "missing_compiler", lambda device: f"nothing on {device}")
    with pytest.raises(
        UsageError, match=f"^{key}: must be false with nothing on cuda:1, got true$"
    ):
        check_machine(configured(f"{key}=true", "device=cuda:1"))
    check_machine(configured())


def test_processes_that_learn_together_record_updates_and_compile_none(any_device, monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    message = r"^schedule\.compile: must be false under torchrun, got true$"
    with pytest.raises(UsageError, match=message):
        check_machine(configured("schedule.compile=true", "device=cuda"))
    allowed = [f"{key}=true" for key in (*RECORDED, COMPILED[1])]
    check_machine(configured(*allowed, "device=cuda"))


def test_a_device_that_is_not_there_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match=r"^device: must be available, got 'cuda'"):
        check_machine(composed("hardware=gpu"))


def test_actors_get_no_gpu_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    wanted = partial(configured, "collector.resources.num_gpus=1", choices=("collector=ray",))
    with pytest.raises(
        UsageError,
        match=r"^collector.resources.num_gpus: must be 0 on a machine without a GPU, got 1$",
    ):
        check_machine(wanted())
    check_machine(wanted("collector.address=auto"))  # a cluster may have some
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_machine(wanted())


def test_an_encoder_for_a_gpu_is_refused_elsewhere(monkeypatch):
    cfg = composed("env=tmaze")
    env = build_env(cfg, num_envs=2, seed=0)
    build_agent(cfg, env)
    monkeypatch.setattr("yamame.trajectory.TransformerEncoder.needs_cuda", True, raising=False)
    with pytest.raises(
        UsageError, match=r"^device: must be cuda with encoder TransformerEncoder, got 'cpu'$"
    ):
        build_agent(cfg, env)


def test_a_run_asks_before_anything_is_written(tmp_path):
    cfg = configured("schedule.cuda_graph=true", f"run.root={tmp_path}/runs")
    with pytest.raises(UsageError, match=r"^schedule\.cuda_graph"):
        Run(cfg)
    assert list(tmp_path.iterdir()) == []
