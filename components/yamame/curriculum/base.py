"""Protocol of curricula, and the episodes that they observe."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tensordict import TensorDictBase
from torch import Tensor

NEEDS = ("success", "td_errors")
"""Attributes of `PlayedEpisodes` that a curriculum may need."""


class TDErrors(NamedTuple):
    """Temporal-difference errors of episodes.

    Attributes:
        errors: ``[E, T]``, target minus value of every transition; 0 where ``valid`` is false.
        valid: ``[E, T]`` bool, transitions of the episode.
        discount: Discount factor of the values.
    """

    errors: Tensor
    valid: Tensor
    discount: float


class PlayedEpisodes:
    """Episodes of training that have ended, in the order in which they did.

    Args:
        task_seed: ``[E]`` int64, seeds of the tasks that were played.
        trajectories: ``[E, L]``, right padded, with ``mask`` (`yamame.keys`), on the CPU.
        estimate: Computes temporal-difference errors of the trajectories.

    Attributes:
        task_seed: The argument.
        trajectories: The argument.
    """

    def __init__(
        self,
        task_seed: Tensor,
        trajectories: TensorDictBase,
        estimate: Callable[[TensorDictBase], TDErrors],
    ) -> None:
        self.task_seed = task_seed
        self.trajectories = trajectories
        self._estimate = estimate

    def __len__(self) -> int:
        return len(self.task_seed)

    @property
    def returns(self) -> Tensor:
        """Sum of the rewards of each episode, ``[E]`` float32."""
        reward: Tensor = self.trajectories.get(("next", "reward"))
        return reward.flatten(1).sum(-1)

    @property
    def success(self) -> Tensor | None:
        """Success of each episode, ``[E]`` bool; None if the environment does not report it."""
        success = self.trajectories.get(("next", "success"), None)
        return None if success is None else success.flatten(1).any(-1)

    @cached_property
    def td_errors(self) -> TDErrors:
        """Errors of the learner's values, computed when they are first read.

        They cost a pass of the networks over the episodes, on the device of the learner.

        Raises:
            UsageError: The loss has no method ``td_errors``.
        """
        return self._estimate(self.trajectories)


@runtime_checkable
class Curriculum(Protocol):
    """Chooses the tasks of training by their seeds.

    A task is a pure function of its seed, so that a seed is all that must be remembered to play the
    task again, and every seed belongs to the side of the split that training plays.

    A curriculum should draw no random numbers of its own and change in `observe` alone: then equal
    observations give equal choices, and a resumed run plays the tasks of one that was never
    stopped.

    Optional members: ``metrics()`` returns numbers by name, logged as ``curriculum/<name>``;
    ``needs`` holds ``"td_errors"`` if the curriculum cannot do without
    `PlayedEpisodes.td_errors`, and ``"success"`` if it cannot without `PlayedEpisodes.success`: a
    run that lacks them is refused before it begins.
    """

    def choose(self, seeds: Tensor, uniform: Tensor) -> Tensor:
        """Return the task seeds of coming episodes.

        It may be called again for the same episodes until they begin. Only the last choice counts.

        Args:
            seeds: ``[R]`` int64, seeds of new tasks, on the CPU. The same number comes once.
            uniform: ``[R, 2]`` float64 in [0, 1), random numbers, a function of ``seeds``.

        Returns:
            ``[R]`` int64: entries of ``seeds``, or seeds that were played before.
        """

    def observe(self, episodes: PlayedEpisodes) -> Tensor | None:
        """Learn from episodes that have ended.

        Args:
            episodes: At least one.

        Returns:
            ``[E]`` bool, episodes that the agent may learn from; None for all of them.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that `choose` and `observe` depend on."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
