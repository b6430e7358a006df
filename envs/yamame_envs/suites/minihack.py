"""TorchRL environment of MiniHack."""

from collections.abc import Sequence
from functools import partial

import torch

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.workers import Workers
from yamame_envs.suites.minihack_task import MiniHackTask


class MiniHack(HostedEnv):
    """Level of MiniHack (arXiv 2109.13202).

    Each observed part is a separate entry: glyphs are tokens, letters and colours bytes. An episode
    has success if MiniHack reports it and pays a reward.

    Args:
        id: A registered level, such as ``MiniHack-Memento-Short-F2-v0``.
        observations: Observed parts, by MiniHack's names: ``glyphs_crop``, ``message``,
            ``blstats`` and so on.
        time_limit: Steps after which an episode is over. None: the level's own limit, which also
            applies otherwise.
        num_envs: Number of envs N.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures.

    Raises:
        ValueError: A number is out of its range.
        ImportError: If MiniHack is not installed.
    """

    def __init__(
        self,
        *,
        id: str = "MiniHack-Memento-Short-F2-v0",
        observations: Sequence[str] = ("glyphs_crop", "message"),
        time_limit: int | None = 500,
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008
    ) -> None:
        make = partial(MiniHackTask, id, tuple(observations))
        if time_limit is None:
            example = make()
            time_limit = int(example.get_wrapper_attr("_max_episode_steps"))
            example.close()
        super().__init__(
            make,
            num_envs=num_envs,
            time_limit=time_limit,
            success="success",
            seed=seed,
            device=device,
            workers=workers,
        )
