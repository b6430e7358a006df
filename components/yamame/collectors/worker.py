"""One process that plays for an `AsyncCollector`: its own envs, its own policy, whole trajectories out."""

import io
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from yamame.collectors.base import Episodes
from yamame.collectors.sync import SyncCollector

_PATIENCE = 1.0
"""Seconds after which a waiting worker checks whether the learner's process is still alive."""


@dataclass(frozen=True)
class Channel:
    """What all processes share."""

    weights: TensorDictBase  # ``TensorDict.from_module(policy).data``, in shared memory
    lock: Any  # held while weights are read or written
    version: Any  # how often weights were written
    num_steps: Any  # environment steps taken by all workers
    stop: Any  # set when workers shall end
    results: Any  # encoded `Message` of every block, or `Failure`, of all workers


@dataclass(frozen=True)
class Job:
    """What one worker does."""

    index: int
    make_env: Callable[..., EnvBase]  # ``(num_envs=..., seed=...) -> environment``
    num_envs: int
    seed: int  # of the environment
    torch_seed: int  # of all other random numbers
    parts: bytes  # the policy and the exploration, encoded
    block_steps: int  # steps of every env between two messages
    acting: Mapping[str, Any]  # ``greedy`` and ``autocast`` of the worker's `SyncCollector`


@dataclass(frozen=True)
class Message:
    """What one block brought: its episodes and their trajectories ``[E, L]``, and the steps of unfinished episodes."""

    worker: int
    episodes: Episodes
    trajectories: TensorDictBase | None
    num_open: int


@dataclass(frozen=True)
class Failure:
    """Why a worker ended: the text of its error."""

    worker: int
    error: str


def encode(value: Any) -> bytes:
    """Bytes that hold their tensors by value: no file handle and no shared memory outlives them."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def decode(data: bytes) -> Any:
    """Undoes `encode`; only for bytes of our own processes."""
    return torch.load(io.BytesIO(data), weights_only=False)


def work(job: Job, channel: Channel, tokens: Any) -> None:
    """Plays one block for every token until `Channel.stop` is set, or until the process that started it is gone."""
    torch.set_num_threads(1)
    torch.manual_seed(job.torch_seed)
    collector = None
    try:
        env = job.make_env(num_envs=job.num_envs, seed=job.seed)
        device = env.device or torch.device("cpu")
        policy, exploration = decode(job.parts)
        exploration = None if exploration is None else exploration.to(device)
        outbox: list[TensorDictBase] = []  # every trajectory of a block, until it is sent
        collector = SyncCollector(env, policy.to(device), outbox, exploration=exploration, **job.acting)
        _play(collector, outbox, job, channel, tokens)
        channel.results.cancel_join_thread()
    except BaseException:
        channel.results.put(encode(Failure(job.index, traceback.format_exc())))
    finally:
        if collector is not None:
            collector.shutdown()


def _play(
    collector: SyncCollector, outbox: list[TensorDictBase], job: Job, channel: Channel, tokens: Any
) -> None:
    version = counted = 0
    while not channel.stop.is_set():
        if not tokens.acquire(timeout=_PATIENCE):
            parent = parent_process()
            if parent is None or not parent.is_alive():
                return
            continue
        if channel.stop.is_set():
            return
        if channel.version.value != version:
            with channel.lock:
                collector.update_policy_weights_(channel.weights)
                version = channel.version.value
        if collector.exploration is not None:  # its schedule counts the steps of all workers
            others = channel.num_steps.value - counted
            collector.exploration.step(others)
            counted += others
        episodes = collector.collect(job.block_steps * job.num_envs)
        counted += episodes.num_steps
        with channel.num_steps.get_lock():
            channel.num_steps.value += episodes.num_steps
        trajectories = torch.stack(outbox).cpu() if outbox else None
        outbox.clear()
        message = Message(job.index, episodes, trajectories, collector.assembler.num_open)
        channel.results.put(encode(message))
