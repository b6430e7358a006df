"""Former names of the hooks and attributes of environments, kept for one version."""

import warnings
from collections.abc import Mapping

CONTEXT_HOOKS: Mapping[str, str] = {
    "_present": "current_timestep",
    "_restart": "restart",
    "_begin_episodes": "begin_episodes",
    "_begin_again": "begin_again",
    "_advance": "advance",
    "_number": "number_episodes",
    "_chosen_tasks": "requested_seeds",
    "_check_action": "check_action",
    "_overrides": "overrides",
}
"""Names of `ContextEnv` by their former names."""
BATCHED_HOOKS: Mapping[str, str] = {
    **CONTEXT_HOOKS,
    "_draw_tasks": "draw_tasks",
    "_begin": "begin",
    "_transition": "transition",
    "_observe": "observe",
    "_hidden": "hidden_values",
    "_limit": "task_limit",
    "_draw": "draw_picture",
    "_override": "override",
    "_hold_out": "hold_out",
    "_check_split": "check_split",
    "_identities": "identities",
    "_identity": "identity",
    "_novelty": "split_novelty",
    "_split": "split",
}
"""Names of `BatchedEnv` by their former names."""
GOAL_HOOKS: Mapping[str, str] = {
    **BATCHED_HOOKS,
    "_begin_world": "begin_world",
    "_move": "move",
    "_look": "look",
    "_achieved": "achieved_goals",
    "_check_instruction": "check_instruction",
}
"""Names of `GoalEnv` by their former names."""


def link_former_names(owner: type, names: Mapping[str, str]) -> None:
    """Give everything that a class defines its former and its new name.

    Each class of a hierarchy is linked, so ``super()`` works with both names.

    Args:
        owner: Class whose own attributes are linked.
        names: New names by former names. A class that defines only the former name warns.
    """
    defined = vars(owner)
    for former, name in names.items():
        if name in defined:
            # An abstract method has nothing to call, and would have to be implemented twice.
            if getattr(defined[name], "__isabstractmethod__", False):
                continue
            setattr(owner, former, defined[name])
        elif former in defined:
            setattr(owner, name, defined[former])
            warnings.warn(
                f"{owner.__name__}: {former} is now called {name}; the former name works until "
                "the next version",
                FutureWarning,
                stacklevel=3,
            )


def former_attribute(name: str) -> property:
    """Return a property that reads an attribute by its former name."""

    def read(owner: object) -> object:
        return getattr(owner, name)

    return property(read, doc=f"Former name of `{name}`.")
