"""Ray actor of a `RayCollector`: its own envs and its own policy, which returns trajectories."""

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
"""Bytes, dtype and shape of every entry, and the batch size."""


@dataclass(frozen=True)
class WorkerConfig:
    """Configuration of one worker.

    Args:
        make_env: ``(num_envs=..., seed=...) -> environment``.
        num_envs: Number of its envs.
        seed: Seed of the environment.
        torch_seed: Seed of all other random numbers.
        acting: ``greedy`` and ``autocast`` of the worker's `SyncCollector`.
    """

    make_env: Callable[..., EnvBase]
    num_envs: int
    seed: int
    torch_seed: int
    acting: Mapping[str, Any]


@dataclass(frozen=True)
class BlockResult:
    """Result of one block of steps.

    Attributes:
        episodes: Episodes that ended.
        trajectories: Their trajectories ``[E, L]``; None if no episode ended.
        num_open_episodes: Unfinished episodes with at least one step.
        num_open_steps: Steps of unfinished episodes.
        version: Version of the weights that played the block.
    """

    episodes: Episodes
    trajectories: Packed | None
    num_open_episodes: int
    num_open_steps: int
    version: int


def pack(data: TensorDictBase) -> Packed:
    """Return entries as bytes, which Ray shares between the processes of a machine.

    >>> data = TensorDict({"a": {"b": torch.ones(2, 1, dtype=torch.bfloat16)}}, [2])
    >>> unpack(pack(data))["a", "b"]
    tensor([[1.],
            [1.]], dtype=torch.bfloat16)
    """
    entries = {}
    for key, value in data.items(True, True):
        flat = value.detach().cpu().contiguous().reshape(-1)
        # NumPy has no bfloat16.
        as_bytes = flat.view(torch.uint8).numpy()
        entries[key] = (as_bytes, value.dtype, tuple(value.shape))
    return entries, tuple(data.shape)


def unpack(packed: Packed) -> TensorDict:
    """Return a copy of the data of `pack`."""
    entries, batch_size = packed
    values = {}
    for key, (as_bytes, dtype, shape) in entries.items():
        # Memory that Ray shares is read-only.
        flat = torch.from_numpy(as_bytes.copy())
        values[key] = flat.view(dtype).view(shape)
    return TensorDict(values, batch_size)


class RolloutWorker:
    """Plays a block of steps on request. A Ray actor.

    Args:
        config: Environment, seeds and settings.
        modules: The policy, and the exploration or None.
    """

    def __init__(
        self,
        config: WorkerConfig,
        modules: tuple[TensorDictModuleBase, TensorDictModuleBase | None],
    ) -> None:
        self._config = config
        self._modules = modules
        self._collector: SyncCollector | None = None
        self._outbox: list[TensorDictBase] = []  # trajectories of the present block
        self._version = 0
        self._num_steps_counted = 0

    def play(
        self,
        num_steps: int,
        version: int,
        weights: list[Any],
        num_steps_before: int,
        spent: float | None = None,
    ) -> BlockResult:
        """Play at least ``num_steps`` steps of all its envs.

        Args:
            num_steps: Environment steps.
            version: Version of the weights.
            weights: Ray's reference to the packed weights, in a list: Ray would fetch a plain
                argument even if the weights are not new.
            num_steps_before: Environment steps of all workers that had been collected when the
                block was requested.
            spent: Share of the budget that was spent then; None without an exploration that has it.

        Raises:
            UserCodeError: User code has raised an error, of a class that the learner may not know.
        """
        from yamame.system.user_code import user_code  # only actors need it

        with user_code():
            return self._play(num_steps, version, weights, num_steps_before, spent)

    def _play(
        self,
        num_steps: int,
        version: int,
        weights: list[Any],
        num_steps_before: int,
        spent: float | None,
    ) -> BlockResult:
        # Not in the constructor: an error there would kill the worker, an error of a call is
        # reported.
        if self._collector is None:
            self._collector = self._build()
        collector = self._collector
        if version != self._version:
            import ray

            collector.update_policy_weights_(unpack(ray.get(weights[0])))
            self._version = version

        exploration = collector.exploration
        # The schedule counts the steps of all workers.
        if exploration is not None and num_steps_before > self._num_steps_counted:
            exploration.step(num_steps_before - self._num_steps_counted)
            self._num_steps_counted = num_steps_before
        set_spent = getattr(exploration, "set_spent", None)
        if set_spent is not None and spent is not None:
            set_spent(spent)
        episodes = collector.collect(num_steps)
        self._num_steps_counted += episodes.num_steps

        trajectories = None
        if self._outbox:
            trajectories = pack(torch.stack(self._outbox))
            self._outbox.clear()
        return BlockResult(
            episodes=episodes,
            trajectories=trajectories,
            num_open_episodes=collector.assembler.num_open_episodes,
            num_open_steps=collector.assembler.num_open,
            version=version,
        )

    def _build(self) -> SyncCollector:
        # Parallelism comes from the number of workers.
        torch.set_num_threads(1)
        torch.manual_seed(self._config.torch_seed)
        env = self._config.make_env(num_envs=self._config.num_envs, seed=self._config.seed)
        device = env.device or torch.device("cpu")
        policy, exploration = self._modules
        if exploration is not None:
            exploration = exploration.to(device)
        return SyncCollector(
            env,
            policy.to(device),
            self._outbox,
            exploration=exploration,
            **self._config.acting,
        )

    def close(self) -> None:
        """Close the environments."""
        if self._collector is not None:
            self._collector.shutdown()
