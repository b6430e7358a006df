"""What an environment returns and takes, found out by making one."""

import pickle

import gymnasium
from yamame.failures import OutsideError
from yamame.keys import RESERVED

from yamame_envs.adapters.actions import read_actions
from yamame_envs.adapters.in_process import ENV_ERRORS, EnvSpaces, Failure, Make, is_own
from yamame_envs.adapters.spaces import Leaf, read_observation


def read_spaces(make: Make, *, owner: str, generic: bool, tells_success: bool) -> EnvSpaces:
    """Makes an environment, reads its spaces and closes it.

    Args:
        make: Makes it.
        owner: Whose it is, for messages.
        generic: As for `read_observation`.
        tells_success: Whether the info's ``success`` is read.

    Raises:
        ValueError: If a space cannot be turned into tensors.
        OutsideError: If it cannot be made, for a reason that is not a wrong argument or a package that is missing.
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
        leaves = read_observation(env.observation_space, owner=owner, generic=generic)
        actions = read_actions(env.action_space, owner=owner)
    finally:
        env.close()
    taken = {leaf.name[0] for leaf in leaves if leaf.name[0] in RESERVED or _is_no_flag(leaf)}
    if taken:
        raise ValueError(
            f"{owner}: observation_space must not have entries {sorted(RESERVED)}, nor trial_start but as "
            f"MultiBinary(1), got {sorted(taken)}"
        )
    return EnvSpaces(leaves, actions, tells_success)


def _is_no_flag(leaf: Leaf) -> bool:
    return leaf.name[0] == "trial_start" and (leaf.name[1:], leaf.kind, leaf.form) != ((), "bit", (1,))


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
