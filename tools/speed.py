"""Instruments to measure speed: a clock, rates of the machine, a count of operations."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Clock:
    """Clock of the CPU seconds of this process, or of the seconds between events of a GPU.

    Args:
        device: Device to measure.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._cuda = device.startswith("cuda")

    def time(self, call: Callable[[], Any], *, seconds: float = 1.0, least: int = 3) -> float:
        """Return the median time of a call, repeated for about ``seconds``.

        The first call is not counted.
        """
        call()
        taken: list[float] = []
        while len(taken) < least or sum(taken) < seconds:
            taken.append(self.once(call))
        return median(taken)

    def once(self, call: Callable[[], Any]) -> float:
        """Return the time of one call."""
        if not self._cuda:
            start = time.process_time()
            call()
            return time.process_time() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3


class Machine:
    """Rates of a device: matrix products and copies.

    Args:
        device: Device to measure.
        clock: Clock of the device.
    """

    def __init__(self, device: str, clock: Clock) -> None:
        self._device, self._clock = device, clock

    def product_rate(self, dtype: torch.dtype, size: int = 1024) -> float:
        """Return the floating-point operations per second of square matrix products."""
        a, b = (torch.randn(size, size, dtype=dtype, device=self._device) for _ in range(2))
        return 2 * size**3 / self._clock.time(lambda: a @ b, seconds=0.3, least=8)

    def copy_rate(self, megabytes: int = 64) -> float:
        """Return the bytes copied per second."""
        source = torch.ones(megabytes * 2**20, dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        return len(source) / self._clock.time(lambda: target.copy_(source), seconds=0.2, least=8)


@contextmanager
def counting_flops() -> Iterator[list[float]]:
    """Count floating-point operations of matrix products and attention, with backward passes.

    Unlike ``torch.utils.flop_counter.FlopCounterMode`` it does not look at modules, which would
    fail at those that hold a tensordict of parameters; and it knows the attention of CPUs, of which
    causal attention is half.

    Yields:
        A list whose only entry is the count so far.
    """
    total = [0.0]

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            formula = flop_registry.get(func._overloadpacket)
            if formula is not None:
                total[0] += formula(*args, **(kwargs or {}), out_val=out)
            elif "flash_attention_for_cpu" in str(func):
                total[0] += _attention_flops(args, kwargs or {}, backward="backward" in str(func))
            return out

    with Count():
        yield total


def _attention_flops(args: tuple[Any, ...], kwargs: dict[str, Any], *, backward: bool) -> float:
    """Return the operations of attention, forward or backward.

    The arguments are ``(query, key, value, dropout, causal)``, or ``(gradient, query, key, value,
    out, _, dropout, causal)``.
    """
    query, key, position = (args[1], args[2], 7) if backward else (args[0], args[1], 4)
    causal = args[position] if len(args) > position else kwargs.get("is_causal", False)
    products = 5 if backward else 2
    return float(products * 2 * query.numel() * key.shape[-2]) / (2 if causal else 1)
