"""What an environment returns and takes, found out by making one."""

import pickle
from typing import Any

import gymnasium
from yamame.keys import RESERVED
from yamame.spaces import ObservationEntry
from yamame.system.messages import OutsideError

from yamame_envs.adapters.actions import read_actions
from yamame_envs.adapters.in_process import ENV_ERRORS, EnvSpaces, Failure, Make, is_own
from yamame_envs.adapters.spaces import read_observation

SUCCESS_KEYS = ("success", "is_success")
"""What environments call success in the info of a step."""


def read_spaces(make: Make, *, owner: str, generic: bool, success: str | None) -> EnvSpaces:
    """Makes an environment, reads its spaces and closes it.

    Args:
        make: Makes it.
        owner: Whose it is, for messages.
        generic: As for `read_observation`.
        success: Where the info tells of success; None: nowhere; ``auto``: under the one of
            `SUCCESS_KEYS` that is there after a step.

    Raises:
        ValueError: If a space cannot be turned into tensors.
        OutsideError: If it cannot be made, for a reason that is not a wrong argument or a package
            that is missing.
    """
    try:
        env = make()
    except (TypeError, ValueError, ImportError, gymnasium.error.Error):
        raise
    except ENV_ERRORS as error:
        if not is_own(error):
            raise
        raise OutsideError(
            f"{owner}: the environment failed in env 0 while it was made: {Failure.of(error).summary}"
        ) from error
    try:
        entries = read_observation(env.observation_space, owner=owner, generic=generic)
        actions = read_actions(env.action_space, owner=owner)
        success_key = _find_success(env) if success == "auto" else success
    finally:
        env.close()
    taken = {entry.name[0] for entry in entries if entry.name[0] in RESERVED or _is_no_flag(entry)}
    if taken:
        raise ValueError(
            f"{owner}: observation_space must not have entries {sorted(RESERVED)}, nor trial_start but as "
            f"MultiBinary(1), got {sorted(taken)}"
        )
    return EnvSpaces(entries, actions, success_key)


def _find_success(env: "gymnasium.Env[Any, Any]") -> str | None:
    """The key of success in what a step tells; None if there is none, or the environment fails, as
    is told later.
    """
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        info = env.step(env.action_space.sample())[-1]
    except ENV_ERRORS as error:
        if not is_own(error):
            raise
        return None
    return next((key for key in SUCCESS_KEYS if key in info), None)


def _is_no_flag(entry: ObservationEntry) -> bool:
    flag = (("trial_start",), "bit", (1,))
    return entry.name[0] == "trial_start" and (entry.name, entry.kind, entry.stored_shape) != flag


def check_picklable(make: Make, *, owner: str) -> None:
    """Whether ``make`` can be sent to a worker process.

    Raises:
        ValueError: If it cannot.
    """
    try:
        pickle.dumps(make)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{owner}: make must be picklable to be used in worker processes (a function of a module, or a "
            f"functools.partial of one), got {make}: {error}"
        ) from error
