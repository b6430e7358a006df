"""TorchRL environment of Memory Gym."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from yamame.checks import require_choice

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.workers import Workers
from yamame_envs.suites.memory_gym_task import MemoryGymTask, names


class MemoryGym(HostedEnv):
    """Environment of Memory Gym (arXiv 2309.17207).

    Observations are pixels ``[84, 84, 3]``, in MortarMayhemB with the commands as numbers. An
    episode has success if all of it was done right, also its end. Endless environments have no
    success and no limit.

    Args:
        id: ``MortarMayhem-Grid``, ``MysteryPath``, ``SearingSpotlights``, ``Endless-MortarMayhem``
            and so on.
        options: Options of the reset, such as ``{"command_count": [3]}``.
        time_limit: Steps after which an episode is over. None: the environment's own limit, if
            any.
        num_envs: Number of envs N.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures.

    Raises:
        ValueError: There is no such environment, or a number is out of its range.
        ImportError: If Memory Gym is not installed.
    """

    _generic = True

    def __init__(
        self,
        *,
        id: str = "MortarMayhem-Grid",
        options: Mapping[str, Any] = MappingProxyType({}),
        time_limit: int | None = None,
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008
    ) -> None:
        require_choice(self.label, "id", id, names())
        make = partial(MemoryGymTask, id, options)
        if time_limit is None:
            example = make()
            example.reset(seed=0)
            time_limit = max(example.get_wrapper_attr("max_episode_steps"), 0) or None
        super().__init__(
            make,
            num_envs=num_envs,
            time_limit=time_limit,
            success=None if id.startswith("Endless") else "success",
            seed=seed,
            device=device,
            workers=workers,
        )
