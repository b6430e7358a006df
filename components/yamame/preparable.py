"""Modules whose steps are cheaper while their weights stay."""

from collections.abc import Callable
from typing import Any, Self

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor


class Preparable(TensorDictModuleBase):
    """Base of modules that do beforehand what does not depend on the input.

    A subclass implements `_prepare` and uses what it finds in ``_prepared``, unless that is None.
    """

    def __init__(self) -> None:
        super().__init__()
        self._prepared: Any = None
        self._compute_dtype: torch.dtype | None = None
        self._compiled = False

    def prepare(self, dtype: torch.dtype | None = None, *, compiled: bool = False) -> None:
        """In evaluation mode, does once what every step would do again to the weights.

        A promise of the caller: weights do not change before the next `prepare`. Loading a state, training mode
        and moving to another device or dtype undo it; copies and pickles are not prepared.

        Args:
            dtype: Of the matrix products of steps and of what they remember by the timestep; None for that of the
                weights. A module without a faster way to compute in it goes on in the dtype of its weights.
            compiled: Compile what of a step is faster so; nothing in most modules.

        Raises:
            ValueError: If something is to be compiled and cannot be.
        """
        self._compute_dtype, self._compiled = dtype, compiled
        self._prepared = None if self.training else self._prepare()

    def _prepare(self) -> Any:
        """What steps shall find in ``_prepared``, in a subclass that has any use for it.

        Its products are to be in ``_compute_dtype``, unless that is None.
        """
        return None

    def train(self, mode: bool = True) -> Self:
        """As in `torch.nn.Module`; ends what `prepare` began if ``mode``."""
        if mode:
            self._prepared = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_prepared": None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._prepared = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any) -> None:
        self._prepared = None
        super()._load_from_state_dict(*args)
