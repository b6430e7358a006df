"""Whole steps recorded as CUDA graphs: policy, exploration, environment and what is kept, in one
launch of the host.

A graph repeats the same kernels on the same memory. So every tensor that a step reads and puts
another in the place of has a place of its own here, from which a recorded step reads and to which
it returns what it made. There is a recording for every structure of them (a Transformer's cache
grows). The first steps of a structure are ordinary ones: they are the warm-up that a capture needs.
A capture executes nothing.

What a step decides without tensors is recorded with it: mode and precision, and whatever a part's
`reserve` refuses to have recorded.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor, nn

from yamame.collectors.base import Carries
from yamame.execution.capturing import recording
from yamame.execution.recorder import Recorder, tensors_of

Named = dict[tuple[Any, Any], Tensor]
"""Tensors by owner and name: a part by its number, or None for the timestep."""
Step = Callable[[TensorDictBase], tuple[Mapping[NestedKey, Tensor], TensorDictBase]]
"""A timestep ``[N]`` -> what is kept of the step, and the next timestep."""


class RecordedSteps:
    """Takes steps, and records those of structures that come again.

    Parameters and buffers of the parts may change in place: every step reads them anew.

    Args:
        step: What is recorded; it reads nothing back.
        parts: All that remembers anything from one step to the next.
        recorder: Runs and records.
        device: Where the tensors are.
        warmup: Ordinary steps of a structure before it is recorded.
    """

    def __init__(
        self,
        step: Step,
        parts: Sequence[Carries],
        recorder: Recorder,
        device: torch.device,
        *,
        warmup: int = 3,
    ) -> None:
        self._step, self._parts, self._recorder, self._warmup = step, parts, recorder, warmup
        self._own: dict[Hashable, Tensor] = {}  # by owner, name, shape and dtype
        self._taken: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, Callable[[], None]] = {}
        self._block: dict[NestedKey, Tensor] = {}  # [S, N, ...]
        self._size = 0  # S
        self._place = torch.zeros(
            1, dtype=torch.int64, device=device
        )  # of the next step in the block

    def take(
        self, timestep: TensorDictBase, num_steps: int
    ) -> tuple[dict[NestedKey, Tensor], TensorDictBase]:
        """Steps from a timestep ``[N]`` on.

        Returns:
            What is kept of them ``[S, N, ...]``, until the next call, and the timestep after them.
        """
        if num_steps > self._size:
            self._size, self._block = num_steps, {}
            self._recorded.clear()
            self._taken.clear()
        self._place.zero_()
        left = num_steps
        while left > 0:
            # A memory of which nobody can tell for how many steps there is room is looked at before
            # every one.
            count = next((n for n in (left, 1) if all(part.reserve(n) for part in self._parts)), 0)
            recorded = self._recording(timestep) if count else None
            if recorded is None:
                timestep = self._recorder.warm(partial(self._once, timestep))
                left -= 1
            else:
                run, timestep = recorded
                for _ in range(count):
                    run()
                left -= count
        return {key: value[:num_steps] for key, value in self._block.items()}, timestep

    def _once(self, timestep: TensorDictBase) -> TensorDictBase:
        """Takes one step and puts what is kept of it into the block; returns the next timestep."""
        kept, following = self._step(timestep.copy())
        for key, value in kept.items():
            if key not in self._block:
                self._block[key] = value.new_zeros(self._size, *value.shape)
            self._block[key].index_copy_(0, self._place, value.unsqueeze(0))
        self._place.add_(1)
        return following

    def _recording(self, timestep: TensorDictBase) -> tuple[Callable[[], None], TensorDict] | None:
        """What takes the next step, and the timestep that it reads and replaces; None while steps
        are ordinary ones.
        """
        tensors = self._tensors(timestep)
        forms = {name: (*name, value.shape, value.dtype) for name, value in tensors.items()}
        key = frozenset(forms.values())
        if self._taken[key] < self._warmup:
            self._taken[key] += 1
            return None
        for name, form in forms.items():
            if form not in self._own:
                self._own[form] = torch.empty_like(
                    tensors[name], memory_format=torch.contiguous_format
                )
        own = {name: self._own[form] for name, form in forms.items()}
        _put(tensors, own)
        if key not in self._recorded:
            self._recorded[key] = self._record(own, timestep.batch_size)
        return self._recorded[key], self._bind(own, timestep.batch_size)

    def _record(self, own: Named, batch_size: torch.Size) -> Callable[[], None]:
        def step() -> dict[str, Tensor]:
            _put(self._tensors(self._once(self._bind(own, batch_size))), own)
            return {}

        modules = [part for part in self._parts if isinstance(part, nn.Module)]
        inputs = [*own.values(), *self._block.values(), self._place]
        with recording():
            run, _ = self._recorder.record(step, reads=[*tensors_of(*modules), *inputs])
        return run

    def _tensors(self, timestep: TensorDictBase) -> Named:
        """All that the next step reads and replaces."""
        named: Named = {(None, key): value for key, value in timestep.items(True, True)}
        for number, part in enumerate(self._parts):
            named |= {(number, name): value for name, value in part.carried().items()}
        return named

    def _bind(self, tensors: Named, batch_size: torch.Size) -> TensorDict:
        """Lets all parts go on with these tensors; returns the timestep."""
        for number, part in enumerate(self._parts):
            part.carry({name: value for (owner, name), value in tensors.items() if owner == number})
        timestep = {key: value for (owner, key), value in tensors.items() if owner is None}
        return TensorDict(timestep, batch_size, device=self._place.device)


def _put(tensors: Named, places: Named) -> None:
    """Copies tensors to where they belong. One of them may be at another's place."""
    occupied = {id(value) for value in places.values()}
    moved = {name: value for name, value in tensors.items() if value is not places[name]}
    moved = {
        name: value.clone() if id(value) in occupied else value for name, value in moved.items()
    }
    for name, value in moved.items():
        places[name].copy_(value)
