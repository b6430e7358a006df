"""CUDA graphs of the emulated device: a capture executes nothing, a replay repeats what was
captured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from emulated_cuda.counting import State, is_kernel, watched, where
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves


class CUDAGraph:
    """Operations on the device, recorded to be run again on the same memory.

    They run while they are captured, for their results have shapes. At its end, all memory that was
    there before and the random numbers are put back, so that nothing seems to have happened.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        self._calls: list[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], Any]] = []
        self._former: dict[int, tuple[Tensor, Tensor]] = {}
        self._made: set[int] = set()
        self._watched, self._rng = ExitStack(), torch.get_rng_state()

    def capture_begin(self, *args: Any, **options: Any) -> None:
        """From now on operations belong to the graph."""
        if State.capture is not None:
            raise RuntimeError("CUDA error: a graph is being captured already")
        self._rng = torch.get_rng_state()
        State.capture = self
        self._watched.enter_context(watched())

    def capture_end(self) -> None:
        """The capture is complete."""
        self._watched.close()
        State.capture = None
        for present, former in self._former.values():
            present.copy_(former)
        torch.set_rng_state(self._rng)
        self._former.clear()

    def record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs an operation and keeps it; what it overwrites is kept as well."""
        for tensor in _written(func, args, kwargs):
            self._keep(tensor)
        results = func(*args, **kwargs)
        if not func.is_view:
            tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]
            self._made.update(
                _address(tensor) for tensor in tensors if _address(tensor) not in self._former
            )
            self._calls.append((func, args, kwargs, results))
        return results

    @torch.no_grad()
    def replay(self) -> None:
        """Runs the operations again, each into the memory of its first results."""
        if State.counts is not None:
            State.counts.kernels["graph launch", where()] += 1
            number = sum(is_kernel(func) for func, *_ in self._calls)
            State.counts.replayed["kernel of a graph", where()] += number
        with _disable_current_modes():
            for func, args, kwargs, results in self._calls:
                again = func(*args, **kwargs)
                for result, new in zip(tree_leaves(results), tree_leaves(again), strict=True):
                    if isinstance(result, Tensor) and result.data_ptr() != new.data_ptr():
                        result.copy_(new)

    def pool(self) -> tuple[int, int]:
        """The memory that graphs share."""
        return (0, 0)

    def reset(self) -> None:
        """Forgets the graph."""
        self._calls.clear()

    def _keep(self, tensor: Tensor) -> None:
        address = _address(tensor)
        if address not in self._made and address not in self._former:
            with torch.no_grad(), _disable_current_modes():
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                whole.set_(tensor.untyped_storage())
                self._former[address] = (whole, whole.clone())


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors that an operation overwrites."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = (
                kwargs.get(argument.name)
                if argument.kwarg_only or index >= len(args)
                else args[index]
            )
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
