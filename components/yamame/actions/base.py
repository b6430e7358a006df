"""What an action space is.

Encoded actions are float32 `[*, A]`: one-hot (discrete), concatenated one-hots (multi-discrete), 0/1 (bits),
numbers in [-1, 1] (box). `decode` gives back the environment's own dtype and shape, so decoding what was
encoded is the identity. Spaces are plain objects: they pickle, copy, and follow the device of their inputs.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from yamame.actions.distributions import ActionDistribution


class ActionSpace(ABC):
    """What an action is.

    Attributes:
        encoded_size: A, the size of an encoded action.
        num_params: P, the number of policy parameters of one distribution.
        enumerable: whether the one-hots of A are all there is, so that a critic may value each of them.
    """

    encoded_size: int
    num_params: int
    enumerable: bool = False

    @abstractmethod
    def encode(self, action: Tensor) -> Tensor:
        """The environment's action to its encoding, float32 `[*, A]`."""

    @abstractmethod
    def decode(self, encoded: Tensor) -> Tensor:
        """An encoding `[*, A]` to the environment's action."""

    def distribution(self, params: Tensor, action_mask: Tensor | None = None) -> ActionDistribution:
        """The policy's distribution.

        Args:
            params: `[*, P]`.
            action_mask: bool, broadcastable to `[*, A]` (unsqueeze it where `params` has a dimension more).

        Raises:
            ValueError: if `params` has another last size, the mask allows nothing in a row, or
                a box is masked.
        """
        if params.shape[-1] != self.num_params:
            raise ValueError(
                f"{type(self).__name__}: params must have {self.num_params} entries in the last dimension, "
                f"got shape {tuple(params.shape)}"
            )
        return self._distribution(params, action_mask)

    @abstractmethod
    def _distribution(self, params: Tensor, action_mask: Tensor | None) -> ActionDistribution: ...
