"""Several processes that learn together, as ``torchrun`` starts them: one agent, the batch shared
out.

Every process (rank) has environments, replay and a part of each batch of its own. What depends on
the whole batch is summed: gradients and counts of means here, running statistics where they are
(`yamame.normalization`). So all ranks make the same update, and no parameter is sent but at the
beginning. Decisions that depend on clocks, signals or users are those of the first rank. In one
process every function gives back what it was given.

There is no DistributedDataParallel: it would average means of shares that differ in size, and knows
no statistics.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn

from yamame.checks import UsageError

T = TypeVar("T")
Module = TypeVar("Module", bound=nn.Module)
_PATIENCE = timedelta(hours=2)
"""For a rank that evaluates or writes longer than the others."""


class FailedOnRank0(SystemExit):
    """Another rank says what happened."""


def launched() -> tuple[int, int]:
    """How many processes ``torchrun`` started, and which of them this is; ``(1, 0)`` without it."""
    started = "TORCHELASTIC_RUN_ID" in os.environ
    return (int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])) if started else (1, 0)


def world_size() -> int:
    """How many processes learn together."""
    return (
        distributed.get_world_size()
        if distributed.is_available() and distributed.is_initialized()
        else 1
    )


def rank() -> int:
    """Which of them this is, from 0."""
    return distributed.get_rank() if world_size() > 1 else 0


def is_rank0() -> bool:
    """Whether this process is the one that writes, tells and decides."""
    return rank() == 0


@contextmanager
def process_group(device: str = "cpu") -> Iterator[None]:
    """Within the block the processes of ``torchrun`` learn together; without it nothing happens.

    Args:
        device: Where they compute; for ``cuda`` each has the GPU of its number on its machine.
    """
    if launched() == (1, 0):
        yield
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    distributed.init_process_group(backend, timeout=_PATIENCE)
    try:
        yield
    finally:
        distributed.destroy_process_group()


# What is summed.


def all_reduce(*values: Tensor) -> list[Tensor]:
    """Sums over ranks of numbers without a gradient, in one message."""
    if world_size() == 1:
        return list(values)
    flat = torch.cat([value.detach().reshape(-1).double() for value in values])
    distributed.all_reduce(flat)
    parts = flat.split([value.numel() for value in values])
    return [
        part.view(value.shape)
        if value.dtype == torch.float64
        else part.view(value.shape).to(value.dtype)
        for part, value in zip(parts, values, strict=True)
    ]


def mean_count(count: Tensor) -> Tensor:
    """The mean of a count over ranks: sums of a share divided by it have the mean of the whole as
    their mean.
    """
    return count if world_size() == 1 else all_reduce(count.double())[0] / world_size()


def all_reduce_means(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Means over ranks, without gradients."""
    if world_size() == 1:
        return {name: value.detach() for name, value in values.items()}
    return dict(
        zip(values, (value / world_size() for value in all_reduce(*values.values())), strict=True)
    )


def average_gradients_(gradients: list[Tensor]) -> None:
    """Replaces gradients by their means over ranks, in one message."""
    if world_size() == 1:
        return
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= world_size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


# What is decided, and told.


def broadcast(value: T) -> T:
    """What the first rank says, on all."""
    if world_size() == 1:
        return value
    said = [value]
    distributed.broadcast_object_list(said, src=0, device=torch.device("cpu"))
    return said[0]


def any_rank(flag: bool) -> bool:
    """Whether it holds on one rank at least."""
    return flag if world_size() == 1 else bool(all_reduce(torch.tensor(int(flag)))[0])


def all_gather(value: T) -> list[T]:
    """What every rank says, on all, in their order."""
    if world_size() == 1:
        return [value]
    said: list[Any] = [None] * world_size()
    distributed.all_gather_object(said, value)
    return said


def on_rank0(task: Callable[[], T]) -> T:
    """What a task that only the first rank does returns, on all.

    Raises:
        FailedOnRank0: On the other ranks, where the first one raises.
    """
    if world_size() == 1:
        return task()
    failure, result = None, None
    try:
        result = task() if is_rank0() else None
    except BaseException as error:
        failure = getattr(error, "code", 1)
        raise
    finally:
        failure, result = broadcast((failure, result))
    if failure is not None:
        raise FailedOnRank0(failure)
    return result  # type: ignore[return-value]


# What is shared out.


def shard(total: int, key: str) -> int:
    """The share of a rank.

    Raises:
        UsageError: It cannot be shared out evenly.
    """
    if total % world_size():
        raise UsageError(
            f"{key}: must be a multiple of the {world_size()} processes of torchrun, got {total}"
        )
    return total // world_size()


def rank_dir(path: Path) -> Path:
    """A folder of this rank below one that all of them share; with one process that folder."""
    return path if world_size() == 1 else path / f"rank{rank()}"


def rank_seed(seed: int) -> int:
    """A seed of this rank; that of the first one is the seed itself.

    >>> rank_seed(7)
    7
    """
    return seed if is_rank0() else int(np.random.SeedSequence([seed, rank()]).generate_state(1)[0])


def broadcast_parameters(module: Module) -> Module:
    """The module, with the parameters and buffers of the first rank."""
    if world_size() > 1:
        for value in module.state_dict().values():
            distributed.broadcast(value, src=0)
    return module


class PerRank:
    """A component of a checkpoint that differs between ranks: the state of each, told by the first.

    Args:
        component: Has ``state_dict`` and ``load_state_dict``.
    """

    def __init__(self, component: Any) -> None:
        self.component = component

    def state_dict(self) -> dict[str, Any]:
        """Those of all ranks, by number; all ranks must ask for it."""
        states = all_gather(self.component.state_dict())
        return {str(number): state for number, state in enumerate(states)}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Restores that of this rank."""
        self.component.load_state_dict(states[str(rank())])


def state_of(component: Any) -> Any:
    """The component of a checkpoint, or the states of those that differ between ranks; all ranks
    must ask.
    """
    return component.state_dict() if isinstance(component, PerRank) else component
