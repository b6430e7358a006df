"""Names of parameters in the state of an optimizer, which PyTorch restores by position alone.

Without names, the state of one parameter would be given to another if the order or the division
into groups changed: silently if shapes are equal. `name_parameters` stores names and shapes in the
groups, so that they are saved with the state, and compares them whenever a state is loaded. A state
without names, as of an earlier version, is loaded if sizes of groups and shapes fit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from yamame.checks import StateMismatchError

Group = dict[str, Any]

_RECORDED = ("parameter_names", "parameter_shapes", "parameter_roles")
_LIKE_PARAMETERS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "sum")
"""Entries of PyTorch's optimizers that have the shape of their parameter."""
_MOST_LISTED = 3
"""Largest number of parameters that a message lists."""


@dataclass(frozen=True)
class _Place:
    """Place of a parameter in the groups of an optimizer."""

    name: str
    shape: list[int]
    method: str
    role: str | None

    def __str__(self) -> str:
        return self.method if self.role is None else f"{self.method} (role {self.role})"


def name_parameters(
    optimizer: torch.optim.Optimizer,
    module: nn.Module | None,
    *,
    roles: Mapping[str, str] | None = None,
) -> None:
    """Store the names of parameters in an optimizer, and compare them when it loads a state.

    Names that an earlier call has stored stay. Loading a state then raises
    `yamame.checks.StateMismatchError` if it belongs to other parameters.

    Args:
        optimizer: Gets the entries ``parameter_names`` and ``parameter_shapes`` in each group. An
            optimizer that updates its groups by different methods has a static method
            ``method_of(group)`` that returns the name of the method.
        module: Module of the parameters. A parameter outside of it is named by its position. None:
            no names are stored, and only sizes of groups and shapes are compared.
        roles: Roles by name, stored as ``parameter_roles`` for the error message.

    >>> former = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> optimizer = torch.optim.SGD(former.parameters(), lr=0.1)
    >>> name_parameters(optimizer, former)
    >>> optimizer.state_dict()["param_groups"][0]["parameter_names"]
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """
    is_named = any("parameter_names" in group for group in optimizer.param_groups)
    if module is not None and not is_named:
        _store_names(optimizer, module, roles)
    recorded: list[Group] = []
    for group in optimizer.param_groups:
        recorded.append({key: group[key] for key in _RECORDED if key in group})

    def restore(optimizer: torch.optim.Optimizer) -> None:
        # Loading replaces the groups, also by groups of an earlier version, without names.
        for group, entries in zip(optimizer.param_groups, recorded, strict=False):
            group.update(entries)

    optimizer.register_load_state_dict_pre_hook(_check_state)
    optimizer.register_load_state_dict_post_hook(restore)


def _store_names(
    optimizer: torch.optim.Optimizer, module: nn.Module, roles: Mapping[str, str] | None
) -> None:
    name_of = {parameter: name for name, parameter in module.named_parameters()}
    for index, group in enumerate(optimizer.param_groups):
        names = []
        shapes = []
        for place, parameter in enumerate(group["params"]):
            names.append(name_of.get(parameter, f"parameter {place} of group {index}"))
            # A list, because a torch.Size is not plain data.
            shapes.append(list(parameter.shape))
        group["parameter_names"] = names
        group["parameter_shapes"] = shapes
        if roles is not None:
            group["parameter_roles"] = [roles.get(name) for name in names]


def _check_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Raise if a state was saved for other parameters, or for another division into groups.

    Raises:
        StateMismatchError: Names the first difference.
    """
    owner = type(optimizer).__name__
    groups = optimizer.param_groups
    saved = state["param_groups"]
    name_of_method = getattr(optimizer, "method_of", None)
    has_roles = name_of_method is not None

    def method_of(group: Group, index: int) -> str:
        return f"group {index}" if name_of_method is None else name_of_method(group)

    if all("parameter_names" in group for group in (*groups, *saved)):
        _compare_places(owner, _places(groups, method_of), _places(saved, method_of))
    sizes = _sizes(groups, method_of)
    former_sizes = _sizes(saved, method_of)
    if sizes != former_sizes:
        raise StateMismatchError(
            f"{owner}: its numbers of parameters are {', '.join(sizes)}, the saved state has "
            f"{', '.join(former_sizes)}",
            remedy=_remedy(of_roles=has_roles),
        )
    for group, saved_group in zip(groups, saved, strict=True):
        pairs = zip(group["params"], saved_group["params"], strict=True)
        for place, (parameter, key) in enumerate(pairs):
            entries = state["state"].get(key, {})
            wrong = _entry_of_other_shape(parameter, entries)
            if wrong is not None:
                name = f"parameter {place}"
                if "parameter_names" in group:
                    name = group["parameter_names"][place]
                raise StateMismatchError(
                    f"{owner}: {name} has shape {list(parameter.shape)}, its {wrong} in the saved "
                    f"state {list(entries[wrong].shape)}",
                    remedy=_remedy(of_roles=has_roles),
                )


def _sizes(groups: list[Group], method_of: Callable[[Group, int], str]) -> list[str]:
    """Return the number of parameters of each group, in words."""
    sizes = []
    for index, group in enumerate(groups):
        sizes.append(f"{len(group['params'])} of {method_of(group, index)}")
    return sizes


def _entry_of_other_shape(parameter: Tensor, entries: Mapping[str, Any]) -> str | None:
    """Return the name of a saved entry that should have the shape of its parameter and has not."""
    for name in _LIKE_PARAMETERS:
        value = entries.get(name)
        if isinstance(value, Tensor) and value.shape != parameter.shape:
            return name
    return None


def _places(groups: list[Group], method_of: Callable[[Group, int], str]) -> list[_Place]:
    """Return the places of all parameters, in order."""
    places = []
    for index, group in enumerate(groups):
        names = group["parameter_names"]
        shapes = group["parameter_shapes"]
        roles = group.get("parameter_roles", [None] * len(names))
        for name, shape, role in zip(names, shapes, roles, strict=True):
            places.append(_Place(name, list(shape), method_of(group, index), role))
    return places


def _compare_places(owner: str, present: list[_Place], former: list[_Place]) -> None:
    """Compare the places of parameters, by names first, because these make the better message."""
    place_before = {place.name: place for place in former}
    names = set()
    pairs = []
    for new in present:
        names.add(new.name)
        if new.name in place_before:
            pairs.append((place_before[new.name], new))
    moved = []
    for old, new in pairs:
        if old.method != new.method:
            moved.append(f"{new.name} {new.shape} was updated by {old} and is now updated by {new}")
    if moved:
        listed = "; ".join(moved[:_MOST_LISTED])
        if len(moved) > _MOST_LISTED:
            listed += f"; and {len(moved) - _MOST_LISTED} more"
        raise StateMismatchError(f"{owner}: {listed}", remedy=_remedy(of_roles=True))
    for old, new in pairs:
        if old.shape != new.shape:
            raise StateMismatchError(
                f"{owner}: {new.name} had shape {old.shape} and has shape {new.shape} now",
                remedy=_remedy(of_roles=False),
            )
    if len(present) != len(former):
        differing = sorted(place_before.keys() ^ names)
        raise StateMismatchError(
            f"{owner}: the saved state is of {len(former)} parameters, there are {len(present)} "
            f"now, differing in {', '.join(differing[:_MOST_LISTED])}",
            remedy=_remedy(of_roles=False),
        )
    for new, old in zip(present, former, strict=True):
        # A parameter that was merely renamed keeps its state. One that has moved would get the
        # state of another.
        has_moved = old.name in names or new.name in place_before
        if new.name != old.name and has_moved:
            raise StateMismatchError(
                f"{owner}: {new.name} is in the place that {old.name} had when the state was saved",
                remedy=_remedy(of_roles=False),
            )


def _remedy(*, of_roles: bool) -> str:
    restored = "parameter_roles (or optimizer.smallest)" if of_roles else "network"
    return f"restore the former {restored} to continue, or start a new run"
