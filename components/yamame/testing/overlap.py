"""How many tasks of an evaluation training meets, with what relabelling makes of its
trajectories.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase

from yamame.checks import require
from yamame.replay.packing import pack

Task = Mapping[str, Tensor]
Hash = Callable[[Task], Tensor]
_AT_ONCE = 4096  # tasks that are drawn together


class HasTasks(Protocol):
    """Part of a `yamame_envs.BatchedEnv` that draws tasks and tells them apart."""

    def tasks_of(self, task_seed: Tensor) -> dict[str, Tensor]:
        """The tasks ``[R, ...]`` of seeds ``[R]``."""

    def task_hash(self, task: Task) -> Tensor:
        """Hashes ``[R]`` of tasks: equal for those that the split takes for the same."""


class Overlap(NamedTuple):
    """Counts of `task_overlap`.

    Attributes:
        trained: Different tasks that training draws.
        evaluated: Different tasks of the evaluation.
        drawn: Share of the evaluation's tasks that training draws.
        met: The same, with the tasks that relabelling makes of trajectories; None without
            relabelling.
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
    """Counts which tasks of an evaluation training meets.

    With ``entries`` the count does not depend on the hash that the split uses. So it shows whether
    a description of the evaluation holds: ``["walls", "instruction"]`` for "new goals in known
    mazes".

    Args:
        training: Environment of training. With ``relabel`` it is played, by random actions, as many
            tasks at once as it has envs, and must take ``task_seed`` in `reset`.
        evaluation: Environment of the evaluation.
        trained: Seeds ``[R]`` int64 of the tasks of training.
        evaluated: Seeds ``[E]`` int64 of the tasks of the evaluation.
        relabel: Relabels whole trajectories ``[B, L]`` and keeps their order.
        num_draws: How often each trajectory is relabelled.
        layout_hash: Hashes a part of tasks, such as the walls of a maze, to count it too.
        entries: Names of the entries of a task in which equal tasks agree; they are compared by
            value. None: tasks are equal if ``task_hash`` is.

    Raises:
        ValueError: There are no tasks, or fewer of training than ``training`` has envs; or tasks
            lack one of ``entries``.
    """
    require(
        "task_overlap",
        "tasks",
        (len(trained), len(evaluated)),
        min(len(trained), len(evaluated)) > 0,
        "be some",
    )
    roster = evaluation.tasks_of(evaluated)
    number_of = Numbering(entries) if entries is not None else None
    wanted = (number_of or evaluation.task_hash)(roster)
    identify = number_of or training.task_hash
    met = [identify(training.tasks_of(part)) for part in trained.split(_AT_ONCE)]
    drawn = torch.cat(met)
    counted = Overlap(len(drawn.unique()), len(wanted.unique()), _share(wanted, drawn))

    if relabel is not None:
        for part in _whole_batches(trained, training):
            batch, task = _play(training, part), training.tasks_of(part)
            for _ in range(num_draws):
                instruction = relabel(batch).get("goal")[:, 0]
                met.append(identify({**task, "instruction": instruction}))
        counted = counted._replace(met=_share(wanted, torch.cat(met)))

    if layout_hash is not None:
        known = torch.cat(
            [layout_hash(training.tasks_of(part)) for part in trained.split(_AT_ONCE)]
        )
        counted = counted._replace(layouts=_share(layout_hash(roster), known))
    return counted


class Numbering:
    """Numbers tasks by the values of some of their entries: equal tasks have the same number.

    >>> number_of = Numbering(["a"])
    >>> number_of({"a": torch.tensor([3, 5, 3]), "b": torch.arange(3)}).tolist()
    [0, 1, 0]
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self.entries = tuple(entries)
        self._numbers: dict[bytes, int] = {}

    def __call__(self, task: Task) -> Tensor:
        """Numbers of tasks ``[R, ...]``: ``[R]`` int64."""
        for name in self.entries:
            require(
                "task_overlap", "entries", self.entries, name in task, f"be among {sorted(task)}"
            )

        columns = [task[name].unsqueeze(-1).flatten(1).double() for name in self.entries]
        rows = torch.cat(columns, 1) + 0.0  # -0.0 equals 0.0, its bytes do not
        numbers = [
            self._numbers.setdefault(row.tobytes(), len(self._numbers))
            for row in rows.cpu().numpy()
        ]
        return torch.tensor(numbers, dtype=torch.int64)


def _share(wanted: Tensor, known: Tensor) -> float:
    return float(torch.isin(wanted, known).double().mean())


def _whole_batches(seeds: Tensor, env: EnvBase) -> list[Tensor]:
    """Seeds for every env at once; those that are left over are left out."""
    num_envs = env.batch_size.numel()
    parts = [part for part in seeds.split(num_envs) if len(part) == num_envs]
    require(
        "task_overlap",
        "tasks of training",
        len(seeds),
        bool(parts),
        f"be at least {num_envs}, one for each env",
    )
    return parts


def _play(env: EnvBase, seeds: Tensor) -> TensorDict:
    """One episode of random actions for each of the tasks, as whole trajectories ``[N, L]``."""
    first = env.reset(TensorDict({"task_seed": seeds.unsqueeze(-1)}, env.batch_size))
    steps = int(env.observation_spec["step_index"].space.high.max())
    rollout = env.rollout(steps, auto_reset=False, tensordict=first, break_when_any_done=False)
    return pack(rollout, split=False)
