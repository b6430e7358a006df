"""Roles of parameters are read off types and statements, never off sizes."""

import pytest
import torch
from torch import nn
from yamame.agent.roles import hidden_matrices, output_layers, parameter_roles
from yamame.training import MuonAdamW


class Stating(nn.Module):
    """A network that states roles."""

    def __init__(self, roles, part=None):
        super().__init__()
        self.parameter_roles = roles
        self.part = nn.Linear(3, 3) if part is None else part


class Raw(nn.Module):
    """A matrix of which nothing is known."""

    def __init__(self, *shape):
        super().__init__()
        self.values = nn.Parameter(torch.zeros(shape))


@pytest.mark.parametrize(
    ("module", "hidden"),
    [
        (nn.Linear(1, 1), {"weight"}),
        (nn.Bilinear(2, 2, 2), {"weight"}),
        (nn.LSTM(2, 4, proj_size=3), {"weight_ih_l0", "weight_hh_l0", "weight_hr_l0"}),
        (nn.GRUCell(2, 3), {"weight_ih", "weight_hh"}),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), {"in_proj_weight", "out_proj.weight"}),
        (
            nn.MultiheadAttention(4, 2, kdim=3),
            {f"{k}_proj_weight" for k in "qkv"} | {"out_proj.weight"},
        ),
        (nn.Conv2d(64, 64, 3), set()),
        (nn.ConvTranspose1d(64, 64, 3), set()),
        (nn.Embedding(64, 64), set()),
        (nn.EmbeddingBag(64, 64), set()),
        (nn.LayerNorm((64, 64)), set()),
        (nn.ParameterList([torch.zeros(64, 64)]), set()),
        (Raw(64, 64), set()),
    ],
)
def test_types_tell_hidden_matrices(module, hidden):
    roles = parameter_roles(module)
    assert roles.keys() == dict(module.named_parameters()).keys()
    assert {name for name, role in roles.items() if role == "hidden"} == hidden
    assert len(hidden_matrices(module)) == len(hidden)


def test_a_subclass_has_the_roles_of_its_class():
    class Own(nn.Embedding):
        pass

    class Layer(nn.Linear):
        pass

    assert parameter_roles(nn.Sequential(Own(3, 3), Layer(3, 3, bias=False))) == {
        "0.weight": "table",
        "1.weight": "hidden",
    }


def test_only_matrices_of_unknown_classes_are_unknown():
    assert parameter_roles(Raw(4, 4)) == {"values": "unknown"}
    assert parameter_roles(nn.ParameterList([torch.zeros(4, 4)])) == {"0": "unknown"}
    assert parameter_roles(Raw(4)) == parameter_roles(Raw(4, 1)) == {"values": "other"}


def test_a_statement_holds_for_what_is_below_it_and_the_outer_one_counts():
    inner = Stating({"part": "output"})
    assert parameter_roles(inner) == {"part.weight": "output", "part.bias": "output"}
    outer = Stating({"part": "table", "part.part.weight": "hidden"}, inner)
    assert parameter_roles(outer) == {"part.part.weight": "hidden", "part.part.bias": "table"}
    assert (
        parameter_roles(Stating({"part": "hidden"}))["part.bias"] == "other"
    )  # a vector is no matrix


def test_a_shared_parameter_is_hidden_only_if_it_is_so_everywhere():
    table, layer, other = (
        nn.Embedding(4, 4),
        nn.Linear(4, 4, bias=False),
        nn.Linear(4, 4, bias=False),
    )
    layer.weight = table.weight
    assert parameter_roles(nn.ModuleList([layer, table, other, other])) == {
        "0.weight": "table",
        "2.weight": "hidden",
    }


@pytest.mark.parametrize("name", ["nowhere", "part.nowhere", "nowhere.weight"])
def test_a_statement_about_nothing_is_refused(name):
    with pytest.raises(ValueError, match=f"Stating: parameter_roles must .*{name}"):
        parameter_roles(Stating({name: "table"}))


def test_a_role_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"Stating: parameter_roles\['part'\] must .*matrix"):
        parameter_roles(Stating({"part": "matrix"}))


def test_the_last_layers_of_a_head_are_its_outputs():
    first, last = nn.Linear(4, 4), nn.Linear(4, 2)
    assert output_layers(nn.Sequential(first, nn.Dropout(), last, nn.Tanh())) == ["2"]
    assert output_layers(nn.ModuleList([nn.Sequential(first, last), last])) == ["0.1", "1"]
    assert output_layers(last) == [""]
    assert output_layers(Stating({"part": "output"}, last)) == []


def test_muon_takes_narrow_hidden_matrices_and_tells_of_unknown_ones(capsys):
    module = nn.Sequential(nn.Linear(4, 2), Raw(64, 64), nn.Embedding(64, 64))
    optimizer = MuonAdamW(module.parameters(), module=module)
    matrices, others = optimizer.param_groups
    assert [p.shape for p in matrices["params"]] == [(2, 4)]
    assert [tuple(p.shape) for p in others["params"]] == [(2,), (64, 64), (64, 64)]
    assert "1.values [64, 64]" in capsys.readouterr().err
    MuonAdamW([*module[2].parameters()], module=module[2])
    assert "Embedding has no hidden matrix" in capsys.readouterr().err
