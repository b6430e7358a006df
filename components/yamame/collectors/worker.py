"""One process that plays for an `AsyncCollector`: its own rows, its own policy, whole trajectories out."""

import io
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.envs import EnvBase

from yamame.collectors.base import Episodes
from yamame.collectors.player import Player

_PATIENCE = 1.0
"""Seconds after which a waiting process looks whether the other one still lives."""


@dataclass
class Channel:
    """What all processes share.

    Attributes:
        weights: Entries of the policy's ``state_dict``, in shared memory.
        lock: Held while weights are read or written.
        version: How often weights were written.
        num_steps: Environment steps taken by all workers.
        stop: Set when workers shall end.
        results: Encoded `Message` of every block, of all workers.
    """

    weights: dict[str, Tensor]
    lock: Any
    version: Any
    num_steps: Any
    stop: Any
    results: Any


@dataclass(frozen=True)
class Job:
    """What one worker does.

    Attributes:
        index: Number of the worker.
        make_env: ``(num_envs=..., seed=...) -> environment``.
        num_envs: Its rows.
        seed: Of its environment.
        torch_seed: Of its random numbers.
        parts: The policy and the exploration, encoded.
        block_steps: Steps of every row between two messages.
        greedy: As for `Player`.
        autocast: As for `Player`.
        compile_policy: As for `Player`.
    """

    index: int
    make_env: Callable[..., EnvBase]
    num_envs: int
    seed: int
    torch_seed: int
    parts: bytes
    block_steps: int
    greedy: bool
    autocast: Literal["bfloat16"] | None
    compile_policy: bool


@dataclass(frozen=True)
class Message:
    """What one block brought: its episodes, their trajectories, and how many steps are in unfinished ones."""

    worker: int
    episodes: Episodes
    entries: dict[str, Any] | None
    num_open: int
    version: int
    error: str | None = None

    @property
    def trajectories(self) -> TensorDictBase | None:
        """``[E, L]``, if any episode ended."""
        if self.entries is None:
            return None
        return TensorDict(self.entries, self.entries["mask"].shape[:2])


def encode(value: Any) -> bytes:
    """Bytes that hold their tensors by value: no file handle and no shared memory outlives them."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def decode(data: bytes) -> Any:
    """Undoes `encode`; only for bytes of our own processes."""
    return torch.load(io.BytesIO(data), weights_only=False)


def work(job: Job, channel: Channel, tokens: Any) -> None:
    """Plays one block for every token until told to stop, or until the process that asked is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    torch.set_num_threads(1)
    torch.manual_seed(job.torch_seed)
    player = None
    try:
        env = job.make_env(num_envs=job.num_envs, seed=job.seed)
        policy, exploration = decode(job.parts)
        device = env.device or torch.device("cpu")
        player = Player(
            env,
            policy.to(device),
            exploration=None if exploration is None else exploration.to(device),
            owner="AsyncCollector",
            greedy=job.greedy,
            autocast=job.autocast,
            compile_policy=job.compile_policy,
        )
        _play(player, job, channel, tokens)
        channel.results.cancel_join_thread()
    except BaseException:
        failed = Message(job.index, Episodes(0, torch.zeros(0), torch.zeros(0).long(), None), None, 0, 0)
        channel.results.put(encode(_with_error(failed, traceback.format_exc())))
    finally:
        if player is not None:
            player.close()


def _with_error(message: Message, error: str) -> Message:
    return Message(
        message.worker, message.episodes, message.entries, message.num_open, message.version, error
    )


def _play(player: Player, job: Job, channel: Channel, tokens: Any) -> None:
    version, counted = -1, 0
    while not channel.stop.is_set():
        if not tokens.acquire(timeout=_PATIENCE):
            parent = parent_process()
            if parent is None or not parent.is_alive():
                return
            continue
        if channel.stop.is_set():
            return
        version = _follow(player, channel, version)
        counted = _count(player.exploration, channel, counted)
        episodes, finished = player.play(job.block_steps * job.num_envs)
        with channel.num_steps.get_lock():
            channel.num_steps.value += episodes.num_steps
        entries = None if finished is None else finished.cpu().to_dict()
        num_open = player.assembler.num_open
        channel.results.put(encode(Message(job.index, episodes, entries, num_open, version)))


def _follow(player: Player, channel: Channel, version: int) -> int:
    """Takes over the weights if there are newer ones; returns their version."""
    if channel.version.value == version:
        return version
    with channel.lock:
        player.load_policy_state_dict(channel.weights)
        version = channel.version.value
    return version


def _count(exploration: TensorDictModuleBase | None, channel: Channel, counted: int) -> int:
    """Tells the exploration of the steps that all workers took meanwhile; returns how many it knows of."""
    total = channel.num_steps.value
    if exploration is not None and total > counted:
        exploration.step(total - counted)
    return int(total)
