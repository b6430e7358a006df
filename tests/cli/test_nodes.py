"""Nodes of a configuration: allowed targets, checked arguments, and what is built of them."""

import pytest
import torch
from omegaconf import OmegaConf
from yamame.checks import UsageError
from yamame.cli.nodes import check, check_targets, instantiate, plain


def test_targets_outside_the_list_are_refused_by_key_before_any_import():
    nodes = {"agent": {"parts": [{"_target_": "torch.nn.ReLU"}, {"_target_": "a_module_that_is_nowhere.f"}]}}
    with pytest.raises(UsageError, match=r"agent\.parts\.1\._target_ must begin with yamame\..*nowhere\.f'"):
        check_targets(nodes)
    # Inside the list the same module is looked for, so the refusal above came first.
    with pytest.raises(UsageError, match="must name a class or function"):
        check(OmegaConf.create({"a": {"_target_": "torch.a_module_that_is_nowhere.f"}}))


@pytest.mark.parametrize("target", ["torchvision.models", "yamamex.a", "os.system", 3, "Torch.nn"])
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
    assert instantiate(OmegaConf.create({"_target_": "yamame.cli.app.objective"}), value=0.25) == 0.25
    linear = instantiate(OmegaConf.create({"_target_": "torch.nn.Linear", "out_features": 3}), in_features=2)
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
        {"agent": {"budget": {"_target_": "yamame.training.budget.Budget", "updates": 0}}}
    )
    with pytest.raises(UsageError, match=r"^agent\.budget: Budget: updates must be .* got 0$"):
        instantiate(config.agent.budget)
    with pytest.raises(UsageError, match=r"^agent\.budget: .*unexpected keyword argument 'nothing'"):
        instantiate(config.agent.budget, nothing=1)
    nested = OmegaConf.create({"_target_": "torch.nn.Sequential", "_args_": [config.agent.budget]})
    with pytest.raises(UsageError, match=r"Budget: updates must be .* got 0$"):
        instantiate(nested)


def test_plain_resolves_and_refuses_missing_values():
    assert plain(OmegaConf.create({"a": 1, "b": ["${a}"]})) == {"a": 1, "b": [1]}
    with pytest.raises(UsageError, match="b: Missing mandatory value: b"):
        plain(OmegaConf.create({"b": "???"}))
