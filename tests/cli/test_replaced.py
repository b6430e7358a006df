"""A class that replaces that of a choice gets the arguments that it or a base class names."""

import importlib

import pytest
import torch
from omegaconf import OmegaConf
from yamame import conf_dir
from yamame.cli.replaced import leave_out_replaced

OWN = """
from torch.optim import AdamW
from yamame.training import MuonAdamW


class Named(AdamW):
    def __init__(self, params, lr=1.0):
        super().__init__(params, lr=lr)


class Open(AdamW):
    def __init__(self, params, extra=1, **settings):
        self.extra = extra
        super().__init__(params, **settings)


class Below(Open):
    pass


class OfReplaced(MuonAdamW):
    def __init__(self, params, **settings):
        super().__init__(params, **settings)


class Anything:
    def __init__(self, params, **settings):
        self.settings = settings


def make(params, **settings):
    return Anything(params, **settings)
"""
FILE = conf_dir() / "optimizer" / "muon.yaml"
ARGUMENTS = set(OmegaConf.load(FILE)) - {"_target_"}


def replaced(name, *given):
    """Replace the class of the default optimizer: names of the arguments left, which build it."""
    node = OmegaConf.load(FILE)
    node["_target_"] = f"own_optimizers.{name}"
    cfg = OmegaConf.create({"optimizer": node, "trust": ["own_optimizers."]})
    removed = leave_out_replaced(cfg, ["optimizer._target_", *given])
    left = set(cfg.optimizer) - {"_target_"}
    assert sorted(removed) == sorted(f"optimizer.{name}" for name in ARGUMENTS - left)
    arguments = {key: value for key, value in cfg.optimizer.items() if key in left}
    weight = torch.nn.Parameter(torch.eye(32))
    getattr(importlib.import_module("own_optimizers"), name)([weight], **arguments)
    return left


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("Named", {"lr"}),
        ("Open", {"lr", "weight_decay", "fused"}),
        ("Below", {"lr", "weight_decay", "fused"}),
        ("OfReplaced", ARGUMENTS),
        ("Anything", ARGUMENTS),
        ("make", ARGUMENTS),
    ],
)
def test_it_gets_the_arguments_that_it_or_its_base_classes_name(own_module, name, left):
    own_module("own_optimizers", OWN)
    assert replaced(name) == left


def test_an_argument_that_was_given_stays(own_module):
    own_module("own_optimizers", OWN)
    assert "momentum" in replaced("Anything", "optimizer.momentum")
    with pytest.raises(TypeError, match="momentum"):
        replaced("Open", "optimizer.momentum")


def test_nothing_is_removed_without_a_replacement():
    cfg = OmegaConf.create({"optimizer": OmegaConf.load(FILE)})
    assert leave_out_replaced(cfg, ["optimizer.lr"]) == []
    assert set(cfg.optimizer) - {"_target_"} == ARGUMENTS
