"""Limit of the steps of an evaluation, also in environments whose episodes may never end."""

import warnings

from torchrl.envs import EnvBase

from yamame.transforms.context import episode_limit

PATIENCE = 10_000
"""Steps without any end of an episode after which episodes count as endless."""
_FACTOR = 10
"""Multiple of the last step at which an episode ended that an evaluation waits for the others."""


class EndlessEpisodes(UserWarning):
    """Warning of episodes that were cut because they seem to be endless."""


def declared_limit(env: EnvBase) -> int | None:
    """Return the steps of the longest episode; None if the environment declares no limit."""
    return episode_limit(env.observation_spec)


class StepLimit:
    """Decides when episodes that have not ended are cut.

    With ``max_steps``, or an environment that declares the steps of its longest episode, only these
    count. Otherwise episodes may be endless, which no one can know beforehand: they are cut when
    none has ended for ten times as long as until the last end, and at least `PATIENCE` steps.

    Args:
        env: Environment that is played.
        max_steps: Steps after which episodes are cut; None for no limit.
    """

    def __init__(self, env: EnvBase, max_steps: int | None) -> None:
        self._max_steps = max_steps
        self._may_be_endless = max_steps is None and declared_limit(env) is None
        self._last_end = 0

    def note_end(self, num_steps: int) -> None:
        """Note that an episode has ended with this step."""
        self._last_end = num_steps

    def is_reached(self, num_steps: int) -> bool:
        """Return whether to cut after this number of steps; warn of endless episodes."""
        if self._max_steps is not None:
            return num_steps >= self._max_steps
        if not self._may_be_endless or num_steps < max(PATIENCE, _FACTOR * self._last_end):
            return False
        warnings.warn(
            f"an evaluation is cut after {num_steps} steps, because no episode has ended since "
            f"step {self._last_end} and no limit is known: set env.time_limit, or max_steps of "
            "the evaluation (evaluation.max_steps in training)",
            EndlessEpisodes,
            stacklevel=2,
        )
        return True
