"""Sections of the benchmark: each yields the rows of its part of a training run."""

import copy
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from speed import Clock, Machine, counting_flops
from torchrl.modules import set_recurrent_mode
from yamame import conf_dir
from yamame.cli.nodes import instantiate
from yamame.collectors import SyncCollector
from yamame.execution.precision import Precision, in_precision
from yamame.replay import Relabel, SequencePacking, TrajectoryReplayBuffer, pack
from yamame.runs.build import build_agent, build_env, build_learner, total_updates

SIZES = (
    "env.size=11", "env.num_goals=3", "env.time_limit=250", "timestep_encoder.hidden_size=512",
    "timestep_encoder.out_size=256", "agent.actor.hidden_size=256", "agent.critic.hidden_size=256",
    "schedule.batch_size=24", "logger=none",
)  # fmt: skip
"""Size of the published agent on MazeRunner; not used with an ``experiment=``."""
LAYERS = {
    "transformer": ["encoder.num_layers=3", "encoder.d_model=256", "encoder.sigma_reparam=true"],
    "gru": ["encoder.num_layers=3", "encoder.hidden_size=256"],
}
_REMEMBERED, _STEPS = 100, 32
"""Timesteps of every environment before acting is measured, and timesteps per measurement."""
_STORED, _LONGEST = 256, 251
"""Number of trajectories in the measured replay buffer, and their timesteps."""


@dataclass
class Row:
    """Row of the table: seconds of one ``unit``, and a lower bound for them."""

    section: str
    name: str
    unit: str
    seconds: float
    limit: float | None = None
    note: str = ""


class Subject:
    """Agent, learner and environment, built from overrides as in the training recipe."""

    def __init__(self, overrides: list[str], device: str) -> None:
        kind = next(
            (text.split("=")[1] for text in overrides if text.startswith("encoder=")), "transformer"
        )
        other_env, experiment = (
            any(text.startswith(key) for text in overrides) for key in ("env=", "experiment=")
        )
        sizes = [
            text for text in SIZES if not (other_env and text.startswith("env."))
        ] + LAYERS.get(kind, [])
        sizes = ["logger=none"] if experiment else sizes
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            self.cfg = compose("train", overrides=[f"device={device}", *sizes, *overrides])
        self.device = device
        torch.manual_seed(0)
        self.env = self.make_env(16)
        self.agent = build_agent(self.cfg, self.env)
        self.learner = build_learner(self.cfg, self.agent)

    def make_env(self, num_envs: int) -> Any:
        """Build the environment of the configuration."""
        return build_env(self.cfg, num_envs=num_envs, seed=0)

    def update(self, batch: Any) -> None:
        """Make one gradient step."""
        self.learner.update(batch)

    def autocast(self, precision: Precision) -> torch.autocast:
        """Return the context of an update or of acting in a precision of the configuration."""
        return in_precision(torch.device(self.device), precision)

    def batch(self, size: int, length: int) -> Any:
        """Return sequences of random actions, repeated to the given length."""
        rollout = self.env.rollout(min(length - 1, 64), break_when_any_done=False).exclude(
            "goal_reached"
        )
        packed = pack(rollout)
        sequences = torch.arange(size) % packed.shape[0]
        timesteps = torch.arange(length) % (packed.shape[1] - 1)
        batch = packed[sequences.unsqueeze(-1), timesteps].contiguous()
        first = (torch.arange(length) == 0).expand(size, length).unsqueeze(-1)
        batch["is_init"], batch["mask"] = first.clone(), torch.ones_like(first)
        batch["step_index"] = torch.arange(length).expand(size, length).unsqueeze(-1).clone()
        return batch.to(self.device)


class Nowhere:
    """Replay buffer that stores nothing."""

    def extend(self, data: Any) -> None:
        """Discard finished trajectories."""


def machine_rows(machine: Machine) -> Iterator[Row]:
    """Yield the rates of matrix products and of copies."""
    for dtype in (torch.float32, torch.bfloat16):
        rate, kind = machine.product_rate(dtype), str(dtype).removeprefix("torch.")
        note = f"{rate / 1e9:.0f} GFLOP/s"
        yield Row("machine", f"matrix product, {kind}", "GFLOP", 1e9 / rate, None, note)
    rate = machine.copy_rate()
    yield Row("machine", "copy", "GB", 1e9 / rate, None, f"{rate / 1e9:.1f} GB/s")


def update_rows(
    subject: Subject, clock: Clock, machine: Machine, lengths: list[int]
) -> Iterator[Row]:
    """Yield updates of the configured number of sequences, whole and by parts.

    The limit of an update is its floating-point operations at the rate of matrix products in its
    precision.
    """
    learner, size = subject.learner, subject.cfg.schedule.batch_size
    precision = subject.cfg.schedule.autocast
    with subject.autocast(precision):
        lower = torch.is_autocast_enabled(torch.device(subject.device).type)
    dtype = torch.bfloat16 if lower else torch.float32
    for length in lengths:
        batch = subject.batch(size, length)

        def encode(batch: Any = batch) -> None:
            with subject.autocast(precision), set_recurrent_mode(True), torch.no_grad():
                subject.agent.encoder(batch.copy())

        def loss(batch: Any = batch) -> torch.Tensor:
            with subject.autocast(precision):
                terms = learner.loss(batch)
            return torch.stack(
                [value for name, value in terms.items() if name.startswith("loss_")]
            ).sum()

        subject.update(batch)
        with counting_flops() as flops:
            subject.update(batch)
        rate, label = machine.product_rate(dtype), f"{size} x {length}"
        whole = clock.time(lambda batch=batch: subject.update(batch), seconds=2.0)
        note = f"{flops[0] / 1e9:.1f} GFLOP at {rate / 1e9:.0f} GFLOP/s"
        yield Row("update", f"{label}, whole", "update", whole, flops[0] / rate, note)
        yield Row("update", f"{label}, encoders forward", "update", clock.time(encode))
        forward = clock.time(loss)
        yield Row("update", f"{label}, loss forward, encoders in it", "update", forward)
        both = clock.time(lambda loss=loss: loss().backward())
        yield Row("update", f"{label}, backward", "update", both - forward)
        yield Row(
            "update", f"{label}, the rest: clipping, optimizer, targets", "update", whole - both
        )
        yield packed_row(subject, clock, batch)


def packed_row(subject: Subject, clock: Clock, batch: Any) -> Row:
    """Return an update of the same trajectories packed.

    The first is cut to two timesteps, the last is whole.
    """
    size, length = batch.shape
    mask = torch.arange(length) < torch.linspace(2, length, size).round().unsqueeze(-1)
    packed = SequencePacking()(batch.copy().set("mask", mask.unsqueeze(-1).to(batch.device)))
    name, note = f"{size} of 2 to {length}, packed", f"in {len(packed)} sequences, padded {size}"
    return Row("update", name, "update", clock.time(lambda: subject.update(packed)), None, note)


def acting_rows(
    subject: Subject, clock: Clock, machine: Machine, counts: list[int]
) -> Iterator[Row]:
    """Yield environment steps of the training recipe's collector, from timestep 100 on.

    The limit of a step is the policy's floating-point operations at the rate of matrix products in
    its precision.
    """
    cfg = subject.cfg.collector
    settings = {name: cfg[name] for name in ("autocast", "cuda_graph") if cfg.get(name)}
    precision = settings.get("autocast")
    rate = machine.product_rate(torch.float32 if precision is None else getattr(torch, precision))
    for count in counts:
        collector = SyncCollector(
            subject.make_env(count), subject.agent.policy(), Nowhere(), **settings
        )
        collector.collect(count * _REMEMBERED)
        whole = clock.time(lambda c=collector, n=count: c.collect(n * _STEPS), seconds=2.0, least=5)
        deciding, flops = policy_cost(subject, clock, count, precision)
        parts = {
            "whole": (whole / _STEPS, flops / rate),
            "environment": (environment_cost(subject.make_env(count), clock), None),
            "policy": (deciding, flops / rate),
        }
        rest = whole / _STEPS - parts["environment"][0] - deciding
        parts["the rest: recording and assembling"] = (rest, None)
        for name, (seconds, limit) in parts.items():
            least = None if limit is None else limit / count
            yield Row("acting", f"{count} envs, {name}", "environment step", seconds / count, least)


def environment_cost(env: Any, clock: Clock) -> float:
    """Return the seconds of a step of all environments with random actions."""
    current = [env.reset()]

    def play() -> None:
        current[0] = env.step_and_maybe_reset(current[0].set("action", env.action_spec.rand()))[1]

    return clock.time(play)


@torch.no_grad()
def policy_cost(
    subject: Subject, clock: Clock, count: int, precision: str | None
) -> tuple[float, float]:
    """Return seconds and operations of a decision for all environments, as in the collector."""
    policy = copy.deepcopy(subject.agent.policy()).requires_grad_(False).eval()
    if hasattr(policy, "prepare_to_act"):
        policy.prepare_to_act()
    seen, times = subject.make_env(count).reset(), []
    with subject.autocast(precision):
        for step in range(_REMEMBERED + _STEPS):
            taken = clock.once(lambda: policy(seen.copy()))
            times += [taken] if step >= _REMEMBERED else []
            seen["is_init"] = torch.zeros_like(seen["is_init"])
            seen["step_index"] = seen["step_index"] + 1
        with counting_flops() as flops:
            policy(seen.copy())
    return median(times), flops[0]


def sampling_rows(subject: Subject, clock: Clock, machine: Machine) -> Iterator[Row]:
    """Yield appending, reading and relabelling of whole trajectories.

    The limit is a copy of their bytes.
    """
    size, rate = subject.cfg.schedule.batch_size, machine.copy_rate()
    data = subject.batch(_STORED, _LONGEST).to("cpu")
    read = sum(value.nbytes for value in data[:size].values(True, True)) / rate
    relabelled = {"read and relabelled": Relabel("some")} if "achieved" in data.keys() else {}
    for name, transform in {"read": None, **relabelled}.items():
        with tempfile.TemporaryDirectory() as folder:
            settings = {
                "path": Path(folder) / "replay",
                "capacity": 8 * data.numel(),
                "batch_size": size,
            }
            buffer = TrajectoryReplayBuffer(**settings, transform=transform)
            buffer.extend(data)
            if transform is None:
                append = clock.time(lambda buffer=buffer: buffer.extend(data), least=5)
                label = f"{_STORED} x {_LONGEST} appended"
                yield Row("sampling", label, "call", append, read * _STORED / size)
            sample = clock.time(buffer.sample, least=20)
            yield Row("sampling", f"{size} x {_LONGEST} {name}", "batch", sample, read)


def fit_rows(subject: Subject, clock: Clock) -> Iterator[Row]:
    """Yield one environment step, one update, and all of a budget of environment steps.

    Raises:
        ValueError: If the collector is another than `SyncCollector`, which alone can be measured by
            itself.
    """
    cfg = subject.cfg
    length = int(subject.env.observation_spec["step_index"].space.high.max()) + 1
    num_envs, steps, updates = cfg.schedule.num_envs, cfg.budget.env_steps, total_updates(cfg)
    env = subject.make_env(num_envs)
    collector = instantiate(cfg.collector, env=env, policy=subject.agent.policy(), replay=Nowhere())
    if not isinstance(collector, SyncCollector):
        raise ValueError(f"fit: collector must be sync, got {type(collector).__name__}")
    collector.collect(num_envs * length // 2)
    acting = clock.time(lambda: collector.collect(num_envs * 10), seconds=2.0, least=5) / (
        10 * num_envs
    )
    batch = subject.batch(cfg.schedule.batch_size, length)
    with counting_flops() as flops:
        subject.update(batch)
    learning = clock.time(lambda: subject.update(batch), seconds=2.0)
    note = f"{1 / acting:,.0f} a second"
    yield Row("fit", f"{num_envs} envs", "environment step", acting, None, note)
    size = (
        f"{subject.agent.num_parameters() / 1e6:.1f}M parameters, "
        f"{cfg.schedule.batch_size} x {length}"
    )
    note = f"{1 / learning:.1f} a second, {flops[0] / 1e9:.0f} GFLOP each"
    yield Row("fit", size, "update", learning, None, note)
    if steps is None:  # a clock ends the run
        return
    total = steps * acting + updates * learning
    note = f"{total / 60:.0f} minutes, without evaluations"
    yield Row("fit", f"{steps:,} steps, {updates:,} updates", "run", total, None, note)


def memory_rows(child: Callable[..., Any], lengths: list[int]) -> Iterator[Row]:
    """Yield the peak memory of an update of one sequence, each measured in a new process."""
    for length in lengths:
        megabytes, seconds = child("--peak", str(length))
        note = f"{megabytes:.0f} MB beyond the agent itself"
        yield Row("memory", f"1 x {length}", "update", seconds, None, note)


def peak(subject: Subject, length: int) -> list[float]:
    """Return the megabytes that one update adds to those of the process, and its seconds."""
    subject.update(subject.batch(1, 16))
    batch = subject.batch(1, length)
    before, start = used(subject.device), time.process_time()
    subject.update(batch)
    return [(used(subject.device) - before) / 2**20, time.process_time() - start]


def used(device: str) -> float:
    """Return the peak memory of this process so far, in bytes."""
    if device.startswith("cuda"):
        return float(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
