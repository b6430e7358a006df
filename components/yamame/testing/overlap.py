"""How many tasks of an evaluation training meets, with what relabelling makes of its trajectories."""

from collections.abc import Callable, Mapping
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
    """What `task_overlap` counts.

    Attributes:
        trained: Different tasks that training draws.
        evaluated: Different tasks of the evaluation.
        drawn: Share of the evaluation's tasks that training draws.
        met: The same, with the tasks that relabelling makes of trajectories; None without relabelling.
        layouts: Share of the evaluation's tasks whose layout training draws; None without ``layout_hash``.
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
) -> Overlap:
    """Counts which tasks of an evaluation training meets.

    Args:
        training: Environment of training. With ``relabel`` it is played, by random actions, as many tasks at once as it
            has envs, and must take ``task_seed`` in `reset`.
        evaluation: Environment of the evaluation.
        trained: Seeds ``[R]`` int64 of the tasks of training.
        evaluated: Seeds ``[E]`` int64 of the tasks of the evaluation.
        relabel: Relabels whole trajectories ``[B, L]`` and keeps their order.
        num_draws: How often each trajectory is relabelled.
        layout_hash: Hashes a part of tasks, such as the walls of a maze, to count it too.

    Raises:
        ValueError: There are no tasks, or fewer of training than ``training`` has envs.
    """
    require(
        "task_overlap",
        "tasks",
        (len(trained), len(evaluated)),
        min(len(trained), len(evaluated)) > 0,
        "be some",
    )
    roster = evaluation.tasks_of(evaluated)
    wanted = evaluation.task_hash(roster)
    met = [training.task_hash(training.tasks_of(part)) for part in trained.split(_AT_ONCE)]
    drawn = torch.cat(met)
    counted = Overlap(len(drawn.unique()), len(wanted.unique()), _share(wanted, drawn))

    if relabel is not None:
        for part in _whole_batches(trained, training):
            batch, task = _play(training, part), training.tasks_of(part)
            for _ in range(num_draws):
                instruction = relabel(batch).get("goal")[:, 0]
                met.append(training.task_hash({**task, "instruction": instruction}))
        counted = counted._replace(met=_share(wanted, torch.cat(met)))

    if layout_hash is not None:
        known = torch.cat([layout_hash(training.tasks_of(part)) for part in trained.split(_AT_ONCE)])
        counted = counted._replace(layouts=_share(layout_hash(roster), known))
    return counted


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
