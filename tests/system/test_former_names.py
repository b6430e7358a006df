"""Modules and functions can be imported by their former names for one version."""

import importlib
import sys
from pathlib import Path

import pytest
import yamame

FORMER = sorted(path.stem for path in Path(yamame.__file__).with_name("_moved").glob("[!_]*.py"))


@pytest.mark.parametrize("name", FORMER)
def test_a_former_module_warns_and_has_the_public_names_of_the_new_one(name):
    sys.modules.pop(f"yamame.{name}", None)
    with pytest.warns(DeprecationWarning, match=f"yamame.{name} is deprecated, import yamame"):
        former = importlib.import_module(f"yamame.{name}")
    assert [key for key in vars(former) if not key.startswith("_")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_former_functions_are_the_new_ones():
    from yamame import distributed, failures, ranks, signals, system
    from yamame.system import messages

    assert ranks.agreed is distributed.broadcast
    assert ranks.first is distributed.on_rank0
    assert failures.tell_aside is messages.print_stderr
    assert signals.Terminated is system.signals.Terminated


def test_a_module_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("yamame.no_such_module")
