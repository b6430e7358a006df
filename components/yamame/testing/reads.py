"""The law of captured computations: memory that they read stays where it is."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from yamame.capturing import Constant

_NEW = ("empty", "new_", "zeros", "ones", "full", "rand", "scalar_tensor")
"""Operations that take a tensor for its shape and dtype alone begin like this or end with ``_like``."""


class DeclaredReads(TorchDispatchMode):
    """Fails at an operation on a tensor that is neither declared nor made inside the context.

    A CUDA graph reads and writes the memory that it was captured with. A tensor that is replaced between two runs, such
    as a cached product of weights in a plain attribute, leaves the graph with the old numbers, or with whatever the
    allocator puts there. So the tensors that were there before a capture must be parameters, buffers, static inputs
    or optimizer state, all of them declared, or `yamame.capturing.Constant`.

    A tensor of the host in an operation on a device is refused even where it is declared: its number is baked in.

    Args:
        declared: Tensors that stay where they are, and whose memory may be read and written.

    Raises:
        AssertionError: At the operation, so that the traceback shows its line.

    >>> import torch
    >>> weight, cached = torch.ones(3), torch.ones(3)
    >>> with DeclaredReads([weight]):
    ...     _ = (weight * 2).exp()
    >>> with DeclaredReads([weight]):
    ...     _ = weight * cached
    Traceback (most recent call last):
    AssertionError: aten.mul.Tensor reads a float32 tensor of shape [3], neither declared nor made in the capture
    """

    def __init__(self, declared: Iterable[Tensor]) -> None:
        super().__init__()
        self._declared = {_address(tensor) for tensor in (*declared, *Constant.tensors())}
        self._made: dict[int, Any] = {}  # storages, held so that no address is used twice

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operation and remembers what it made."""
        name = func._schema.name.removeprefix("aten::")
        given = [*_tensors(args), *_tensors(kwargs)]
        if name.startswith("lift"):  # of a number in the code
            self._remember(given)
        elif not (func.is_view or name.startswith(_NEW) or name.endswith("_like")):
            self._check(func, given)
        results = func(*args, **(kwargs or {}))
        before = {_address(tensor) for tensor in given}  # of which results may be views
        self._remember(tensor for tensor in _tensors(results) if _address(tensor) not in before)
        return results

    def _check(self, func: Callable[..., Any], tensors: list[Tensor]) -> None:
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


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def _address(tensor: Tensor) -> int:
    """Where the memory of a tensor begins; views share it."""
    return tensor.untyped_storage().data_ptr()
