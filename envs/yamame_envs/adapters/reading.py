"""Observation and action spaces of an environment, read from an instance."""

from typing import Any

import gymnasium
from yamame.checks import require
from yamame.keys import RESERVED
from yamame.spaces import ObservationEntry
from yamame.spaces.arrays import Outside
from yamame.system.messages import OutsideError

from yamame_envs.adapters.actions import read_actions
from yamame_envs.adapters.in_process import ENV_ERRORS, EnvSpaces, Failure, Make, is_own
from yamame_envs.adapters.spaces import empty_parts, read_observation
from yamame_envs.adapters.values import success_key_of


def read_spaces(
    make: Make, *, owner: str, generic: bool, success: str | None, outside: Outside = "raise"
) -> EnvSpaces:
    """Make an environment, read its spaces and close it.

    Args:
        make: Makes the environment.
        owner: Name of the environment in messages.
        generic: As for `read_observation`.
        success: Key of success in the info of a step. None: there is none. ``auto``: the first of
            `yamame_envs.adapters.values.SUCCESS_KEYS` in the info of a first step.
        outside: Handling of numbers out of bounds, see `yamame.spaces.ObservationEntry`.

    Raises:
        ArgumentError: A space cannot be converted to tensors.
        OutsideError: The environment cannot be made, for another reason than a wrong argument or a
            missing package.
    """
    try:
        env = make()
    except (TypeError, ValueError, ImportError, gymnasium.error.Error):
        # Mistakes in the arguments, which the caller can name.
        raise
    except ENV_ERRORS as error:
        if not is_own(error):
            raise
        reason = Failure.of(error).summary
        message = f"{owner}: the environment failed in env 0 while it was made: {reason}"
        raise OutsideError(message) from error

    try:
        shown = env.observation_space
        entries = read_observation(shown, owner=owner, generic=generic, outside=outside)
        empty = empty_parts(shown, owner=owner)
        actions = read_actions(env.action_space, owner=owner, outside=outside)
        success_key = _find_success(env) if success == "auto" else success
    finally:
        env.close()

    names = set()
    for entry in entries:
        name = entry.name[0]
        if name in RESERVED or (name == "trial_start" and not _is_flag(entry)):
            names.add(name)
    condition = f"not have entries {sorted(RESERVED)}, and trial_start only as MultiBinary(1)"
    require(owner, "observation_space", sorted(names), not names, condition)
    seeks_success = success == "auto" and success_key is None
    return EnvSpaces(entries, actions, success_key, seeks_success, empty=empty)


def _find_success(env: "gymnasium.Env[Any, Any]") -> str | None:
    """Return the key of success in the info of a first step; None if there is none.

    None also if the environment fails: the failure is reported where the env is played.
    """
    try:
        env.reset(seed=0)
        # The same action in every process and on every resume.
        env.action_space.seed(0)
        info = env.step(env.action_space.sample())[-1]
    except ENV_ERRORS as error:
        if not is_own(error):
            raise
        return None
    return success_key_of(info)


def _is_flag(entry: ObservationEntry) -> bool:
    is_root = len(entry.name) == 1
    return is_root and entry.kind == "bit" and entry.stored_shape == (1,)
