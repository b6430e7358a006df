"""Checks of captured computations: the memory that they read, and replays on the same memory."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from yamame.execution.capturing import Constant

_CREATION_PREFIXES = ("empty", "new_", "zeros", "ones", "full", "rand", "scalar_tensor")
"""Prefixes of operations that use only the shape and dtype of a tensor. Others end in ``_like``."""
_READ_BACK = (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__)
"""Methods that read a tensor without an operation, unseen by a dispatch mode."""


class DeclaredReads(TorchDispatchMode):
    """Context that raises at an operation on a tensor neither declared nor made inside.

    A CUDA graph reads and writes the memory that it was captured with. A tensor that is replaced
    between two runs, such as a cached product of weights in a plain attribute, leaves the graph
    with the old numbers, or with any data that the allocator puts there later. So every tensor made
    before a capture must be declared (parameters, buffers, static inputs, optimizer state) or be a
    `yamame.execution.capturing.Constant`.

    A host tensor in an operation on a device raises even if it is declared, because its value is
    baked into the graph. Undeclared memory of NumPy (``torch.from_numpy``) raises, and so does a
    random generator other than the default ones, which a graph does not advance.

    Limitations. The following is not detected:

    * Python numbers. A number that changes between two runs is baked in, including numbers read
      back from a tensor (``item``, ``tolist``, ``numpy``) and arrays that ``torch.tensor`` copies.
      To find them, compare a `MemoryReplay` with a fresh run, as `check_trajectory_encoder` does.
    * Declared tensors that are replaced after the capture, such as a reassigned buffer. To find
      them, compare addresses.
    * Parts of a tensor: declaring a view declares all memory of its base.
    * Code that calls no PyTorch operator on tensors, such as a directly launched kernel.

    Args:
        declared: Tensors that keep their address, and whose memory may be read and written. A
            sparse tensor declares its indices and values.

    Raises:
        AssertionError: At the operation, so that the traceback shows its line.

    >>> import torch
    >>> weight, cached = torch.ones(3), torch.ones(3)
    >>> with DeclaredReads([weight]):
    ...     _ = (weight * 2).exp()
    >>> with DeclaredReads([weight]):  # doctest: +ELLIPSIS
    ...     _ = weight * cached
    Traceback (most recent call last):
    AssertionError: aten.mul.Tensor reads a float32 tensor of shape [3], neither declared nor ...
    """

    def __init__(self, declared: Iterable[Tensor]) -> None:
        super().__init__()
        self._declared: set[int] = set()
        for tensor in _tensors([*declared, *Constant.tensors()]):
            self._declared.add(_address(tensor))
        # Storages made inside, by address. They are kept alive so that no address is used twice.
        self._made: dict[int, Any] = {}
        self._calls = _Calls(self._check)

    def __enter__(self) -> "DeclaredReads":
        """Begin to watch operations and calls."""
        self._calls.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        """Stop watching."""
        super().__exit__(*exception)
        self._calls.__exit__(*exception)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Check and run an operation, and record the tensors that it makes."""
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        inputs = list(_tensors([args, kwargs]))
        is_creation = name.startswith(_CREATION_PREFIXES) or name.endswith("_like")
        if name.startswith("lift"):
            # The operation brings in a number from the code, or memory of NumPy, which is not
            # resizable.
            foreign = [tensor for tensor in inputs if not tensor.untyped_storage().resizable()]
            self._check(func, foreign)
            self._record(inputs)
        elif not _is_view(func) and not is_creation:
            # A view reads nothing by itself. It shares its address with the base, so operations on
            # it are checked.
            self._check(func, inputs)

        results = func(*args, **kwargs)
        input_addresses = {_address(tensor) for tensor in inputs}
        for result in _tensors(results):
            # A result in the memory of an input is a view of it or was written in place.
            if _address(result) not in input_addresses:
                self._record([result])
        return results

    def _check(self, func: object, tensors: list[Tensor]) -> None:
        """Raise if one of the tensors that an operation reads is not allowed."""
        has_device = any(not tensor.is_cpu for tensor in tensors)
        for tensor in tensors:
            address = _address(tensor)
            if address in self._made or tensor.numel() == 0:
                continue
            dtype = str(tensor.dtype).removeprefix("torch.")
            read = f"{func} reads a {dtype} tensor of shape {list(tensor.shape)}"
            if address not in self._declared:
                raise AssertionError(f"{read}, neither declared nor made in the capture")
            if has_device and tensor.is_cpu:
                raise AssertionError(f"{read} on the host, whose value is baked into the capture")

    def _record(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._made[_address(tensor)] = tensor.untyped_storage()


class _Calls(TorchFunctionMode):
    """Context that checks generators, and methods that read a tensor without an operation."""

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
        """Check and run a call."""
        kwargs = kwargs or {}
        if func in _READ_BACK:
            self._check_reads(f"Tensor.{func.__name__}", list(_tensors(args[0])))
        # Generators are checked here, because an operation receives another Python object for the
        # same generator.
        generator = kwargs.get("generator")
        if generator is not None and not _is_default(generator):
            message = f"{func.__name__} draws from a generator that is not a default one"
            raise AssertionError(message)
        return func(*args, **kwargs)


class MemoryReplay(TorchDispatchMode):
    """Context that records operations; `replay` runs them again on the same memory.

    As in a CUDA graph, operations read the values that their memory holds at the replay, whichever
    tensors the attributes of modules refer to by then, and Python numbers are those of the
    recording. A result that differs from a fresh run shows a value that would be stale in a CUDA
    graph. It works on any device. A recording keeps all intermediate results.

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
        """Run and record an operation."""
        kwargs = kwargs or {}
        # Aliases keep the shape and the strides of this time: `transpose_` changes those of the
        # tensor itself, before or after it is used.
        args_now, kwargs_now = tree_map_only(Tensor, _alias, (args, kwargs))
        results = func(*args, **kwargs)
        results_now = [_alias(result) for result in _tensors(results)]
        self._operations.append((func, args_now, kwargs_now, results_now))
        return results

    @torch.no_grad()
    def replay(self) -> None:
        """Run the operations in order, and write their results to the recorded tensors."""
        for func, args, kwargs, results in self._operations:
            if _is_view(func):
                # The recorded view still refers to the memory of its base.
                continue
            input_addresses = {_address(tensor) for tensor in _tensors([args, kwargs])}
            new_results = _tensors(func(*args, **kwargs))
            for recorded, new in zip(results, new_results, strict=True):
                # An operation in place has written to its memory itself.
                if _address(recorded) not in input_addresses:
                    recorded.copy_(new)


def _is_view(func: Any) -> bool:
    """Return whether an operation changes or returns only the shape and strides of its input."""
    return bool(func.is_view) or torch.Tag.inplace_view in func.tags


def _alias(tensor: Tensor) -> Tensor:
    """Return a tensor of the same memory, shape and strides; a sparse tensor itself."""
    return torch.ops.aten.alias(tensor) if tensor.layout is torch.strided else tensor


def _is_default(generator: torch.Generator) -> bool:
    defaults = (torch.default_generator, *torch.cuda.default_generators)
    return any(generator is default for default in defaults)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nested structure, and the dense components of sparse ones."""
    for leaf in tree_leaves(value):
        if not isinstance(leaf, Tensor):
            continue
        if leaf.layout is torch.sparse_coo:
            # The public methods demand a coalesced tensor.
            yield leaf._indices()
            yield leaf._values()
        elif leaf.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield leaf.crow_indices()
            yield leaf.col_indices()
            yield leaf.values()
        elif leaf.layout in (torch.sparse_csc, torch.sparse_bsc):
            yield leaf.ccol_indices()
            yield leaf.row_indices()
            yield leaf.values()
        else:
            yield leaf


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, which views share."""
    storage = tensor.untyped_storage()
    address: int = storage.data_ptr()
    if address == 0:
        # A tensor without memory, as on the meta device, is identified by its storage object.
        address = storage._cdata
    return address
