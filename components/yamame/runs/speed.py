"""Measuring speed beside what the machine allows: a clock, the machine's own rates, a count of operations."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Clock:
    """Seconds of CPU time of this process, or of a GPU between events.

    Args:
        device: What is measured.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._cuda = device.startswith("cuda")

    def time(self, call: Callable[[], Any], *, seconds: float = 1.0, least: int = 3) -> float:
        """The median time of a call that is repeated for about ``seconds``."""
        call()
        taken: list[float] = []
        while len(taken) < least or sum(taken) < seconds:
            taken.append(self._once(call))
        return median(taken)

    def in_turn(
        self,
        *calls: Callable[[Any], Any],
        given: Callable[[], Any] = lambda: None,
        seconds: float = 2.0,
        least: int = 5,
    ) -> list[float]:
        """The median times of calls that are made one after the other, again and again, for about ``seconds``.

        So a machine that becomes slower meanwhile does so for all of them.

        Args:
            calls: Each takes what ``given`` returns.
            given: Called before each of them, and not timed.
            seconds: Of all calls together.
            least: How often each is called at least.
        """
        taken: list[list[float]] = [[] for _ in calls]
        for call in calls:
            call(given())
        while len(taken[0]) < least or sum(map(sum, taken)) < seconds:
            turns = list(zip(calls, taken, strict=True))
            for call, times in turns if len(taken[0]) % 2 else reversed(turns):
                times.append(self._once(partial(call, given())))
        return [median(times) for times in taken]

    def _once(self, call: Callable[[], Any]) -> float:
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
    """What a device can do: matrix products and copies.

    Args:
        device: Where.
        clock: Measures it.
    """

    def __init__(self, device: str, clock: Clock) -> None:
        self._device, self._clock = device, clock

    def product_rate(self, dtype: torch.dtype, size: int = 1024) -> float:
        """Floating-point operations per second of square matrix products."""
        a, b = (torch.randn(size, size, dtype=dtype, device=self._device) for _ in range(2))
        return 2 * size**3 / self._clock.time(lambda: a @ b, seconds=0.3, least=8)

    def copy_rate(self, megabytes: int = 64) -> float:
        """Bytes per second that are copied."""
        source = torch.ones(megabytes * 2**20, dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        return len(source) / self._clock.time(lambda: target.copy_(source), seconds=0.2, least=8)


@contextmanager
def counting_flops() -> Iterator[list[float]]:
    """Counts the floating-point operations of matrix products and attention inside, backward passes included.

    Unlike ``torch.utils.flop_counter.FlopCounterMode`` it does not look at modules, which would fail at those
    that hold a tensordict of parameters; and it knows the attention of CPUs, which it takes to be causal.

    Yields:
        A list whose only entry is the count so far.

    >>> with counting_flops() as count:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> count
    [60.0]
    """
    total = [0.0]

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            formula = flop_registry.get(func._overloadpacket)
            if formula is not None:
                total[0] += formula(*args, **(kwargs or {}), out_val=out)
            elif "flash_attention_for_cpu" in str(func):
                backward = "backward" in str(func)
                query = args[1] if backward else args[0]
                total[0] += (5 if backward else 2) * query.numel() * query.shape[-2]
            return out

    with Count():
        yield total
