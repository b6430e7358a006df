"""What a training loop needs of a collector, whichever process or machine does the acting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tensordict import TensorDictBase
from torch import Tensor


@dataclass(frozen=True)
class Episodes:
    """What one call of `Collector.collect` brought.

    Attributes:
        num_steps: Environment steps taken, over all rows.
        returns: ``[E]`` sum of raw rewards of every trajectory that ended.
        lengths: ``[E]`` int64, their transitions.
        success: ``[E]`` bool, or None for an environment that does not tell.
        num_aborted: Episodes that ended because the environment failed; they were dropped.
    """

    num_steps: int
    returns: Tensor
    lengths: Tensor
    success: Tensor | None
    num_aborted: int = 0


class Replay(Protocol):
    """Where finished trajectories go."""

    def extend(self, data: TensorDictBase) -> Any:
        """Takes trajectories ``[E, L]``, right padded, with ``mask``."""
        ...


class Collector(Protocol):
    """Acts and appends every finished trajectory to its replay.

    Acting uses the collector's own copy of the policy: it changes only by `update_policy_weights_`, so the learner
    may run beside it, in this process or another.
    """

    def collect(self, num_steps: int) -> Episodes:
        """Takes at least ``num_steps`` environment steps, over all rows."""
        ...

    def max_appended(self, num_steps: int) -> int:
        """The most timesteps that `collect` of ``num_steps`` may append to replay."""
        ...

    def update_policy_weights_(self, weights: TensorDictBase) -> None:
        """Copies ``TensorDict.from_module(policy).data`` into the acting policy. Its memory survives."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on acting exactly where this collector stands."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        ...

    def shutdown(self) -> None:
        """Ends workers, if there are any."""
        ...
