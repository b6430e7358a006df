"""TorchRL environment of AnyMDP."""

from functools import partial
from typing import get_args

import torch
from yamame.checks import require, require_choice

from yamame_envs.adapters.env import HostedEnv
from yamame_envs.adapters.task import make_with_tasks
from yamame_envs.adapters.workers import Workers
from yamame_envs.split import HELD_OUT, Split
from yamame_envs.suites.anymdp_task import AnyMDPTask


class AnyMDP(HostedEnv):
    """Random Markov decision process of xenoverse's AnyMDP (NeurIPS 2025), new in every episode.

    ``observation`` is the state, one-hot, and the action one of several. Rewards and terminal
    states must be found by trial. Trials of a task differ in their noise.

    Args:
        num_states: Number of states, at least 8.
        num_actions: Number of actions, at least 2.
        num_tasks: Number of tasks on both sides of ``split``. xenoverse takes 0.1 to 1 s to draw a
            task. Every process caches thousands of them: three tables of S x A x S numbers each.
            None: every episode draws a new one.
        split: Tasks that episodes play: ``all``; ``train``, all but a share that is held out;
            ``test``, that share.
        time_limit: Steps after which an episode is over. The task's own limit, 100 steps or more,
            also applies.
        num_envs: Number of envs N.
        seed: Seed of the tasks of all episodes.
        device: Device of all tensors.
        workers: Worker processes, and the handling of failures.

    Raises:
        ValueError: A number is out of its range.
        ImportError: Xenoverse is not installed.
    """

    _counts_attempts = True

    def __init__(
        self,
        *,
        num_states: int = 16,
        num_actions: int = 5,
        num_tasks: int | None = 1024,
        split: Split = "all",
        time_limit: int = 100,
        num_envs: int = 1,
        seed: int = 0,
        device: str | torch.device = "cpu",
        workers: Workers = Workers(),  # noqa: B008
    ) -> None:
        require(self.label, "num_states", num_states, num_states >= 8, "be at least 8")
        require(self.label, "num_actions", num_actions, num_actions >= 2, "be at least 2")
        require(
            self.label, "num_tasks", num_tasks, num_tasks is None or num_tasks >= 1, "be at least 1"
        )
        require_choice(self.label, "split", split, get_args(Split))
        self._novelty = None if split == "all" else "new tasks"
        make = partial(
            AnyMDPTask, num_states=num_states, num_actions=num_actions, num_tasks=num_tasks
        )
        super().__init__(
            partial(make_with_tasks, make, split=split, held_out=HELD_OUT, owner=self.label),
            num_envs=num_envs,
            time_limit=time_limit,
            seed=seed,
            device=device,
            workers=workers,
        )
