"""What the host asks of the device, by file and line: where it waits, what it copies, what it
launches.

A `Watch` sees the operations of the thread that entered it, and of backward passes that this thread
starts. Operations that PyTorch composes of others are seen as those others where it can
differentiate them so, else as one kernel.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

OWN = ("/components/yamame/", "/envs/yamame_envs/")
WAITING = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "multinomial",
        "_unique2",
        "unique_dim", "unique_consecutive", "_linalg_eigh", "_linalg_svd",
    )
)  # fmt: skip
"""Operations whose result, or its size, the host reads."""
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
NO_KERNEL = frozenset(
    f"aten::{name}"
    for name in (
        "_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
        "resize_", "set_",
        "is_pinned", "is_same_size", "record_stream", "_fused_sdp_choice", "lift_fresh",
    )
)  # fmt: skip
Place = tuple[str, str]
"""What happened, and the file and line."""


@dataclass
class Counts:
    """How often the host waited, copied and launched, by what and where it did.

    >>> counts = Counts(waits=Counter({("item", "heads/a.py:1"): 2, ("item", "heads/b.py:7"): 1}))
    >>> print(counts.table(of=3))
        0.67  item  heads/a.py:1
        0.33  item  heads/b.py:7
    """

    waits: Counter[Place] = field(default_factory=Counter)
    copies: Counter[Place] = field(default_factory=Counter)
    kernels: Counter[Place] = field(default_factory=Counter)
    replayed: Counter[Place] = field(default_factory=Counter)  # kernels of graphs

    def copy(self) -> "Counts":
        """The counts up to now."""
        return Counts(
            self.waits.copy(), self.copies.copy(), self.kernels.copy(), self.replayed.copy()
        )

    def since(self, before: "Counts") -> "Counts":
        """What was counted after a copy was made."""
        return Counts(
            self.waits - before.waits,
            self.copies - before.copies,
            self.kernels - before.kernels,
            self.replayed - before.replayed,
        )

    @staticmethod
    def merged(parts: "Iterable[Counts]") -> "Counts":
        """What all of them counted."""
        total = Counts()
        for part in parts:
            total.waits.update(part.waits)
            total.copies.update(part.copies)
            total.kernels.update(part.kernels)
            total.replayed.update(part.replayed)
        return total

    def table(self, of: float = 1.0) -> str:
        """The places where the host waits, most often first, per one of so many."""
        lines = [f"{n / of:8.2f}  {kind}  {place}" for (kind, place), n in self.waits.most_common()]
        return "\n".join(lines)


class State:
    """The counts of the process, the graph that is being captured, and whether operations are
    watched.
    """

    counts: Counts | None = None
    capture: Any = None
    watched = False
    warning = ExitStack()  # open while every wait is a warning
    warns = False


def wait(kind: str) -> None:
    """The host waits for the device here.

    Raises:
        RuntimeError: A graph is being captured.
    """
    if State.counts is not None:
        State.counts.waits[kind, where()] += 1
    if State.warns:
        warnings.warn(f"called a synchronizing CUDA operation ({kind})", stacklevel=2)
    if State.capture is not None:
        raise RuntimeError(
            f"CUDA error: operation not permitted when stream is capturing ({kind}, {where()})"
        )


def set_sync_debug_mode(mode: str) -> None:
    """Whether every wait is a warning: ``warn`` or ``default``."""
    State.warning.close()
    State.warns = mode == "warn"
    if State.warns:
        State.warning.enter_context(watched())


def where() -> str:
    """The nearest line of the project on the stack, or the nearest of anything but PyTorch."""
    frame, other = sys._getframe(1), None
    while frame is not None:
        name = frame.f_code.co_filename
        for root in OWN:
            if root in name:
                return f"{name.split(root)[1]}:{frame.f_lineno}"
        if other is None and "/torch/" not in name and "/emulated_cuda/" not in name:
            other = f"{name.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return other or "a backward pass"


class Watch(TorchDispatchMode):
    """Counts every operation on the device, and lets a capture record it."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs one operation."""
        keywords = dict(kwargs or {})
        name = func._schema.name  # type: ignore[attr-defined]
        if not _is_on_device(args, keywords):
            return func(*args, **keywords)
        copied = _copied(name, args, keywords)
        kind = copied[1] if copied else _waiting(name, args, keywords)
        if kind:
            wait(kind)
        if State.counts is not None:
            _count(State.counts, func, name, copied[0] if copied else None)
        if State.capture is not None:
            return State.capture.record(func, args, keywords)
        return func(*args, **keywords)


@contextmanager
def watched() -> Iterator[None]:
    """Operations inside are seen, once however deep."""
    if State.watched:
        yield
        return
    State.watched = True
    try:
        with Watch():
            yield
    finally:
        State.watched = False


@contextmanager
def counted() -> Iterator[Counts]:
    """Counts what happens inside."""
    before, State.counts = State.counts, Counts()
    try:
        with watched():
            yield State.counts
    finally:
        State.counts = before


def _count(counts: Counts, func: Any, name: str, copied: str | None) -> None:
    if copied:
        counts.copies[copied, where()] += 1
    elif is_kernel(func):
        counts.kernels[name, where()] += 1


def is_kernel(func: Any) -> bool:
    """Whether an operation computes something."""
    return not func.is_view and func._schema.name not in NO_KERNEL


def _is_on_device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    device = kwargs.get("device")
    wanted = device is not None and torch.device(device).type == "cuda"
    return wanted or _holds_one(args) or _holds_one(kwargs.values())


def _holds_one(values: Iterable[Any]) -> bool:
    """Whether one of them, or of a list among them, is a tensor on the device."""
    return any(
        value.is_cuda
        if isinstance(value, Tensor)
        else isinstance(value, list | tuple) and _holds_one(value)
        for value in values
    )


def _copied(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str | None] | None:
    """The direction of a copy between host and device, and why the host waits for it, if it
    does.
    """
    if name == "aten::_to_copy":
        source, device = args[0], kwargs.get("device")
        target_is_cuda = source.is_cuda if device is None else torch.device(device).type == "cuda"
        at_once, pinned = kwargs.get("non_blocking", False), True  # the target is made for it
    elif name == "aten::copy_":
        target, source = args[0], args[1]
        target_is_cuda, pinned = (
            target.is_cuda,
            source.is_cuda and target.is_cpu and target.is_pinned(),
        )
        at_once = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    else:
        return None
    if source.is_cuda == target_is_cuda:
        return None
    if target_is_cuda:
        return "host to device", None if at_once else "blocking copy to the device"
    return "device to host", None if at_once and pinned else "blocking copy to the host"


def _waiting(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """What the host waits for in an operation on the device."""
    if name in WAITING:
        return name.removeprefix("aten::").replace("_local_scalar_dense", "item")
    if name == "aten::repeat_interleave" and kwargs.get("output_size") is None:
        return "repeat_interleave without output_size"
    if name in INDEXING:
        return _waiting_index(name, args)
    return None


def _waiting_index(name: str, args: Sequence[Any]) -> str | None:
    indices = [index for index in args[1] if index is not None]
    if any(index.is_cpu for index in indices):
        return "blocking copy of indices to the device"
    masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
    if not masks:
        return None
    adds = len(args) > 3 and args[3]
    filled = name != "aten::index" and len(indices) == 1 and args[2].numel() == 1 and not adds
    return None if filled else "index by a mask"
