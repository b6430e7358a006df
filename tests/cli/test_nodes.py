"""Nodes of a configuration: allowed targets, checked arguments, and what is built of them."""

import pytest
import torch
from omegaconf import OmegaConf
from yamame.checks import UsageError
from yamame.cli.nodes import check, check_targets, instantiate, plain


def test_targets_outside_the_list_are_refused_by_key_before_any_import():
    named = {
        "agent": {
            "parts": [{"_target_": "torch.nn.ReLU"}, {"_target_": "a_module_that_is_nowhere.f"}]
        }
    }
    with pytest.raises(
        UsageError, match=r"agent\.parts\.1\._target_ must begin with yamame\..*nowhere\.f'"
    ):
        check_targets(named)
    # Inside the list the same module is looked for, so the refusal above came first.
    with pytest.raises(UsageError, match="must name a class or function"):
        check(OmegaConf.create({"a": {"_target_": "torch.nn.a_module_that_is_nowhere.f"}}))


@pytest.mark.parametrize(
    "target", ["torchvision.models", "yamamex.a", "os.system", 3, "Torch.nn.ReLU", "torch.hub.load"]
)
def test_a_prefix_is_a_whole_package_name(target):
    with pytest.raises(UsageError, match=r"x\._target_ must begin with"):
        check_targets({"x": {"_target_": target}})


def test_nested_targets_are_built_with_plain_containers_and_untouched_runtime_values():
    node = OmegaConf.create(
        {
            "_target_": "torch.nn.Sequential",
            "_args_": [{"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3}],
        }
    )
    assert instantiate(node)(torch.zeros(1, 2)).shape == (1, 3)
    shared = {"deep": [1, (2, 3)]}
    assert (
        instantiate(
            OmegaConf.create({"_target_": "yamame.tracking.mlflow_store.clean_value"}), value=0.25
        )
        == "0.25"
    )
    linear = instantiate(
        OmegaConf.create({"_target_": "torch.nn.Linear", "out_features": 3}), in_features=2
    )
    assert linear.weight.shape == (3, 2)
    assert instantiate({"_target_": "yamame.cli.nodes.plain"}, cfg=OmegaConf.create(shared)) == {
        "deep": [1, [2, 3]]
    }
    assert instantiate(None) is None


def test_a_partial_node_gives_a_function_of_the_rest():
    node = OmegaConf.create({"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.5})
    parameter = torch.nn.Parameter(torch.zeros(2))
    assert instantiate(node, momentum=0.9)([parameter]).defaults["momentum"] == 0.9


def test_what_a_constructor_refuses_is_reported_with_its_key():
    config = OmegaConf.create(
        {"agent": {"budget": {"_target_": "yamame.system.budget.Budget", "updates": 0}}}
    )
    with pytest.raises(UsageError, match=r"^agent\.budget: Budget: updates must be .* got 0$"):
        instantiate(config.agent.budget)
    with pytest.raises(
        UsageError, match=r"^agent\.budget: .*unexpected keyword argument 'nothing'"
    ):
        instantiate(config.agent.budget, nothing=1)
    nested = OmegaConf.create({"_target_": "torch.nn.Sequential", "_args_": [config.agent.budget]})
    with pytest.raises(UsageError, match=r"Budget: updates must be .* got 0$"):
        instantiate(nested)


OWN = """
class Own:
    def __init__(self, error, message, loc=0.25, scale=1):
        raise {"value": ValueError, "memory": MemoryError, "torch": RuntimeError}[error](message)
"""


@pytest.mark.parametrize(
    ("error", "message", "scale", "told"),
    [
        # About numbers without a name: those that are quoted, or all that may have led to it.
        ("value", "Invalid rate: 0.25", 3, "loc=0.25"),
        ("value", "cannot divide 7 by 2", 3, "scale=3, loc=0.25"),
        ("torch", "negative dimension -5", 2.5, "scale=2.5, loc=0.25"),
        ("memory", "out of memory", True, "loc=0.25"),  # flags are no numbers
        # About a number with its name, or about none.
        ("value", "loc=0.25 is too small", 3, ""),
        (
            "value",
            "Encoder: parameter_roles['part.0'] must be one of ('hidden', 'table'), got 'matrix'",
            3,
            "",
        ),
        ("value", "unknown activation 'relu6'", 3, ""),
        ("value", "it broke", 3, ""),
    ],
)
def test_numbers_are_told_where_an_error_is_about_some_and_does_not_name_them(
    own_module, error, message, scale, told
):
    own_module("numbered", OWN)
    node = {
        "_target_": "numbered.Own",
        "error": error,
        "message": message,
        "loc": 0.25,
        "scale": scale,
    }
    with pytest.raises(UsageError) as raised:
        instantiate(OmegaConf.create({"part": node, "trust": ["numbered."]}).part)
    assert str(raised.value) == f"part: {message}" + (f"; got {told}" if told else "")


def test_plain_resolves_and_refuses_missing_values():
    assert plain(OmegaConf.create({"a": 1, "b": ["${a}"]})) == {"a": 1, "b": [1]}
    with pytest.raises(UsageError, match="b: Missing mandatory value: b"):
        plain(OmegaConf.create({"b": "???"}))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("torch.nn.init.constant_", r"must name a layer or an optimizer of torch"),
        ("torch.nn.modules.module.torch.hub.load", r"must name a layer or an optimizer of torch"),
        ("torch.nn.modules.module.OrderedDict", r"must name a class or function of torch"),
        ("torch.optim.lr_scheduler.Counter", r"must name a class or function of torch"),
        ("torchrl.modules.llm.vLLMWrapper", r"must name"),
        ("yamame.files.run_directory.shutil.rmtree", r"must name a class or function of yamame"),
        ("yamame.cli.app.os.system", r"must name a class or function of yamame"),
        ("yamame.cli.app.main.__globals__", r"must begin with"),
        (
            "yamame_envs.adapters.registered.import_module",
            r"must name a class or function of yamame_envs",
        ),
    ],
)
def test_what_a_module_has_only_imported_and_what_is_no_layer_is_refused(target, message):
    with pytest.raises(UsageError, match=rf"x\._target_ {message}.*got '{target}'"):
        instantiate(OmegaConf.create({"x": {"_target_": target}}).x)


def test_a_package_of_the_users_own_is_named_in_trust(own_module):
    own_module("mylab", "from os import getcwd\nclass Part:\n    pass\n")
    config = {"part": {"_target_": "mylab.Part"}}
    with pytest.raises(
        UsageError, match=r"part\._target_ must begin with .* package of trust.*'mylab\.Part'"
    ):
        instantiate(OmegaConf.create(config).part)
    trusting = OmegaConf.create(config | {"trust": ["mylab."]})
    assert type(instantiate(trusting.part)).__name__ == "Part"
    trusting.part._target_ = "mylab.getcwd"
    with pytest.raises(
        UsageError, match=r"must name a class or function of mylab, got 'mylab\.getcwd'"
    ):
        instantiate(trusting.part)


def test_free_data_holds_no_targets_and_nothing_is_resolved_twice():
    env = {"_target_": "yamame_envs.Gym", "settings": {"deep": [{"_target_": "torch.nn.ReLU"}]}}
    with pytest.raises(
        UsageError, match=r"env\.settings\.deep\.0\._target_: must be plain data there"
    ):
        check(OmegaConf.create({"env": env}))
    sequence = {"_target_": "torch.nn.ReLU", "inplace": "\\${oc.env:HOME}"}
    with pytest.raises(UsageError, match=r"x\.inplace: must be a value and no interpolation"):
        instantiate(OmegaConf.create({"x": sequence}).x)
