"""Roles of a network's parameters: which are hidden matrices, which are tables, and which face
inputs and outputs.

An optimizer such as Muon is meant for hidden matrices alone. Roles are read off the types of
modules, never off sizes: they are the same for any number of actions, discount factors or bins. A
module may state roles of its own parameters, in an attribute or property ``parameter_roles``, a
mapping from names of its parameters or submodules to roles::

    class Head(nn.Module):
        parameter_roles = {"out": "output", "slots": "table"}

A statement about a submodule holds for all parameters in it. Where modules contradict each other,
the outer one counts.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from torch import Tensor, nn

from yamame.checks import require_choice

Role = Literal["hidden", "input", "output", "table", "other", "unknown"]
"""Roles of a parameter.

``hidden``: a matrix between two layers. ``input``: the first layer of what reads an observation.
``output``: the last layer of a head. ``table``: vectors that are looked up or learnt as they are,
such as embeddings, positions and slots of memory. ``other``: gains, biases and kernels of
convolutions. ``unknown``: a matrix of a class that is not PyTorch's and states no role.
"""

_MULTIPLY = (nn.Linear, nn.Bilinear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
_LOOK_UP = (nn.Embedding, nn.EmbeddingBag)
_HOLD = (nn.ParameterList, nn.ParameterDict, nn.Sequential, nn.ModuleList, nn.ModuleDict)


def parameter_roles(module: nn.Module) -> dict[str, Role]:
    """The role of every parameter of a module, by the names of ``module.named_parameters()``.

    A parameter that is shared is a hidden matrix only if it is one in every place.

    Raises:
        ValueError: A module states a role that does not exist, or of something that it does not
            have.

    >>> parameter_roles(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)))
    {'0.weight': 'table', '1.weight': 'hidden', '1.bias': 'other'}
    """
    parts = dict(module.named_modules(remove_duplicate=False))
    statements = {path: _statements(part) for path, part in parts.items()}
    by_parameter: dict[Tensor, set[Role]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner, _, own_name = name.rpartition(".")
        role = _stated(name, statements) or _by_type(parts[owner], own_name, parameter)
        # A statement about a whole submodule names its matrices; the biases beside them are none.
        is_vector = role == "hidden" and parameter.ndim < 2
        by_parameter.setdefault(parameter, set()).add("other" if is_vector else role)
    return {
        name: min(by_parameter[parameter], key=lambda role: (role == "hidden", role))
        for name, parameter in module.named_parameters()
    }


def hidden_matrices(module: nn.Module) -> list[Tensor]:
    """The parameters of a module that are hidden matrices, or stacks of them."""
    roles = parameter_roles(module)
    return [parameter for name, parameter in module.named_parameters() if roles[name] == "hidden"]


def output_layers(head: nn.Module) -> list[str]:
    """Names of the last layers of a head: in a list of modules those of each, else those of the
    last one.

    The name of a head that is a single layer is empty. A head that states its outputs itself, or in
    one of its modules, is left alone: the list is empty.

    >>> output_layers(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    ['2']
    >>> output_layers(nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)]))
    ['0', '1']
    """
    if any("output" in _statements(part).values() for part in head.modules()):
        return []
    return list(_last_layers(head))


def _last_layers(module: nn.Module) -> Iterator[str]:
    """Paths of the last modules that hold a hidden matrix; the empty path is the module itself."""
    children = [
        (name, child)
        for name, child in module.named_children()
        if "hidden" in parameter_roles(child).values()
    ]
    if not children:
        yield ""
        return
    if not isinstance(module, nn.ModuleList | nn.ModuleDict):
        children = children[-1:]
    for name, child in children:
        for path in _last_layers(child):
            yield f"{name}.{path}" if path else name


def _statements(module: nn.Module) -> Mapping[str, Role]:
    """The roles that a module states of what it holds."""
    stated: Mapping[str, Role] = getattr(module, "parameter_roles", {})
    owner = type(module).__name__
    for name, role in stated.items():
        require_choice(owner, f"parameter_roles[{name!r}]", role, get_args(Role))
        holder, _, own_name = name.rpartition(".")
        try:
            has_it = hasattr(module.get_submodule(holder), own_name)
        except AttributeError:
            has_it = False
        if not has_it:
            raise ValueError(
                f"{owner}: parameter_roles must name parameters or submodules, got {name!r}"
            )
    return stated


def _stated(name: str, statements: Mapping[str, Mapping[str, Role]]) -> Role | None:
    """The role that the outermost module states of a parameter; of its statements the most specific
    one.
    """
    for path, stated in statements.items():  # outer modules come first
        full = {f"{path}.{part}" if path else part: role for part, role in stated.items()}
        fitting = [part for part in full if name == part or name.startswith(f"{part}.")]
        if fitting:
            return full[max(fitting, key=len)]
    return None


def _by_type(owner: nn.Module, name: str, parameter: Tensor) -> Role:
    """The role of a parameter of which no module says anything."""
    if parameter.ndim < 2:
        return "other"
    if isinstance(owner, _MULTIPLY):
        return (
            "hidden" if "weight" in name else "other"
        )  # nn.MultiheadAttention has biases [1, 1, D]
    if isinstance(owner, _LOOK_UP):
        return "table"
    kinds = [
        kind for kind in type(owner).__mro__ if kind.__module__.startswith("torch.nn.modules.")
    ]
    is_layer_of_torch = any(kind not in (nn.Module, *_HOLD) for kind in kinds)
    return "other" if is_layer_of_torch or min(parameter.shape[-2:]) == 1 else "unknown"
