"""Checks of captured computations: the memory that they read stays where it is, and replays see new
values in it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from yamame.execution.capturing import Constant

_NEW = ("empty", "new_", "zeros", "ones", "full", "rand", "scalar_tensor")
"""Operations that take a tensor for its shape and dtype alone begin like this or end with
``_like``.
"""
_READ_BACK = (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__)
"""Reads that are no operations, which a dispatch mode does not see."""


class DeclaredReads(TorchDispatchMode):
    """Fails at an operation on a tensor that is neither declared nor made inside the context.

    A CUDA graph reads and writes the memory that it was captured with. A tensor that is replaced
    between two runs, such as a cached product of weights in a plain attribute, leaves the graph
    with the old numbers, or with whatever the allocator puts there. So the tensors that were there
    before a capture must be parameters, buffers, static inputs or optimizer state, all of them
    declared, or `yamame.execution.capturing.Constant`.

    A tensor of the host in an operation on a device is refused even where it is declared: its
    number is baked in. So is memory of NumPy (``torch.from_numpy``) that is not declared, and a
    random generator other than the default ones, which a graph does not advance.

    Limitations. These are not seen:

    * Numbers of Python. One that changes between two runs is baked in, also one read back from a
      declared tensor or from one made inside (``item``, ``tolist``, ``numpy``), and arrays that
      ``torch.tensor`` copies. To find them, compare a `MemoryReplay` with a fresh run, as
      `check_trajectory_encoder` does.
    * Declared tensors that are replaced after the capture, such as a buffer that is assigned anew.
      Compare their addresses.
    * Parts of a tensor. Whoever declares a view declares the whole memory that it is a view of.
    * Code that makes no calls of PyTorch's operators on tensors, such as a kernel that is launched
      by itself.

    Args:
        declared: Tensors that stay where they are, and whose memory may be read and written. Sparse
            ones stand for their indices and values.

    Raises:
        AssertionError: At the operation, so that the traceback shows its line.

    >>> import torch
    >>> weight, cached = torch.ones(3), torch.ones(3)
    >>> with DeclaredReads([weight]):
    ...     _ = (weight * 2).exp()
    >>> with DeclaredReads([weight]):
    ...     _ = weight * cached
    Traceback (most recent call last):
    AssertionError: aten.mul.Tensor reads a float32 tensor of shape [3], neither declared nor made
    in the capture
    """

    def __init__(self, declared: Iterable[Tensor]) -> None:
        super().__init__()
        self._declared = {_address(tensor) for tensor in _tensors((*declared, *Constant.tensors()))}
        self._made: dict[int, Any] = {}  # storages, held so that no address is used twice
        self._calls = _Calls(self._check)

    def __enter__(self) -> "DeclaredReads":
        """Begins to watch."""
        self._calls.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        """Stops watching."""
        super().__exit__(*exception)
        self._calls.__exit__(*exception)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs the operation and remembers what it made."""
        name = func._schema.name.removeprefix("aten::")
        given = [*_tensors(args), *_tensors(kwargs)]
        if name.startswith("lift"):
            # A number in the code, or memory of NumPy, which PyTorch cannot resize.
            self._check(
                func, [tensor for tensor in given if not tensor.untyped_storage().resizable()]
            )
            self._remember(given)
        elif not (func.is_view or name.startswith(_NEW) or name.endswith("_like")):
            self._check(func, given)
        results = func(*args, **(kwargs or {}))
        before = {_address(tensor) for tensor in given}  # of which results may be views
        self._remember(tensor for tensor in _tensors(results) if _address(tensor) not in before)
        return results

    def _check(self, func: object, tensors: list[Tensor]) -> None:
        has_device = any(not tensor.is_cpu for tensor in tensors)
        for tensor in tensors:
            if _address(tensor) in self._made or not tensor.numel():
                continue
            what = f"{func} reads a {str(tensor.dtype).removeprefix('torch.')} tensor of shape {list(tensor.shape)}"
            if _address(tensor) not in self._declared:
                raise AssertionError(f"{what}, neither declared nor made in the capture")
            if has_device and tensor.is_cpu:
                raise AssertionError(f"{what} on the host, whose value is baked into the capture")

    def _remember(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._made[_address(tensor)] = tensor.untyped_storage()


class _Calls(TorchFunctionMode):
    """Checks methods that read tensors back without an operation, and generators."""

    def __init__(self, check: Callable[[object, list[Tensor]], None]) -> None:
        super().__init__()
        self._check_reads = check

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs the call."""
        kwargs = kwargs or {}
        if func in _READ_BACK:
            self._check_reads(f"Tensor.{func.__name__}", [*_tensors(args[0])])
        generator = kwargs.get("generator")
        # An operation gets another Python object for the same generator, so that it is known here
        # alone.
        if generator is not None and not any(
            generator is default for default in _default_generators()
        ):
            raise AssertionError(
                f"{func.__name__} draws from a generator that is not a default one"
            )
        return func(*args, **kwargs)


class MemoryReplay(TorchDispatchMode):
    """Notes the operations inside the context; `replay` runs them again on the same memory, as a
    CUDA graph does.

    Operations find the values that are in their memory then, whatever Python objects hold in the
    meantime, and numbers are those of the recording. A result that differs from a fresh run shows
    what would be stale in a CUDA graph. It works on any device; a recording holds all intermediate
    results.

    >>> import torch
    >>> weight, factor = torch.ones(2), 2.0
    >>> with MemoryReplay() as recorded:
    ...     product = weight * factor
    >>> _, factor = weight.fill_(10.0), 3.0
    >>> recorded.replay()
    >>> product
    tensor([20., 20.])
    """

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs the operation and notes it."""
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        self._operations.append((func, args, kwargs, [*_tensors(results)]))
        return results

    @torch.no_grad()
    def replay(self) -> None:
        """Runs the operations in their order; their results are written where they were in the
        recording.
        """
        for func, args, kwargs, results in self._operations:
            if func.is_view:
                continue
            given = {_address(tensor) for tensor in _tensors((args, kwargs))}
            for old, new in zip(results, _tensors(func(*args, **kwargs)), strict=True):
                if _address(old) not in given:  # otherwise the operation has written there itself
                    old.copy_(new)


def _default_generators() -> tuple[torch.Generator, ...]:
    return torch.default_generator, *torch.cuda.default_generators


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a structure, sparse ones as the dense tensors that they consist of."""
    for leaf in tree_leaves(value):
        if not isinstance(leaf, Tensor):
            continue
        if leaf.layout is torch.sparse_coo:
            yield from (leaf._indices(), leaf._values())
        elif leaf.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from (leaf.crow_indices(), leaf.col_indices(), leaf.values())
        elif leaf.layout in (torch.sparse_csc, torch.sparse_bsc):
            yield from (leaf.ccol_indices(), leaf.row_indices(), leaf.values())
        else:
            yield leaf


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, which views share."""
    storage = tensor.untyped_storage()
    return (
        storage.data_ptr() or storage._cdata
    )  # without memory, as on the meta device, the storage itself
