"""Functions for several processes that learn together, as ``torchrun`` or ``srun`` starts them.

Every process (rank) has environments, replay and a shard of each batch of its own. Quantities of
the whole batch are summed over ranks: gradients and counts of means here, running statistics in
`yamame.normalization`. So all ranks make the same update, and parameters are sent only at the
beginning. Decisions that depend on clocks, signals or users are those of rank 0. With one process
every function returns its argument.

DistributedDataParallel is not used: it would average means over shards that differ in size, and
does not reduce statistics.
"""

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed, nn

from yamame.checks import UsageError

T = TypeVar("T")
Module = TypeVar("Module", bound=nn.Module)
# A rank that hangs, or whose machine is gone, ends the run after this time.
_TIMEOUT = timedelta(minutes=10)
# Rank 0 may write for a long time while the others wait, and evaluations differ in length.
_LONG_TIMEOUT = timedelta(hours=2)
_long_group: distributed.ProcessGroup | None = None
"""Group of all ranks for messages that are waited for until the longer of both timeouts."""


class FailedOnRank0(SystemExit):
    """Raised on other ranks when rank 0, which reports the error, has failed."""


# Processes.


@dataclass(frozen=True)
class Launch:
    """Processes that were started together, and the place of this one among them.

    Attributes:
        world_size: Number of the processes.
        rank: Number of this process, from 0.
        local_rank: Its number among those of its machine.
        init_method: Where the processes meet, for ``init_process_group``.
    """

    world_size: int = 1
    rank: int = 0
    local_rank: int = 0
    init_method: str = "env://"

    @classmethod
    def of_environment(cls) -> "Launch":
        """Return the processes of ``torchrun``, or those of a step of ``srun``, or this one alone.

        Processes of ``srun`` meet at ``MASTER_ADDR`` and ``MASTER_PORT``, or else on the first
        machine of the step, at a port of its own.
        """
        env = os.environ
        if "TORCHELASTIC_RUN_ID" in env:
            return cls(int(env["WORLD_SIZE"]), int(env["RANK"]), int(env.get("LOCAL_RANK", 0)))
        # A batch script has a rank as well, but it is no step.
        if not is_slurm_step():
            return cls()
        host = env.get("MASTER_ADDR") or first_host(env["SLURM_STEP_NODELIST"])
        # Steps of a job may run at the same time.
        number = int(env["SLURM_JOB_ID"]) + 1009 * int(env.get("SLURM_STEP_ID", 0))
        port = env.get("MASTER_PORT") or 10_000 + number % 20_000
        return cls(
            int(env["SLURM_STEP_NUM_TASKS"]),
            int(env["SLURM_PROCID"]),
            int(env["SLURM_LOCALID"]),
            f"tcp://{host}:{port}",
        )


def is_slurm_step() -> bool:
    """Return whether ``srun``, without ``torchrun``, started this process beside others."""
    is_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    return not is_torchrun and int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1


def first_host(nodes: str) -> str:
    """Return the first machine of a list as Slurm abbreviates it.

    >>> first_host("gpu[004-006,9],login1"), first_host("a[1-2]-b[07,9]"), first_host("solo,other")
    ('gpu004', 'a1-b07', 'solo')
    """
    first = re.sub(r"\[([^],-]*)[^]]*\]", r"\1", nodes)
    return first.partition(",")[0]


def launched() -> tuple[int, int]:
    """Return how many processes ``torchrun`` or ``srun`` started and the rank of this one.

    Without either the result is ``(1, 0)``.
    """
    launch = Launch.of_environment()
    return launch.world_size, launch.rank


def world_size() -> int:
    """Return the number of processes that learn together."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def rank() -> int:
    """Return the rank of this process, from 0."""
    return distributed.get_rank() if world_size() > 1 else 0


def is_rank0() -> bool:
    """Return whether this process is the one that writes, logs and decides."""
    return rank() == 0


@contextmanager
def process_group(device: str = "cpu") -> Iterator[None]:
    """Join the processes of ``torchrun`` or ``srun`` within the context; do nothing without them.

    Messages between ranks are waited for up to ten minutes; those of `on_rank0`, and of
    `all_gather`, unless ``waits_long=False``, up to two hours.

    Args:
        device: Device of the run; for ``cuda`` each process uses the GPU of its local rank.

    Raises:
        UsageError: The device has an index, or this machine has fewer GPUs than processes.
    """
    global _long_group
    launch = Launch.of_environment()
    if launch == Launch():
        yield
        return
    gpu = None
    if device.startswith("cuda"):
        gpu = _gpu_of(device, launch)
        torch.cuda.set_device(gpu)
    # NCCL sends tensors of GPUs alone, and objects and flags are on the CPU.
    backend = "gloo" if gpu is None else "cpu:gloo,cuda:nccl"
    distributed.init_process_group(
        backend,
        init_method=launch.init_method,
        world_size=launch.world_size,
        rank=launch.rank,
        timeout=_TIMEOUT,
        # Without it, NCCL guesses the GPU of a rank from its number.
        device_id=gpu,
    )
    _long_group = distributed.new_group(backend="gloo", timeout=_LONG_TIMEOUT)
    try:
        yield
    finally:
        _long_group = None
        distributed.destroy_process_group()


def _gpu_of(device: str, launch: Launch) -> torch.device:
    """Return the GPU of this process.

    Raises:
        UsageError: The device has an index, or there are fewer GPUs than processes.
    """
    if torch.device(device).index is not None:
        raise UsageError(
            f"device: must be cuda in {launch.world_size} processes, each of which takes the GPU "
            f"of its local rank, got {device}"
        )
    num_gpus = torch.cuda.device_count()
    # srun --gpus-per-task=1 shows every process its own GPU alone.
    is_own = num_gpus == 1 and is_slurm_step()
    index = 0 if is_own else launch.local_rank
    if index >= num_gpus:
        raise UsageError(
            f"device: must be cpu, or the processes at most as many as GPUs; local rank {index} "
            f"sees {num_gpus} GPUs"
        )
    return torch.device("cuda", index)


# Sums and means over ranks.


def all_reduce(*values: Tensor) -> list[Tensor]:
    """Return sums over ranks, without gradients, computed in one message.

    Args:
        values: Tensors of any shapes and dtypes, equal on all ranks.
    """
    if world_size() == 1:
        return list(values)
    # Doubles hold counts exactly and add other numbers in more digits than they have.
    flat = _flat(values)
    _sum_(flat)
    parts = flat.split([value.numel() for value in values])
    sums = []
    for part, value in zip(parts, values, strict=True):
        sums.append(part.view(value.shape).to(value.dtype))
    return sums


def all_gather_tensors(*values: Tensor) -> list[Tensor]:
    """Return the values of all ranks ``[R, ...]`` in float64, computed in one message.

    Args:
        values: Tensors of any shapes and dtypes, equal on all ranks.
    """
    flat = _flat(values)
    rows = flat.new_zeros(world_size(), len(flat))
    rows[rank()] = flat
    # Adding zeros changes nothing.
    _sum_(rows)
    gathered = []
    for part, value in zip(rows.split([v.numel() for v in values], 1), values, strict=True):
        gathered.append(part.reshape(-1, *value.shape))
    return gathered


# State of the module, because backward passes of a capture run in other threads.
_divide: Callable[[Callable[[], None]], None] | None = None


def between_graphs(call: Callable[[], None]) -> None:
    """Execute a call of the host, which a capture cannot contain, such as a message.

    A capture ends one graph here and begins another. It executes nothing; every replay executes the
    call between the two graphs. Outside of a capture the call is executed at once.

    Args:
        call: Reads and writes tensors in place.
    """
    if _divide is None:
        call()
    else:
        _divide(call)


@contextmanager
def divided_by(divide: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Let a recorder handle the calls of `between_graphs` inside of the context.

    Args:
        divide: Called with a call that is to be executed at this point of every replay.
    """
    global _divide
    before = _divide
    _divide = divide
    try:
        yield
    finally:
        _divide = before


def _flat(values: Sequence[Tensor]) -> Tensor:
    return torch.cat([value.detach().reshape(-1).double() for value in values])


def _sum_(values: Tensor) -> None:
    """Replace values by their sums over ranks."""
    if world_size() > 1:
        between_graphs(lambda: distributed.all_reduce(values))


def mean_count(count: Tensor) -> Tensor:
    """Return the mean of a count over ranks.

    If every rank divides the sum over its shard by this number, the mean of the results over ranks
    is the mean over the whole batch.
    """
    if world_size() == 1:
        return count
    (total,) = all_reduce(count.double())
    return total / world_size()


def all_reduce_means(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return means over ranks, without gradients."""
    if world_size() == 1:
        return {name: value.detach() for name, value in values.items()}
    sums = all_reduce(*values.values())
    means = {}
    for name, total in zip(values, sums, strict=True):
        means[name] = total / world_size()
    return means


def average_gradients_(gradients: list[Tensor]) -> None:
    """Replace gradients by their means over ranks."""
    if world_size() == 1:
        return
    # In one message: its latency would count for every parameter.
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    _sum_(flat)
    flat /= world_size()
    means = flat.split([gradient.numel() for gradient in gradients])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))


# Values and decisions.


def broadcast(value: T) -> T:
    """Return the value of rank 0 on all ranks."""
    return _broadcast(value, None)


def _broadcast(value: T, group: distributed.ProcessGroup | None) -> T:
    if world_size() == 1:
        return value
    values = [value]
    distributed.broadcast_object_list(values, src=0, group=group, device=torch.device("cpu"))
    return values[0]


def any_rank(flag: bool) -> bool:
    """Return whether a flag is set on at least one rank."""
    if world_size() == 1:
        return flag
    (num_set,) = all_reduce(torch.tensor(int(flag)))
    return bool(num_set)


def all_gather(value: T, *, waits_long: bool = True) -> list[T]:
    """Return the values of all ranks, in order, on every rank.

    Args:
        value: Value of this rank.
        waits_long: Wait for two hours instead of ten minutes, because ranks may arrive at very
            different times, as after an evaluation.
    """
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    distributed.all_gather_object(values, value, group=_long_group if waits_long else None)
    return values


def on_rank0(task: Callable[[], T]) -> T:
    """Run a task on rank 0 and return its result on all ranks, which wait for up to two hours.

    Raises:
        FailedOnRank0: On the other ranks, if the task raises on rank 0.
    """
    if world_size() == 1:
        return task()
    failure, result = None, None
    try:
        result = task() if is_rank0() else None
    except BaseException as error:
        # The exit status of a SystemExit; 1 as Python's own for any other error. An error of user
        # code may have an attribute of this name, of any type.
        code = getattr(error, "code", 1)
        failure = code if isinstance(code, int) else 1
        raise
    finally:
        # Also after an error: the other ranks are waiting.
        failure, result = _broadcast((failure, result), _long_group)
    if failure is not None:
        raise FailedOnRank0(failure)
    return result  # type: ignore[return-value]


# Shards.


def shard(total: int, key: str) -> int:
    """Return the size of a rank's shard.

    Args:
        total: Size over all ranks.
        key: Key of the setting, for the message.

    Raises:
        UsageError: The total is not a multiple of the number of ranks.
    """
    if total % world_size():
        raise UsageError(
            f"{key}: must be a multiple of the {world_size()} processes of the run, got {total}"
        )
    return total // world_size()


def rank_dir(path: Path) -> Path:
    """Return a folder of this rank below a common one; with one process the common one."""
    return path if world_size() == 1 else path / f"rank{rank()}"


def rank_seed(seed: int) -> int:
    """Return a seed of this rank; that of rank 0 is the seed itself.

    >>> rank_seed(7)
    7
    """
    if is_rank0():
        return seed
    sequence = np.random.SeedSequence([seed, rank()])
    return int(sequence.generate_state(1)[0])


def broadcast_parameters(module: Module) -> Module:
    """Copy the parameters and buffers of rank 0 into a module, and return it."""
    if world_size() > 1:
        for value in module.state_dict().values():
            distributed.broadcast(value, src=0)
    return module


class PerRank:
    """Component of a checkpoint that differs between ranks; rank 0 saves the states of all.

    Args:
        component: Object with ``state_dict`` and ``load_state_dict``.
    """

    def __init__(self, component: Any) -> None:
        self.component = component

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks, by number, on the CPU; must be called on all ranks."""
        # A tensor on a GPU would be received on the GPU of its own rank, in every process.
        states = all_gather(_on_host(self.component.state_dict()))
        return {str(number): state for number, state in enumerate(states)}

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Restore the state of this rank."""
        self.component.load_state_dict(states[str(rank())])


def _on_host(state: Any) -> Any:
    """Return a state with its tensors and TensorDicts on the CPU."""
    if callable(getattr(state, "cpu", None)):
        return state.cpu()
    if isinstance(state, dict):
        # State dicts of modules have the versions of the modules as an attribute.
        copied = copy.copy(state)
        for key, value in state.items():
            copied[key] = _on_host(value)
        return copied
    if type(state) in (list, tuple):
        return type(state)(_on_host(value) for value in state)
    return state


def state_of(component: Any) -> Any:
    """Return a component of a checkpoint, or the states of a `PerRank`; call it on all ranks."""
    return component.state_dict() if isinstance(component, PerRank) else component
