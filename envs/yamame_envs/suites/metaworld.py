"""Meta-World's meta-learning benchmarks, as a TorchRL environment."""

from functools import partial
from typing import get_args

import torch
from yamame.checks import require, require_choice

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.workers import Workers
from yamame_envs.suites.metaworld_task import ATTEMPT, MetaWorldTask, RewardVersion, Split


class MetaWorld(HostedEnv):
    """One attempt at a task of a Meta-World benchmark (arXiv 1910.10897).

    An episode draws a task uniformly, then one of its 50 goals. ``observation`` is Meta-World's
    vector of 39 numbers, in which the last three, the goal, are zero; an action moves the hand and
    the gripper, four numbers in [-1, 1]; the dense reward ``v2`` lies in [0, 10] per step.
    ``success`` tells of a single step, and does not end the attempt.

    The tasks of ``ML10``, ``ML25`` and ``ML45`` differ between the splits, but for basketball,
    which Meta-World has on both sides of ``ML25``; the goals of ``ML1`` do.

    Args:
        benchmark: ``ML10``, ``ML25``, ``ML45``, or ``ML1-`` and a task such as ``ML1-reach-v3``.
        split: Tasks and goals to train with, or those to test with.
        goal_seed: Which goals there are: the seed of the official benchmark, at least 0.
        reward_function_version: The dense reward that is paid: ``v2``, or ``v1``, that of the first
            Meta-World, whose scale differs from task to task (Meta-World+). Success is the same.
        time_limit: Steps of the attempt, 500 or less.
        num_envs: N, the number of environments.
        seed: Names the tasks of all episodes.
        device: Where all tensors live.
        workers: Where the envs are played. A process holds an arm of some 20 MB per env, and idle
            ones: 24, or one per task of the benchmark.

    Raises:
        ValueError: If there is no such benchmark or split, or a number is out of its range.
        ImportError: If Meta-World is not installed, or a version without ``ML25`` or ``v1``.
    """

    def __init__(
        self,
        *,
        benchmark: str = "ML1-reach-v3",
        split: Split = "train",
        goal_seed: int = 0,
        reward_function_version: RewardVersion = "v2",
        time_limit: int = ATTEMPT,
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008
    ) -> None:
        require(self.label, "goal_seed", goal_seed, 0 <= goal_seed < 2**32 - 1, "be in 0..2^32-2")
        require(
            self.label, "time_limit", time_limit, 1 <= time_limit <= ATTEMPT, f"be in 1..{ATTEMPT}"
        )
        version = reward_function_version
        both = "new tasks, but for basketball"  # which the package has on both sides
        self._novelty = {"ML10": "new tasks", "ML45": "new tasks", "ML25": both}.get(
            benchmark, "new goals"
        )
        require_choice(self.label, "reward_function_version", version, get_args(RewardVersion))
        super().__init__(
            partial(
                MetaWorldTask,
                benchmark,
                split=split,
                goal_seed=goal_seed,
                reward_function_version=version,
            ),
            num_envs=num_envs,
            time_limit=time_limit,
            success="success",
            seed=seed,
            device=device,
            workers=workers,
        )
