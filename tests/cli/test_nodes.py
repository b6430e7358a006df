"""Nodes of a configuration: allowed targets, checked arguments, and what is built of them."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from yamame import conf_dir
from yamame.checks import ArgumentError, UsageError, bounds_of
from yamame.cli.nodes import check, instantiate, located, plain, targets
from yamame.cli.sections import Config, Natural, Target, Text
from yamame.cli.validation import parameters_of
from yamame.files.trusted import locate
from yamame.system.messages import OutsideError
from yamame.system.user_code import UserCodeError


def test_targets_outside_the_list_are_refused_by_key_before_any_import():
    named = {
        "agent": {
            "parts": [{"_target_": "torch.nn.ReLU"}, {"_target_": "a_module_that_is_nowhere.f"}]
        }
    }
    with pytest.raises(
        UsageError, match=r"agent\.parts\.1\._target_: must begin with yamame\..*nowhere\.f'"
    ):
        located(named)
    # Inside the list the same module is looked for, so the refusal above came first.
    with pytest.raises(UsageError, match="must name a class or function"):
        check(OmegaConf.create({"a": {"_target_": "torch.nn.a_module_that_is_nowhere.f"}}))


@pytest.mark.parametrize(
    "target", ["torchvision.models", "yamamex.a", "os.system", 3, "Torch.nn.ReLU", "torch.hub.load"]
)
def test_a_prefix_is_a_whole_package_name(target):
    with pytest.raises(UsageError, match=r"x\._target_: must begin with"):
        located({"x": {"_target_": target}})


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


def test_nodes_within_a_node_that_is_not_recursive_stay_plain(own_module):
    own_module("keeping", "def keep(part):\n    return part\n")
    node = {"_target_": "keeping.keep", "part": [{"_target_": "torch.nn.ReLU"}]}
    config = OmegaConf.create({"x": node, "trust": ["keeping."]})
    assert isinstance(instantiate(config.x)[0], torch.nn.ReLU)
    config.x["_recursive_"] = False
    assert instantiate(config.x) == [{"_target_": "torch.nn.ReLU"}]


def test_a_partial_node_gives_a_function_of_the_rest():
    node = OmegaConf.create({"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.5})
    parameter = torch.nn.Parameter(torch.zeros(2))
    assert instantiate(node, momentum=0.9)([parameter]).defaults["momentum"] == 0.9


def test_what_a_constructor_refuses_is_reported_with_its_key():
    config = OmegaConf.create(
        {"agent": {"budget": {"_target_": "yamame.system.budget.Budget", "updates": 0}}}
    )
    with pytest.raises(UsageError, match=r"^agent\.budget\.updates: must be .* got 0$"):
        instantiate(config.agent.budget)
    with pytest.raises(
        UsageError, match=r"^agent\.budget: .*unexpected keyword argument 'nothing'"
    ):
        instantiate(config.agent.budget, nothing=1)
    nested = {"_target_": "torch.nn.Sequential", "_args_": [plain(config.agent.budget)]}
    with pytest.raises(UsageError, match=r"^net\._args_\.0\.updates: must be .* got 0$"):
        instantiate(OmegaConf.create({"net": nested}).net)
    config.agent.budget.updates = 5
    with pytest.raises(UsageError, match=r"^agent\.budget \(Budget\): minutes must be .* got 0$"):
        instantiate(config.agent.budget, minutes=0)  # known at run time, no setting


OWN = """
from yamame.checks import ArgumentError, UsageError
from yamame.system.messages import OutsideError

class MissingPackage(ImportError, ValueError):
    pass

class Own:
    def __init__(self, kind, loc=0.25, scale=1, flag=True, fact=None):
        errors = {
            "value": ValueError("it broke\\n  here"),
            "missing": MissingPackage("it needs a package"),
            "memory": MemoryError(),
            "torch": RuntimeError("[enforce fail at alloc.cpp:1] not enough memory"),
            "usage": UsageError("scale=1 is too small"),
            "outside": OutsideError("a simulator crashed"),
            "setting": ArgumentError("Own", "scale", scale, "be even"),
            "computed": ArgumentError("Inner", "scale", 2 * scale, "be below 1"),
            "fact": ArgumentError("Own", "fact", fact, "be given"),
        }
        raise errors[kind]
"""


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("usage", "part: scale=1 is too small"),
        ("setting", "part.scale: must be even, got 3"),
        ("computed", "part (Inner): scale must be below 1, got 6"),
        ("fact", "part (Own): fact must be given, got null"),
    ],
)
@pytest.mark.parametrize("is_partial", [False, True])
def test_an_error_of_a_constructor_gets_the_key_of_its_node(own_module, kind, message, is_partial):
    own_module("numbered", OWN)
    node = {"_target_": "numbered.Own", "kind": kind, "scale": 3, "loc": 0.25, "flag": True}
    node |= {"_partial_": True} if is_partial else {}
    config = OmegaConf.create({"part": node, "trust": ["numbered."]})
    with pytest.raises(UsageError) as raised:
        instantiate(config.part)()
    assert str(raised.value) == message


@pytest.mark.parametrize("kind", ["value", "missing", "memory", "torch"])
@pytest.mark.parametrize("is_partial", [False, True])
def test_an_error_of_user_code_in_a_constructor_has_its_place(own_module, kind, is_partial):
    own_module("numbered", OWN)
    node = {"_target_": "numbered.Own", "kind": kind, "scale": 3}
    node |= {"_partial_": True} if is_partial else {}
    config = OmegaConf.create({"part": node, "trust": ["numbered."]})
    with pytest.raises(UserCodeError) as raised:
        instantiate(config.part)()
    error = raised.value
    line = next(n for n, text in enumerate(OWN.splitlines(), 1) if "raise errors" in text)
    assert (Path(error.file).name, error.line) == ("numbered.py", line)
    assert error.what == "part (numbered.Own)"
    assert error.reason.startswith(type(error.__cause__).__name__)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("node", "parts"),
    [
        # Errors of libraries do not name arguments, so that numbers are listed, largest first.
        (
            {"_target_": "torch.nn.Linear", "in_features": 10**15, "out_features": 10**9},
            ["; got in_features=1000000000000000, out_features=1000000000"],
        ),
        ({"_target_": "torch.nn.Dropout", "p": -1.0}, ["got -1.0"]),
        (
            {"_target_": "torch.nn.MultiheadAttention", "embed_dim": 3, "num_heads": 2},
            ["divisible"],
        ),
        ({"_target_": "numbered.Own", "kind": "value", "depth": 2}, ["argument 'depth'"]),
        ({"_target_": "numbered.Own"}, ["argument: 'kind'"]),
    ],
)
def test_an_error_about_arguments_of_a_library_or_of_user_code_has_the_key(own_module, node, parts):
    own_module("numbered", OWN)
    config = OmegaConf.create({"part": node, "trust": ["numbered."]})
    with pytest.raises(UsageError, match=r"^part: ") as raised:
        instantiate(config.part)
    assert not [part for part in parts if part not in str(raised.value)]


def outside(bounds):
    """Values on the wrong side of bounds."""
    sides = (bounds.least, -1), (bounds.most, 1), (bounds.above, 0), (bounds.below, 0)
    return [limit + step for limit, step in sides if limit is not None]


def bounded_arguments():
    """Every bounded argument of the classes that the configurations name, with its bounds."""
    found = {}
    for path in sorted(conf_dir().rglob("*.yaml")):
        config = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        for _, node in targets(config):
            target = locate(node["_target_"], "part")
            for name, bounds in bounds_of(target).items():
                found[node["_target_"], name] = bounds
    return found


def test_values_outside_of_the_bounds_of_a_signature_are_named_by_their_key():
    arguments = bounded_arguments()
    for (path, name), bounds in arguments.items():
        parameters = parameters_of(locate(path, "part"))
        # All others pass their checks, and nothing is built with them.
        given = {}
        for other, parameter in parameters.items():
            if parameter.default is parameter.empty and parameter.kind in (1, 3) and other != name:
                allowed = arguments.get((path, other))
                given[other] = allowed and next(v for v in (1, 0.5, 8) if allowed.contain(v))
        for value in outside(bounds):
            node = OmegaConf.create({"part": {"_target_": path, name: value}}).part
            with pytest.raises(ArgumentError) as raised:
                instantiate(node, **given)
            assert str(raised.value).startswith(f"part.{name}: must be "), path
            assert str(raised.value).endswith(f", got {value}"), path


def test_bounds_of_several_rooms_are_checked():
    assert len(bounded_arguments()) >= 2


def test_a_failure_outside_of_the_program_is_no_mistake_of_the_configuration(own_module):
    own_module("numbered", OWN)
    node = {"_target_": "numbered.Own", "kind": "outside"}
    with pytest.raises(OutsideError, match=r"^a simulator crashed$"):
        instantiate(OmegaConf.create({"part": node, "trust": ["numbered."]}).part)


def test_plain_resolves_and_refuses_missing_values():
    assert plain(OmegaConf.create({"a": 1, "b": ["${a}"]})) == {"a": 1, "b": [1]}
    with pytest.raises(UsageError, match=r"b: must be given; add b=\.\.\."):
        plain(OmegaConf.create({"b": "???"}))


class Small(Config):
    seed: Natural
    trust: list[Text]
    part: Target
    name: Text
    copied: Text


def wrong_keys(**changed):
    """Return the keys of all mistakes in a configuration."""
    part = {"_target_": "torch.nn.Linear", "in_features": 2}
    values = {"seed": 0, "trust": [], "part": part, "name": "a", "copied": "${name}"}
    with pytest.raises(UsageError) as raised:
        check(OmegaConf.create(values | changed), Small, overridden=[])
    found = getattr(raised.value, "problems", [raised.value])
    return [problem.key for problem in found]


def test_all_mistakes_are_found_at_once_in_the_order_of_the_keys():
    linear = "torch.nn.Linear"
    ours = {"_target_": "torch.nn.ReLU", "inplace": {"_target_": linear, "in_features": "x"}}
    wrong = {"_target_": "os.system", "deep": ours}
    part = {"_target_": linear, "in_features": "x"}
    assert wrong_keys(seed=-1, part=part) == ["seed", "part.in_features"]
    assert wrong_keys(name="???", seed=-1) == ["seed", "name", "copied"]
    assert wrong_keys(copied="${nothing}", seed=-1) == ["seed", "copied"]
    assert wrong_keys(part={"_target_": linear, "bias": "???"}, seed=-1) == ["seed", "part.bias"]
    keys = ["seed", "trust", "part._target_", "part.deep.inplace.in_features"]
    assert wrong_keys(part=wrong, trust=[1, "os"], seed=-1)[:2] == keys[:2]
    assert set(keys) <= set(wrong_keys(part=wrong, trust=[1, "os"], seed=-1))


def test_nothing_of_a_trusted_package_is_imported_if_a_name_is_wrong(own_module):
    own_module("mylab", "raise AssertionError")
    parts = {"_target_": "os.system", "deep": {"_target_": "mylab.Part"}}
    assert wrong_keys(part=parts, trust=["mylab."]) == ["part._target_"]


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
    with pytest.raises(UsageError, match=rf"x\._target_: {message}.*got '{target}'"):
        instantiate(OmegaConf.create({"x": {"_target_": target}}).x)


def test_a_package_of_the_users_own_is_named_in_trust(own_module):
    own_module("mylab", "from os import getcwd\nclass Part:\n    pass\n")
    config = {"part": {"_target_": "mylab.Part"}}
    with pytest.raises(
        UsageError, match=r"part\._target_: must begin with .* package of trust.*'mylab\.Part'"
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
