"""Normal noise on continuous actions, annealed over training."""

from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import TensorSpec

from yamame.actions import ActionSpace, BoxActions
from yamame.exploration.base import Exploration, perturb


class GaussianNoise(Exploration):
    """Adds normal noise to box actions and clips to the bounds; its size falls linearly over training.

    Args:
        action_space: A `yamame.actions.BoxActions`, or the environment's action spec with or without its
            batch dimensions.
        anneal_steps: Environment steps, over all rows, after which the noise stays at ``end``.
        start: Standard deviation when training begins, in half ranges of the action (1 is from centre to
            bound).
        end: Standard deviation once annealed, in half ranges.
        action_key: Key of the action, read and written.

    Raises:
        ValueError: If a standard deviation is negative or the action is not continuous.
    """

    def __init__(
        self,
        action_space: ActionSpace | TensorSpec,
        *,
        anneal_steps: int,
        start: float = 1.0,
        end: float = 0.05,
        action_key: NestedKey = "action",
    ) -> None:
        super().__init__(action_space, anneal_steps=anneal_steps, action_key=action_key)
        for name, value in (("start", start), ("end", end)):
            if value < 0.0:
                raise ValueError(f"GaussianNoise: {name} must not be negative, got {value}")
        self.start = start
        self.end = end

    def check_space(self, space: ActionSpace) -> None:
        """Refuses all but boxes."""
        if not isinstance(space, BoxActions):
            raise ValueError(f"GaussianNoise: action_space must be a box, got {type(space).__name__}")

    def explore(self, tensordict: TensorDictBase, space: ActionSpace, action: Tensor) -> Tensor:
        """Adds the noise."""
        return perturb(space, action, self.anneal(self.start, self.end).expand(tensordict.batch_size), None)
