"""TorchRL environment of Half-Cheetah-Vel."""

from functools import partial

import torch
from yamame.checks import require
from yamame.spaces.arrays import Outside

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.workers import Workers
from yamame_envs.suites.half_cheetah_task import HalfCheetahVelTask


class HalfCheetahVel(HostedEnv):
    """HalfCheetah that runs at a hidden velocity, in one long attempt.

    Observations are the 17 numbers of HalfCheetah, actions are six torques in [-1, 1]. The reward
    of a step is ``-|velocity - target| - 0.05 |action|^2``; only the reward depends on the target.
    Standing still costs the target velocity per step.

    Args:
        max_velocity: Targets are uniform in [0, max_velocity], metres per second; positive.
        time_limit: Steps of an episode.
        num_envs: Number of envs N.
        seed: Names the tasks of all episodes: their targets and the postures they begin with.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures.
        bounds: Numbers outside of the bounds of their space, ``warn``, ``clip`` or ``raise``, see
            `yamame_envs.HostedEnv`.

    Raises:
        ValueError: A number is out of its range.
        ImportError: If MuJoCo is not installed.
    """

    def __init__(
        self,
        *,
        max_velocity: float = 3.0,
        time_limit: int = 1000,
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008
        bounds: Outside = "warn",
    ) -> None:
        require(
            self.label,
            "max_velocity",
            max_velocity,
            0 < max_velocity < float("inf"),
            "be positive and finite",
        )
        super().__init__(
            partial(HalfCheetahVelTask, max_velocity=max_velocity),
            num_envs=num_envs,
            time_limit=time_limit,
            seed=seed,
            device=device,
            workers=workers,
            bounds=bounds,
        )
