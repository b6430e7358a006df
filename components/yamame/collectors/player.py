"""One process that plays for a `RayCollector`: its own envs, its own policy, whole trajectories
out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import EnvBase

from yamame.collectors.base import Episodes
from yamame.collectors.sync import SyncCollector

Packed = tuple[dict[Any, tuple[np.ndarray, torch.dtype, tuple[int, ...]]], tuple[int, ...]]
"""Bytes, type and shape of every entry, and the batch size."""


@dataclass(frozen=True)
class Job:
    """What one player does."""

    make_env: Callable[..., EnvBase]  # ``(num_envs=..., seed=...) -> environment``
    num_envs: int
    seed: int  # of the environment
    torch_seed: int  # of all other random numbers
    acting: Mapping[str, Any]  # ``greedy`` and ``autocast`` of the player's `SyncCollector`


@dataclass(frozen=True)
class Answer:
    """What one block brought."""

    episodes: Episodes
    trajectories: Packed | None  # ``[E, L]``; None: no episode ended
    open_episodes: int  # unfinished ones, with steps that were taken
    open_steps: int  # their steps
    version: int  # of the weights that it was played with


def pack(data: TensorDictBase) -> Packed:
    """Entries as bytes, which Ray shares between the processes of a machine.

    >>> unpack(pack(TensorDict({"a": {"b": torch.ones(2, 1, dtype=torch.bfloat16)}}, [2])))["a", "b"]
    tensor([[1.],
            [1.]], dtype=torch.bfloat16)
    """
    entries = {}
    for key, value in data.items(True, True):
        as_bytes = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        entries[key] = (as_bytes.numpy(), value.dtype, tuple(value.shape))
    return entries, tuple(data.shape)


def unpack(packed: Packed) -> TensorDict:
    """Undoes `pack`; a copy."""
    entries, batch_size = packed
    values = {
        k: torch.from_numpy(v.copy()).view(dtype).view(shape)
        for k, (v, dtype, shape) in entries.items()
    }
    return TensorDict(values, batch_size)


class Player:
    """Plays a block whenever it is asked to. A Ray actor.

    Args:
        job: What it does.
        parts: The policy and the exploration.
    """

    def __init__(
        self, job: Job, parts: tuple[TensorDictModuleBase, TensorDictModuleBase | None]
    ) -> None:
        self._job, self._parts = job, parts
        self._collector: SyncCollector | None = None
        self._outbox: list[TensorDictBase] = []  # every trajectory of a block, until it is sent
        self._version = self._counted = 0

    def play(self, num_steps: int, version: int, weights: list[Any], counted: int) -> Answer:
        """Plays at least ``num_steps`` steps of all its envs.

        Args:
            num_steps: Environment steps.
            version: Of the weights.
            weights: Ray's reference to them, packed, in a list: they are fetched only where they
                are new.
            counted: Environment steps of all players that were collected when the block was asked
                for.
        """
        if (
            self._collector is None
        ):  # an error here is that of a call, and shown; above the player would die
            self._collector = self._build()
        if version != self._version:
            import ray

            self._collector.update_policy_weights_(unpack(ray.get(weights[0])))
            self._version = version
        exploration = self._collector.exploration
        if exploration is not None and counted > self._counted:  # its schedule counts all steps
            exploration.step(counted - self._counted)
            self._counted = counted
        episodes = self._collector.collect(num_steps)
        self._counted += episodes.num_steps
        trajectories = pack(torch.stack(self._outbox)) if self._outbox else None
        self._outbox.clear()
        assembler = self._collector.assembler
        return Answer(
            episodes, trajectories, assembler.num_open_episodes, assembler.num_open, version
        )

    def _build(self) -> SyncCollector:
        torch.set_num_threads(1)
        torch.manual_seed(self._job.torch_seed)
        env = self._job.make_env(num_envs=self._job.num_envs, seed=self._job.seed)
        device = env.device or torch.device("cpu")
        policy, exploration = self._parts
        exploration = None if exploration is None else exploration.to(device)
        return SyncCollector(
            env, policy.to(device), self._outbox, exploration=exploration, **self._job.acting
        )

    def close(self) -> None:
        """Closes the environments."""
        if self._collector is not None:
            self._collector.shutdown()
