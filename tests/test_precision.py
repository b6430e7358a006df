"""bfloat16 where a device multiplies it, and nowhere else unless it is asked for."""

import pytest
import torch
from torch import nn
from yamame.precision import check_precision, in_precision, multiplies_bfloat16
from yamame.training import Learner
from yamame.training.muon import orthogonalized

CPU = torch.device("cpu")


@pytest.fixture(params=["avx512_bf16", "amx_bf16", "bf16", None])
def instruction(request, monkeypatch):
    """A processor with one of the instructions, or with none."""
    others = {"avx2": True, "avx512_f": True, "cpu_name": "some"}
    able = others | ({request.param: True} if request.param else {"avx512_bf16": False})
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    return request.param


def product_dtype(precision):
    """Of a matrix product in that context."""
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
    line = "Learner: autocast=bfloat16 is slow on this cpu, which imitates it; set auto or null\n"
    assert said == ("" if instruction else line)


@pytest.mark.parametrize("emulates", [True, False])
def test_a_gpu_that_emulates_it_does_not_multiply_it(emulates, monkeypatch):
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or not emulates
    )
    assert multiplies_bfloat16(torch.device("cuda")) != emulates


def test_an_orthogonalisation_is_in_float32_where_bfloat16_is_imitated(instruction):
    matrix = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    rounded = orthogonalized(matrix).bfloat16().float()
    assert torch.equal(orthogonalized(matrix), rounded) == (instruction is not None)


def test_a_learner_computes_in_its_precision(instruction):
    linear = nn.Linear(2, 2)
    learner = Learner(
        linear, torch.optim.SGD(linear.parameters(), lr=0.1), max_grad_norm=1.0, autocast="auto"
    )
    with learner.precision():
        assert linear(torch.ones(2)).dtype == (torch.bfloat16 if instruction else torch.float32)
