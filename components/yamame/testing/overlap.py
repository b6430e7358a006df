"""Counts of the tasks of an evaluation that training meets, by itself or through relabelling."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from yamame.checks import require
from yamame.replay.packing import pack

Task = Mapping[str, Tensor]
"""Entries ``[R, ...]`` that describe R tasks."""
Hash = Callable[[Task], Tensor]
"""Function that maps R tasks to int64 ``[R]``, equal for equal tasks."""

_MAX_TASKS = 4096
"""Largest number of tasks drawn at once, which bounds the memory of their entries."""


class HasTasks(Protocol):
    """Part of a `yamame_envs.BatchedEnv` that draws and hashes tasks."""

    def tasks_of(self, task_seed: Tensor) -> dict[str, Tensor]:
        """Return the tasks ``[R, ...]`` of seeds ``[R]``."""

    def task_hash(self, task: Task) -> Tensor:
        """Return hashes ``[R]`` of tasks, equal for tasks that the split does not distinguish."""


class Overlap(NamedTuple):
    """Counts of `task_overlap`.

    Attributes:
        trained: Number of different tasks that training draws.
        evaluated: Number of different tasks in the evaluation.
        drawn: Share of the evaluation's tasks that training draws.
        met: Share of the evaluation's tasks that training draws or that relabelling creates; None
            without relabelling.
        layouts: Share of the evaluation's tasks whose layout training draws; None without
            ``layout_hash``.
    """

    trained: int
    evaluated: int
    drawn: float
    met: float | None = None
    layouts: float | None = None


def task_overlap(
    training: HasTasks,
    evaluation: HasTasks,
    *,
    trained: Tensor,
    evaluated: Tensor,
    relabel: Callable[[TensorDictBase], TensorDictBase] | None = None,
    num_draws: int = 1,
    layout_hash: Hash | None = None,
    entries: Sequence[str] | None = None,
) -> Overlap:
    """Count the tasks of an evaluation that training meets.

    With ``entries`` the count is independent of the hash that the split uses, so it shows whether
    the evaluation is new in these entries: ``["walls", "instruction"]`` for "new goals in known
    mazes".

    Args:
        training: Environment of training. With ``relabel`` it runs episodes of random actions, one
            task per env at once, and must accept ``task_seed`` in `reset`.
        evaluation: Environment of the evaluation.
        trained: Seeds ``[R]`` int64 of the tasks of training.
        evaluated: Seeds ``[E]`` int64 of the tasks of the evaluation.
        relabel: Function that relabels whole trajectories ``[B, L]`` and keeps their order.
        num_draws: Number of times each trajectory is relabelled.
        layout_hash: Hash of a part of a task, such as the walls of a maze, to count layouts too.
        entries: Entries of a task that are compared by value; None to compare by ``task_hash``.

    Raises:
        ArgumentError: ``trained`` or ``evaluated`` is empty, there are fewer trained tasks than
            ``training`` has envs, or tasks lack one of ``entries``.
    """
    smaller = min(len(trained), len(evaluated))
    require("task_overlap", "tasks", smaller, smaller > 0, "be at least 1 on each side")
    numbering = None if entries is None else Numbering(entries)
    roster = evaluation.tasks_of(evaluated)
    wanted = (numbering or evaluation.task_hash)(roster)
    identify = numbering or training.task_hash
    drawn = _hash_tasks(training, trained, identify)
    num_trained = len(drawn.unique())
    num_evaluated = len(wanted.unique())
    overlap = Overlap(num_trained, num_evaluated, drawn=_share(wanted, drawn))

    if relabel is not None:
        met = [drawn]
        for seeds in _whole_batches(trained, training):
            batch = _play(training, seeds)
            task = training.tasks_of(seeds)
            for _ in range(num_draws):
                instruction = relabel(batch).get("goal")[:, 0]
                relabelled = {**task, "instruction": instruction}
                met.append(identify(relabelled))
        overlap = overlap._replace(met=_share(wanted, torch.cat(met)))

    if layout_hash is not None:
        known = _hash_tasks(training, trained, layout_hash)
        overlap = overlap._replace(layouts=_share(layout_hash(roster), known))
    return overlap


class Numbering:
    """Numbers of tasks by the values of some of their entries: equal tasks have equal numbers.

    Args:
        entries: Entries to compare.

    >>> number_of = Numbering(["a"])
    >>> number_of({"a": torch.tensor([3, 5, 3]), "b": torch.arange(3)}).tolist()
    [0, 1, 0]
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self.entries = tuple(entries)
        self._numbers: dict[bytes, int] = {}

    def __call__(self, task: Task) -> Tensor:
        """Return the numbers of tasks ``[R, ...]``: ``[R]`` int64."""
        columns = []
        for name in self.entries:
            condition = f"be among {sorted(task)}"
            require("task_overlap", "entries", self.entries, name in task, condition)
            column = task[name].unsqueeze(-1).flatten(1)
            columns.append(column.double())

        # Rows are compared by their bytes, which differ for -0.0 and 0.0. The sum makes both 0.0.
        rows = torch.cat(columns, 1) + 0.0
        numbers = []
        for row in rows.cpu().numpy():
            new_number = len(self._numbers)
            numbers.append(self._numbers.setdefault(row.tobytes(), new_number))
        return torch.tensor(numbers, dtype=torch.int64)


def _hash_tasks(env: HasTasks, seeds: Tensor, identify: Hash) -> Tensor:
    """Return the hashes ``[R]`` of the tasks of seeds ``[R]``."""
    hashes = []
    for part in seeds.split(_MAX_TASKS):
        task = env.tasks_of(part)
        hashes.append(identify(task))
    return torch.cat(hashes)


def _share(wanted: Tensor, known: Tensor) -> float:
    is_known = torch.isin(wanted, known)
    return float(is_known.double().mean())


def _whole_batches(seeds: Tensor, env: EnvBase) -> list[Tensor]:
    """Return batches of one seed per env, without the seeds that do not fill a batch."""
    num_envs = env.batch_size.numel()
    num_batches = len(seeds) // num_envs
    condition = f"be at least {num_envs}, one for each env"
    require("task_overlap", "tasks of training", len(seeds), num_batches > 0, condition)
    return list(seeds.split(num_envs))[:num_batches]


def _play(env: EnvBase, seeds: Tensor) -> TensorDict:
    """Return one episode of random actions per task, as whole trajectories ``[N, L]``."""
    task = TensorDict({"task_seed": seeds.unsqueeze(-1)}, env.batch_size)
    first = env.reset(task)
    # No episode is longer than the largest timestep of the spec.
    max_steps = int(env.observation_spec["step_index"].space.high.max())
    # An env whose episode has ended continues with the others; `pack` drops these steps.
    rollout = env.rollout(max_steps, auto_reset=False, tensordict=first, break_when_any_done=False)
    return pack(rollout, split=False)
