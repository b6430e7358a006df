"""TorchRL environment of POPGym: forty-two small tasks that need memory."""

from functools import partial

import torch
from yamame.checks import check_bounds

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.workers import Workers
from yamame_envs.suites.popgym_task import POPGymTask


class POPGym(HostedEnv):
    """Environment of POPGym (arXiv 2303.01859).

    ``observation`` is a vector: categories are one-hot, several of them concatenated. The time
    limit is the environment's own, the length of its longest episode, and reaching it terminates.

    Args:
        id: Name, for example RepeatPreviousEasy or popgym-RepeatPreviousEasy-v0.
        multi_discrete: Keep actions of several choices (Battleship, MineSweeper). Otherwise they
            become one choice among all combinations.
        num_envs: Number of envs N.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures.

    Raises:
        ValueError: There is no such environment, or a number is out of its range.
        ImportError: If POPGym is not installed.
    """

    @check_bounds
    def __init__(
        self,
        *,
        id: str = "RepeatPreviousEasy",
        multi_discrete: bool = False,
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008
    ) -> None:
        make = partial(POPGymTask, id, multi_discrete=multi_discrete)
        super().__init__(
            make,
            num_envs=num_envs,
            time_limit=make().longest,
            seed=seed,
            device=device,
            workers=workers,
        )
