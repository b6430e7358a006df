"""The state of an optimizer is restored to the parameters that it belongs to, or refused by
name.
"""

import copy

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from yamame.files.checkpoint import Checkpointer
from yamame.training import Learner, MuonAdamW

ROLES = {"first": "hidden", "second": "table"}


def network(roles, *, size=4):
    """Two matrices of a class that states its roles, and a layer of PyTorch."""

    class Own(nn.Module):
        parameter_roles = roles

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Parameter(torch.randn(4, 4))
            self.second = nn.Parameter(torch.randn(size, 4))
            self.layer = nn.Linear(4, 4)

    return Own()


def muon(module, **settings):
    return MuonAdamW(module.parameters(), module=module, **settings)


def trained(optimizer, updates=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return optimizer


def state_of(optimizer):
    return copy.deepcopy(trained(optimizer).state_dict())


def of_earlier_version(state):
    """Without what earlier versions did not store."""
    for group in state["param_groups"]:
        for key in ("parameter_names", "parameter_shapes", "parameter_roles"):
            group.pop(key, None)
    return state


def refusal(load, *arguments):
    """The message of an error that is meant for users, or nothing."""
    try:
        load(*arguments)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("roles", "size", "named"),
    [
        ({"first": "table", "second": "hidden"}, 4, "first"),  # equal shapes
        ({"first": "table", "second": "hidden"}, 6, "first"),
        ({"first": "hidden", "second": "hidden"}, 4, "second"),  # other sizes of groups
        ({"first": "table", "second": "table", "layer": "table"}, 4, "first"),  # a group less
    ],
)
def test_a_state_of_other_roles_is_refused_by_the_name_of_a_parameter(roles, size, named):
    state = state_of(muon(network(ROLES, size=size)))
    other = muon(network(roles, size=size))
    message = refusal(other.load_state_dict, state)
    assert named in message
    for role in (ROLES[named], roles[named]):
        assert f"role {role}" in message
    assert not other.state_dict()["state"]  # as it was


def test_a_state_of_the_same_roles_and_one_of_an_earlier_version_go_on_exactly():
    for change in (copy.copy, of_earlier_version):
        module = network(ROLES)
        optimizer = muon(module)
        state, copied = state_of(optimizer), copy.deepcopy(module)
        other = muon(copied)
        other.load_state_dict(change(state))
        trained(optimizer, seed=1)
        trained(other, seed=1)
        assert all(map(torch.equal, module.parameters(), copied.parameters()))
        # What goes on is recorded again.
        changed = muon(network({"first": "table", "second": "hidden"}))
        assert "first" in refusal(changed.load_state_dict, other.state_dict())


def test_roles_that_lead_to_the_same_optimizer_may_change():
    state = state_of(muon(network(ROLES)))
    other = muon(network({"first": "hidden", "second": "output"}))
    other.load_state_dict(state)
    assert len(other.state_dict()["state"]) == 4


def test_a_state_without_names_is_refused_by_sizes_and_shapes():
    state = of_earlier_version(state_of(muon(network(ROLES, size=6))))
    both = refusal(
        muon(network({"first": "hidden", "second": "hidden"}, size=6)).load_state_dict, state
    )
    assert "2 of Muon" in both
    assert "3 of Muon" in both
    swapped = {"first": "table", "second": "hidden"}
    assert "second" in refusal(muon(network(swapped, size=6)).load_state_dict, state)


@pytest.mark.parametrize("smallest", [2, 5])
def test_by_size_matrices_and_others_are_not_confused(smallest):
    state = of_earlier_version(state_of(MuonAdamW([nn.Parameter(torch.ones(4, 4))], smallest=2)))
    other = MuonAdamW([nn.Parameter(torch.ones(4, 4))], smallest=smallest)
    assert ("Muon" in refusal(other.load_state_dict, state)) == (smallest == 5)


class Loss(nn.Module):
    """Layers in an order, with names of their own."""

    def __init__(self, *names, size=3):
        super().__init__()
        torch.manual_seed(0)
        for name in names:
            self.add_module(name, nn.Linear(3, size, bias=False))

    def forward(self, batch):
        return TensorDict(
            {"loss_a": sum(layer(batch["x"]).square().mean() for layer in self.children())}
        )


def learner(*names, size=3):
    loss = Loss(*names, size=size)
    made = Learner(loss, torch.optim.AdamW(loss.parameters(), lr=0.1), max_grad_norm=1.0)
    made.update(TensorDict({"x": torch.randn(4, 3, generator=torch.Generator().manual_seed(0))}))
    return made


@pytest.mark.parametrize(
    ("names", "size", "told"),
    [
        (("one", "two"), 3, ""),
        (("two", "one"), 3, "one.weight"),
        (("one", "two"), 5, "one.weight"),
        (("one", "renamed"), 3, ""),  # a state dictionary of modules decides about names
        (("one", "two", "three"), 3, "three.weight"),
    ],
)
@pytest.mark.parametrize("earlier", [False, True])
def test_the_state_of_any_optimizer_belongs_to_its_parameters(names, size, told, earlier):
    state = copy.deepcopy(learner("one", "two").optimizer.state_dict())
    if earlier:
        state = of_earlier_version(state)
        told = "" if names == ("two", "one") else "2 of group 0" if len(names) > 2 else told
    message = refusal(learner(*names, size=size).optimizer.load_state_dict, state)
    assert told in message
    assert bool(message) == bool(told)


def test_a_checkpoint_of_other_roles_is_refused_as_it_is_and_no_copy_is_asked_for(tmp_path, capsys):
    saved = trained(muon(network(ROLES)))
    checkpointer = Checkpointer(tmp_path)
    files = [checkpointer.save({"optimizer": saved}, step=step) for step in (1, 2)]
    swapped = muon(network({"first": "table", "second": "hidden"}))
    message = refusal(Checkpointer(tmp_path).load, {"optimizer": swapped})
    assert "first" in message
    assert "parameter_roles" in message
    assert str(files[1]) in message
    assert "from a copy" not in message
    assert capsys.readouterr().err == ""
    assert sorted(tmp_path.iterdir()) == files
    same = muon(network(ROLES))
    assert Checkpointer(tmp_path).load({"optimizer": same}).step == 2
    assert same.state_dict()["state"].keys() == saved.state_dict()["state"].keys()


def test_a_copy_is_asked_for_where_files_are_damaged_and_not_where_a_network_has_changed(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    files = [checkpointer.save({"net": nn.Linear(2, 2)}, step=step) for step in (1, 2)]
    changed = refusal(Checkpointer(tmp_path).load, {"net": nn.Linear(2, 3)})
    assert "size mismatch" in changed
    assert "from a copy" not in changed
    assert sorted(tmp_path.iterdir()) == files
    for file in files:
        file.write_bytes(file.read_bytes()[:-100])
    assert "from a copy" in refusal(Checkpointer(tmp_path).load, {"net": nn.Linear(2, 2)})


def test_matrices_outside_of_the_module_are_told(capsys):
    module, other = nn.Linear(4, 4), nn.Linear(5, 7)
    optimizer = MuonAdamW([*module.parameters(), *other.parameters()], module=module)
    assert "[7, 5]" in capsys.readouterr().err
    matrices, others = optimizer.param_groups
    assert [tuple(p.shape) for p in matrices["params"]] == [(4, 4)]
    assert [tuple(p.shape) for p in others["params"]] == [(4,), (7, 5), (7,)]
    MuonAdamW(module.parameters(), module=module)
    assert capsys.readouterr().err == ""
