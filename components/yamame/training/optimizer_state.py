"""Names of parameters in the state of an optimizer, which PyTorch restores by position alone.

Without them, the state of one parameter would be given to another if the order or the division into
groups changed: silently where shapes are equal. `name_parameters` stores names and shapes in the
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


@dataclass(frozen=True)
class _Place:
    """Where a group holds a parameter."""

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
    """Stores the names of parameters in an optimizer's groups and compares them when it loads a
    state.

    Names that an earlier call has stored stay.

    Args:
        optimizer: Gets the entries ``parameter_names`` and ``parameter_shapes`` in each group. One
            that updates its groups by different methods has a static method ``method_of(group)``
            that returns the name of one.
        module: Has the names. A parameter outside of it is named by its position. None: no names
            are stored, and only sizes of groups and shapes are compared.
        roles: Roles by name, stored as ``parameter_roles`` for the error message.

    Loading a state then raises `yamame.checks.StateMismatchError` if it belongs to other
    parameters.

    >>> former = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> optimizer = torch.optim.SGD(former.parameters(), lr=0.1)
    >>> name_parameters(optimizer, former)
    >>> optimizer.state_dict()["param_groups"][0]["parameter_names"]
    ['0.weight', '0.bias', '1.weight', '1.bias']
    """
    if module is not None and not any(
        "parameter_names" in group for group in optimizer.param_groups
    ):
        names = {parameter: name for name, parameter in module.named_parameters()}
        for index, group in enumerate(optimizer.param_groups):
            group["parameter_names"] = [
                names.get(parameter, f"parameter {place} of group {index}")
                for place, parameter in enumerate(group["params"])
            ]
            group["parameter_shapes"] = [list(parameter.shape) for parameter in group["params"]]
            if roles is not None:
                group["parameter_roles"] = [roles.get(name) for name in group["parameter_names"]]
    recorded = [
        {key: group[key] for key in _RECORDED if key in group} for group in optimizer.param_groups
    ]

    def restore(optimizer: torch.optim.Optimizer) -> None:
        """Loading replaces groups, by those of an earlier version as well."""
        for group, own in zip(optimizer.param_groups, recorded, strict=False):
            group.update(own)

    optimizer.register_load_state_dict_pre_hook(_check_state)
    optimizer.register_load_state_dict_post_hook(restore)


def _check_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Raises `yamame.checks.StateMismatchError` if a state was saved for other parameters, or for
    another division.
    """
    owner = type(optimizer).__name__
    groups, saved = optimizer.param_groups, state["param_groups"]
    name_of_method = getattr(optimizer, "method_of", None)

    def method_of(group: Group, index: int) -> str:
        return f"group {index}" if name_of_method is None else name_of_method(group)

    if all("parameter_names" in group for group in (*groups, *saved)):
        _compare_places(owner, _places(groups, method_of), _places(saved, method_of))
    sizes, former = (
        [f"{len(group['params'])} of {method_of(group, index)}" for index, group in enumerate(each)]
        for each in (groups, saved)
    )
    if sizes != former:
        raise StateMismatchError(
            f"{owner}: its numbers of parameters are {', '.join(sizes)}, the saved state has {', '.join(former)}: "
            f"{_remedy(of_roles=name_of_method is not None)}"
        )
    for group, of_group in zip(groups, saved, strict=True):
        for place, (parameter, key) in enumerate(
            zip(group["params"], of_group["params"], strict=True)
        ):
            own = state["state"].get(key, {})
            for entry in _LIKE_PARAMETERS:
                value = own.get(entry)
                if isinstance(value, Tensor) and value.shape != parameter.shape:
                    name = (
                        group["parameter_names"][place]
                        if "parameter_names" in group
                        else f"parameter {place}"
                    )
                    raise StateMismatchError(
                        f"{owner}: {name} has shape {list(parameter.shape)}, its {entry} in the saved state "
                        f"{list(value.shape)}: {_remedy(of_roles=name_of_method is not None)}"
                    )


def _places(groups: list[Group], method_of: Callable[[Group, int], str]) -> list[_Place]:
    places = []
    for index, group in enumerate(groups):
        roles = group.get("parameter_roles", [None] * len(group["parameter_names"]))
        for name, shape, role in zip(
            group["parameter_names"], group["parameter_shapes"], roles, strict=True
        ):
            places.append(_Place(name, list(shape), method_of(group, index), role))
    return places


def _compare_places(owner: str, present: list[_Place], former: list[_Place]) -> None:
    """Compares by names first, for these make the better message."""
    before = {place.name: place for place in former}
    pairs = [(before[place.name], place) for place in present if place.name in before]
    moved = [
        f"{new.name} {new.shape} was updated by {old} and is now updated by {new}"
        for old, new in pairs
        if old.method != new.method
    ]
    if moved:
        more = f"; and {len(moved) - 3} more" if len(moved) > 3 else ""
        raise StateMismatchError(f"{owner}: {'; '.join(moved[:3])}{more}: {_remedy(of_roles=True)}")
    for old, new in pairs:
        if old.shape != new.shape:
            raise StateMismatchError(
                f"{owner}: {new.name} had shape {old.shape} and has shape {new.shape} now: {_remedy(of_roles=False)}"
            )
    if len(present) != len(former):
        added = before.keys() ^ {place.name for place in present}
        raise StateMismatchError(
            f"{owner}: the saved state is of {len(former)} parameters, there are {len(present)} now, differing in "
            f"{', '.join(sorted(added)[:3])}: {_remedy(of_roles=False)}"
        )
    names = {place.name for place in present}
    for place, old in zip(present, former, strict=True):
        # A parameter that was merely renamed keeps its state; one that stands elsewhere now would
        # get another's.
        if place.name != old.name and (old.name in names or place.name in before):
            raise StateMismatchError(
                f"{owner}: {place.name} stands where {old.name} stood when the state was saved: "
                f"{_remedy(of_roles=False)}"
            )


def _remedy(*, of_roles: bool) -> str:
    restored = "parameter_roles (or optimizer.smallest)" if of_roles else "network"
    return f"restore the former {restored} to continue, or begin a new run"
