"""Whole steps recorded as CUDA graphs: policy, exploration and environment in one launch.

A graph repeats the same kernels on the same memory. Every tensor that a step reads and replaces
therefore has a static buffer, from which a recorded step reads and to which it returns the new
value. There is one recording for every structure of these tensors, because the cache of a
Transformer grows.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor, nn

from yamame.execution.capturing import recording
from yamame.execution.recorder import Recorder, tensors_of
from yamame.execution.recordings import Recordings

Named = dict[tuple[Any, Any], Tensor]
"""Tensors by owner and name. The owner is the index of a part, or None for the timestep."""
Step = Callable[[TensorDictBase], tuple[Mapping[NestedKey, Tensor], TensorDictBase]]
"""Function from a timestep ``[N]`` to the entries to store and the next timestep."""


class Capturable(Protocol):
    """A policy, an exploration module or an environment whose part of a step can be captured.

    Its branches do not depend on the data, and its state between two steps is in static buffers. It
    does no work of the host while `yamame.execution.capturing.capturing`. A part that has these
    methods and cannot be captured has an attribute ``capture_obstacle`` with the reason.
    """

    def reserve(self, num_steps: int) -> bool:
        """Do the work of the host for a number of steps in advance.

        Returns:
            Whether so many steps can be captured now.
        """

    def static_buffers(self) -> Mapping[str, Tensor]:
        """Return the tensors that a step reads and replaces. None is a view of another."""

    def set_static_buffers(self, tensors: Mapping[str, Tensor]) -> None:
        """Use these tensors, which are like those of `static_buffers`, without a copy."""


def is_capturable(part: Any) -> bool:
    """Return whether a part of a step follows `Capturable` and has no obstacle."""
    # Attributes of the class, because wrappers forward those of objects that they wrap.
    for name in ("reserve", "static_buffers", "set_static_buffers"):
        if not hasattr(type(part), name):
            return False
    return getattr(part, "capture_obstacle", None) is None


class RecordedSteps:
    """Takes steps, and records those of structures that come again.

    Values that are not tensors, such as mode and precision, are constants of a recording.

    Args:
        step: Step to record; it reads nothing back from the device.
        parts: Everything that has a state between two steps. Parameters and buffers may change in
            place.
        recorder: Runs and records.
        device: Device of the tensors.
        warmup: Ordinary steps of a structure before it is recorded.
    """

    def __init__(
        self,
        step: Step,
        parts: Sequence[Capturable],
        recorder: Recorder,
        device: torch.device,
        *,
        warmup: int = 3,
    ) -> None:
        self._step = step
        self._parts = parts
        self._recorder = recorder
        self._recordings: Recordings[Callable[[], None]] = Recordings(
            warmup=warmup, before_drop=recorder.wait
        )
        self._buffers: dict[Hashable, Tensor] = {}  # by owner, name, shape and dtype
        self._block: dict[NestedKey, Tensor] = {}  # [S, N, ...]
        self._block_size = 0  # S
        # Row of the block that the next step writes. A tensor, because it changes between runs.
        self._row = torch.zeros(1, dtype=torch.int64, device=device)

    def take(
        self, timestep: TensorDictBase, num_steps: int
    ) -> tuple[dict[NestedKey, Tensor], TensorDictBase]:
        """Take steps from a timestep ``[N]`` on.

        Returns:
            Entries to store ``[S, N, ...]``, valid until the next call, and the timestep after
            them.
        """
        if num_steps > self._block_size:
            self._block_size = num_steps
            self._block = {}
            # Recordings write into the former block.
            self._recordings.clear()
        self._row.zero_()
        left = num_steps
        while left > 0:
            count = self._reserve(left)
            recorded = self._recorded_step(timestep) if count else None
            if recorded is None:
                timestep = self._recorder.warm(partial(self._take_one, timestep))
                left -= 1
                continue
            run, timestep = recorded
            for _ in range(count):
                run()
            left -= count
        block = {key: value[:num_steps] for key, value in self._block.items()}
        return block, timestep

    def _reserve(self, num_steps: int) -> int:
        """Return the number of consecutive steps that can be captured now."""
        # A memory that cannot predict its capacity reserves one step at a time.
        for count in (num_steps, 1):
            if all(part.reserve(count) for part in self._parts):
                return count
        return 0

    def _take_one(self, timestep: TensorDictBase) -> TensorDictBase:
        """Take one step, write its entries into the block, and return the next timestep."""
        entries, next_timestep = self._step(timestep.copy())
        for key, value in entries.items():
            if key not in self._block:
                self._block[key] = value.new_zeros(self._block_size, *value.shape)
            self._block[key].index_copy_(0, self._row, value.unsqueeze(0))
        self._row.add_(1)
        return next_timestep

    def _recorded_step(
        self, timestep: TensorDictBase
    ) -> tuple[Callable[[], None], TensorDict] | None:
        """Return a recorded step and the timestep it replaces, None while steps are ordinary."""
        tensors = self._tensors(timestep)
        forms: dict[Any, Hashable] = {}
        for name, value in tensors.items():
            forms[name] = (*name, value.shape, value.dtype)
        key = frozenset(forms.values())
        if not self._recordings.is_warm(key):
            self._recordings.count(key)
            return None

        static: Named = {}
        for name, form in forms.items():
            if form not in self._buffers:
                self._buffers[form] = torch.empty_like(
                    tensors[name], memory_format=torch.contiguous_format
                )
            static[name] = self._buffers[form]
        _copy(tensors, static)

        batch_size = timestep.batch_size
        run = self._recordings.get(key, record=lambda: self._record(static, batch_size))
        return run, self._bind(static, batch_size)

    def _record(self, static: Named, batch_size: torch.Size) -> Callable[[], None]:
        def step() -> dict[str, Tensor]:
            timestep = self._bind(static, batch_size)
            next_timestep = self._take_one(timestep)
            _copy(self._tensors(next_timestep), static)
            return {}

        modules = [part for part in self._parts if isinstance(part, nn.Module)]
        reads = [*tensors_of(*modules), *static.values(), *self._block.values(), self._row]
        with recording():
            run, _ = self._recorder.record(step, reads=reads)
        return run

    def _tensors(self, timestep: TensorDictBase) -> Named:
        """Return all tensors that the next step reads and replaces."""
        tensors: Named = {}
        for key, value in timestep.items(True, True):
            tensors[None, key] = value
        for number, part in enumerate(self._parts):
            for name, value in part.static_buffers().items():
                tensors[number, name] = value
        return tensors

    def _bind(self, tensors: Named, batch_size: torch.Size) -> TensorDict:
        """Make all parts use these tensors; return the timestep."""
        by_owner: dict[int | None, dict[Any, Tensor]] = {None: {}}
        for number in range(len(self._parts)):
            by_owner[number] = {}
        for (owner, name), value in tensors.items():
            by_owner[owner][name] = value
        for number, part in enumerate(self._parts):
            part.set_static_buffers(by_owner[number])
        return TensorDict(by_owner[None], batch_size, device=self._row.device)


def _copy(tensors: Named, static: Named) -> None:
    """Copy tensors to their static buffers."""
    occupied = {id(value) for value in static.values()}
    moved: Named = {}
    for name, value in tensors.items():
        if value is static[name]:
            continue
        # A step may return one static buffer as the value of another: it is cloned before anything
        # is overwritten.
        moved[name] = value.clone() if id(value) in occupied else value
    for name, value in moved.items():
        static[name].copy_(value)
