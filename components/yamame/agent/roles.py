"""Roles of a network's parameters, such as hidden matrix, table or output layer.

An optimizer such as Muon is meant for hidden matrices alone. Roles are derived from the types of
modules, never from sizes, so they are the same for any number of actions, discount factors or bins.
A module may declare roles of its parameters in an attribute or property ``parameter_roles``, a
mapping from names of its parameters or submodules to roles::

    class Head(nn.Module):
        parameter_roles = {"out": "output", "slots": "table"}

The role of a submodule holds for all parameters in it. If modules contradict each other, the outer
one counts.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from torch import Tensor, nn

from yamame.checks import ArgumentError, require_choice

Role = Literal["hidden", "input", "output", "table", "other", "unknown"]
"""Roles of a parameter.

``hidden``: a matrix between two layers. ``input``: the first layer of an encoder of observations.
``output``: the last layer of a head. ``table``: vectors that are looked up or learnt as they are,
such as embeddings, positions and memory slots. ``other``: gains, biases and kernels of
convolutions. ``unknown``: a matrix of a class that is not PyTorch's and declares no role.
"""

_MULTIPLY = (nn.Linear, nn.Bilinear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
_LOOK_UP = (nn.Embedding, nn.EmbeddingBag)
_CONTAINERS = (nn.ParameterList, nn.ParameterDict, nn.Sequential, nn.ModuleList, nn.ModuleDict)


def parameter_roles(module: nn.Module) -> dict[str, Role]:
    """Return the role of every parameter, by the names of ``module.named_parameters()``.

    A parameter that is shared is a hidden matrix only if it is one in every place.

    Raises:
        ValueError: A module declares a role that does not exist, or a role of something that it
            does not have.

    >>> parameter_roles(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)))
    {'0.weight': 'table', '1.weight': 'hidden', '1.bias': 'other'}
    """
    parts = dict(module.named_modules(remove_duplicate=False))
    declarations = {path: _declared_roles(part) for path, part in parts.items()}
    by_parameter: dict[Tensor, set[Role]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner, _, own_name = name.rpartition(".")
        role = _declared_role(name, declarations)
        if role is None:
            role = _role_by_type(parts[owner], own_name, parameter)
        # The role of a whole submodule concerns its matrices, not the biases beside them.
        if role == "hidden" and parameter.ndim < 2:
            role = "other"
        by_parameter.setdefault(parameter, set()).add(role)

    roles: dict[str, Role] = {}
    for name, parameter in module.named_parameters():
        candidates = sorted(by_parameter[parameter])
        if len(candidates) > 1 and "hidden" in candidates:
            candidates.remove("hidden")
        roles[name] = candidates[0]
    return roles


def hidden_matrices(module: nn.Module) -> list[Tensor]:
    """Return the parameters of a module that are hidden matrices, or stacks of them."""
    roles = parameter_roles(module)
    return [parameter for name, parameter in module.named_parameters() if roles[name] == "hidden"]


def output_layers(head: nn.Module) -> list[str]:
    """Return the paths of the last layers of a head.

    In a list of modules these are the last layers of each, elsewhere those of the last module. The
    path of a head that is a single layer is empty. If the head or one of its modules declares
    outputs, the list is empty.

    >>> output_layers(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    ['2']
    >>> output_layers(nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)]))
    ['0', '1']
    """
    for part in head.modules():
        if "output" in _declared_roles(part).values():
            return []
    return list(_last_layers(head))


def _last_layers(module: nn.Module) -> Iterator[str]:
    """Yield paths of the last modules that hold a hidden matrix; empty for the module itself."""
    children: list[tuple[str, nn.Module]] = []
    for name, child in module.named_children():
        if "hidden" in parameter_roles(child).values():
            children.append((name, child))
    if not children:
        yield ""
        return
    if not isinstance(module, nn.ModuleList | nn.ModuleDict):
        children = children[-1:]
    for name, child in children:
        for path in _last_layers(child):
            yield f"{name}.{path}" if path else name


def _declared_roles(module: nn.Module) -> Mapping[str, Role]:
    """Return the roles that a module declares, after a check of names and roles."""
    declared: Mapping[str, Role] = getattr(module, "parameter_roles", {})
    owner = type(module).__name__
    for name, role in declared.items():
        require_choice(owner, f"parameter_roles[{name!r}]", role, get_args(Role))
        holder, _, own_name = name.rpartition(".")
        try:
            exists = hasattr(module.get_submodule(holder), own_name)
        except AttributeError:
            exists = False
        if not exists:
            raise ArgumentError(owner, "parameter_roles", name, "name parameters or submodules")
    return declared


def _declared_role(name: str, declarations: Mapping[str, Mapping[str, Role]]) -> Role | None:
    """Return the role that the outermost module declares for a parameter.

    If several declarations of that module fit, the most specific one counts.
    """
    # Outer modules come first.
    for path, declared in declarations.items():
        fitting: dict[str, Role] = {}
        for part, role in declared.items():
            full = f"{path}.{part}" if path else part
            if name == full or name.startswith(f"{full}."):
                fitting[full] = role
        if fitting:
            return fitting[max(fitting, key=len)]
    return None


def _role_by_type(owner: nn.Module, name: str, parameter: Tensor) -> Role:
    """Return the role of a parameter for which no module declares one."""
    if parameter.ndim < 2:
        return "other"
    if isinstance(owner, _MULTIPLY):
        # The biases of nn.MultiheadAttention have the shape [1, 1, D].
        return "hidden" if "weight" in name else "other"
    if isinstance(owner, _LOOK_UP):
        return "table"
    for kind in type(owner).__mro__:
        is_of_torch = kind.__module__.startswith("torch.nn.modules.")
        if is_of_torch and kind not in (nn.Module, *_CONTAINERS):
            return "other"
    # A vector, stored as a matrix of one row or column.
    if min(parameter.shape[-2:]) == 1:
        return "other"
    return "unknown"
