"""Precision ``auto`` is bfloat16 only on devices that multiply it."""

from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from tensordict.nn import TensorDictModuleBase
from torch import nn
from yamame.checks import UsageError
from yamame.collectors import RayCollector, SyncCollector
from yamame.execution.precision import (
    check_precision,
    in_precision,
    instructions,
    multiplies_bfloat16,
)
from yamame.training import Learner
from yamame.training.muon import orthogonalized
from yamame_envs import MazeRunner

CPU = torch.device("cpu")


@pytest.fixture(params=["avx512_bf16", "amx_bf16", "bf16", None])
def instruction(request, monkeypatch):
    """Pretend a processor with one of the instructions, or with none."""
    others = {"avx2": True, "avx512_f": True, "cpu_name": "some"}
    able = others | ({request.param: True} if request.param else {"avx512_bf16": False})
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    return request.param


def product_dtype(precision):
    """Return the dtype of a matrix product in a precision."""
    with in_precision(CPU, precision):
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_auto_is_bfloat16_only_where_a_processor_multiplies_it(instruction):
    assert multiplies_bfloat16(CPU) == (instruction is not None)
    assert product_dtype(None) == torch.float32
    assert product_dtype("bfloat16") == torch.bfloat16
    assert product_dtype("auto") == (torch.bfloat16 if instruction else torch.float32)


def test_what_is_imitated_is_said_where_it_is_asked_for(instruction, capsys):
    for precision in (None, "auto", "bfloat16"):
        check_precision("Learner", precision, CPU)
    said = capsys.readouterr().err
    line = "Learner: autocast=bfloat16 is slow on this cpu, which emulates it; set auto or null\n"
    assert said == ("" if instruction else line)


@pytest.mark.parametrize("emulates", [True, False])
def test_a_gpu_that_emulates_it_does_not_multiply_it(emulates, monkeypatch):
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: including_emulation or not emulates,
    )
    assert multiplies_bfloat16(torch.device("cuda")) != emulates


def test_an_orthogonalisation_is_in_float32_where_bfloat16_is_imitated(instruction):
    matrix = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    rounded = orthogonalized(matrix).bfloat16().float()
    assert torch.equal(orthogonalized(matrix), rounded) == (instruction is not None)


class Noting(TensorDictModuleBase):
    """Policy that records the precision of its product, and the caching of cast weights."""

    in_keys: ClassVar = ["observation"]
    out_keys: ClassVar = ["action"]

    def __init__(self):
        super().__init__()
        self.linear, self.seen = nn.Linear(2, 2), []

    def forward(self, tensordict):
        self.seen.append((self.linear(torch.ones(2)).dtype, torch.is_autocast_cache_enabled()))
        return tensordict.set("action", torch.zeros(len(tensordict), dtype=torch.int64))


@pytest.mark.parametrize("precision", ["auto", "bfloat16"])
def test_parts_compute_in_their_precision_and_say_where_it_is_imitated(
    instruction, precision, capsys
):
    dtype = torch.bfloat16 if instruction or precision == "bfloat16" else torch.float32
    linear = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    with Learner(linear, optimizer, max_grad_norm=1.0, autocast=precision).precision():
        assert linear(torch.ones(2)).dtype == dtype
    env, shelf = MazeRunner(num_envs=2, time_limit=4), SimpleNamespace(extend=lambda data: None)
    collector = SyncCollector(env, Noting(), shelf, autocast=precision)
    collector.collect(4)
    assert set(collector.policy.seen) == {(dtype, False)}
    said = [line.split(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == (
        ["Learner", "SyncCollector"] if precision == "bfloat16" and not instruction else []
    )


@pytest.mark.parametrize("resources", [{}, {"num_gpus": 1}])
def test_a_collector_whose_actors_have_no_gpu_says_it_for_them(resources, monkeypatch, capsys):
    def missing(owner):
        raise UsageError("no Ray")

    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    monkeypatch.setattr("yamame.collectors.cluster.import_ray", missing)
    with pytest.raises(UsageError, match="no Ray"):
        RayCollector(
            None, None, None, num_envs=16, seed=0, autocast="bfloat16", resources=resources
        )
    assert ("RayCollector: autocast=bfloat16 is slow" in capsys.readouterr().err) == (not resources)


def test_of_several_processes_the_first_one_speaks(monkeypatch, capsys):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    monkeypatch.setattr("yamame.execution.precision.is_rank0", lambda: False)
    check_precision("Learner", "bfloat16", CPU)
    assert capsys.readouterr().err == ""


def test_the_instructions_of_a_processor_are_named(instruction):
    assert instructions().endswith(" with bfloat16") == (instruction is not None)
