"""Observation and action spaces of an environment, read from an instance."""

import contextlib
from typing import Any

import gymnasium
from yamame.checks import ArgumentError, UsageError, require
from yamame.keys import RESERVED
from yamame.spaces import ObservationEntry
from yamame.spaces.arrays import Outside
from yamame.system.user_code import UserCodeError, blame, is_failure, user_code

from yamame_envs.adapters.actions import read_actions
from yamame_envs.adapters.extras import MissingExtra
from yamame_envs.adapters.in_process import ENV_ERRORS, EnvSpaces, Make
from yamame_envs.adapters.repeatable import RepeatCheck
from yamame_envs.adapters.spaces import empty_parts, read_observation
from yamame_envs.adapters.values import success_key_of

_ARGUMENT_ERRORS = (TypeError, ValueError, ImportError, gymnasium.error.Error)
"""Errors that a library raises for arguments of an environment."""


def read_spaces(
    make: Make,
    *,
    owner: str,
    generic: bool,
    success: str | None,
    outside: Outside = "raise",
    checks_repeats: bool = False,
) -> EnvSpaces:
    """Make an environment, read its spaces and close it.

    Args:
        make: Makes the environment.
        owner: Name of the environment in messages.
        generic: As for `read_observation`.
        success: Key of success in the info of a step. None: there is none. ``auto``: the first of
            `yamame_envs.adapters.values.SUCCESS_KEYS` in the info of a first step.
        outside: Handling of numbers out of bounds, see `yamame.spaces.ObservationEntry`.
        checks_repeats: Whether to play a short episode twice, and to report a difference
            (`RepeatCheck`).

    Raises:
        ArgumentError: There is no space, or one that cannot be converted to tensors.
        UserCodeError: Code of the environment has raised an error.
        Exception: A library has raised an error for the arguments.
    """
    what = f"{owner}: the environment failed in env 0 while"
    repeat_check = RepeatCheck(make, owner=owner, enabled=checks_repeats)
    env = _make(make, f"{what} it was made")
    try:
        with user_code(f"{what} its spaces were read"):
            shown = _space_of(env, "observation_space", owner)
            entries = read_observation(shown, owner=owner, generic=generic, outside=outside)
            empty = empty_parts(shown, owner=owner)
            action_space = _space_of(env, "action_space", owner)
            actions = read_actions(action_space, owner=owner, outside=outside)
        success_key = _find_success(env) if success == "auto" else success
        repeat_check.compare_episodes(env)
    except BaseException:
        # The first error is the answer, whatever follows from it.
        with contextlib.suppress(Exception):
            env.close()
        raise
    try:
        env.close()
    except ENV_ERRORS as error:
        if not is_failure(error):
            raise
        raise UserCodeError.of(f"{what} it was closed", error) from error
    repeat_check.compare_instances()

    names = set()
    for entry in entries:
        name = entry.name[0]
        if name in RESERVED or (name == "trial_start" and not _is_flag(entry)):
            names.add(name)
    condition = f"not have entries {sorted(RESERVED)}, and trial_start only as MultiBinary(1)"
    require(owner, "observation_space", sorted(names), not names, condition)
    seeks_success = success == "auto" and success_key is None
    return EnvSpaces(entries, actions, success_key, seeks_success, empty=empty)


def _make(make: Make, what: str) -> Any:
    """Make an environment; its errors are about its code, or about its arguments."""
    try:
        return make()
    except (UsageError, MissingExtra):
        raise
    except ENV_ERRORS as error:
        if not is_failure(error):
            raise
        is_about_arguments = isinstance(error, _ARGUMENT_ERRORS) and blame(error) is None
        if is_about_arguments:
            raise  # the caller can name them
        raise UserCodeError.of(what, error) from error


def _space_of(env: Any, name: str, owner: str) -> Any:
    """Return the space of an environment; None if there is none.

    Raises:
        ArgumentError: The environment has no such attribute.
    """
    try:
        return getattr(env, name)
    except AttributeError as error:
        # A property of the environment may have failed at another attribute.
        if blame(error) is not None:
            raise
        condition = "be a space of Gymnasium, which the environment sets in its constructor"
        raise ArgumentError(owner, name, None, condition) from error


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
        if not is_failure(error):
            raise
        return None
    return success_key_of(info)


def _is_flag(entry: ObservationEntry) -> bool:
    is_root = len(entry.name) == 1
    return is_root and entry.kind == "bit" and entry.stored_shape == (1,)
