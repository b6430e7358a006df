"""TorchRL environment of Meta-World's meta-learning benchmarks."""

from functools import partial
from typing import get_args

import torch
from yamame.checks import require, require_choice
from yamame.spaces.arrays import Outside

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.workers import Workers
from yamame_envs.suites.metaworld_task import ATTEMPT, MetaWorldTask, RewardVersion, Split


class MetaWorld(HostedEnv):
    """Attempt at a task of a Meta-World benchmark (arXiv 1910.10897).

    An episode draws a task uniformly, then one of its 50 goals. ``observation`` is Meta-World's
    vector of 39 numbers, in which the last three, the goal, are zero; an action moves the hand and
    the gripper, four numbers in [-1, 1]; the dense reward ``v2`` lies in [0, 10] per step.
    ``success`` belongs to a single step, and does not end the attempt.

    The tasks of ``ML10``, ``ML25`` and ``ML45`` differ between the splits, except basketball, which
    Meta-World has on both sides of ``ML25``. The splits of ``ML1`` differ in their goals.

    Args:
        benchmark: ``ML10``, ``ML25``, ``ML45``, or ``ML1-`` and a task such as ``ML1-reach-v3``.
        split: Tasks and goals that are played: ``train`` or ``test``.
        goal_seed: Seed of the goals in the official benchmark, at least 0.
        reward_function_version: Version of the dense reward: ``v2``, or ``v1`` of the first
            Meta-World, whose scale differs from task to task (Meta-World+). Success is the same.
        time_limit: Steps of the attempt, at most 500.
        num_envs: Number of envs N.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures. A process holds
            an arm of some 20 MB per env, and idle ones: 24, or one per task of the benchmark.
        bounds: Numbers outside of the bounds of their space, ``warn``, ``clip`` or ``raise``, see
            `yamame_envs.HostedEnv`.

    Raises:
        ValueError: There is no such benchmark or split, or a number is out of its range.
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
        bounds: Outside = "warn",
    ) -> None:
        require(self.label, "goal_seed", goal_seed, 0 <= goal_seed < 2**32 - 1, "be in 0..2^32-2")
        require(
            self.label, "time_limit", time_limit, 1 <= time_limit <= ATTEMPT, f"be in 1..{ATTEMPT}"
        )
        version = reward_function_version
        # The package has basketball on both sides.
        both = "new tasks, but for basketball"
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
            bounds=bounds,
        )
