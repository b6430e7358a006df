"""The acting section of the benchmark: one environment step of many rows, whole and by parts."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

_STEPS = 32
"""Of every row at a time, as many as in the training recipe."""


class Nowhere:
    """A replay buffer that keeps nothing."""

    def extend(self, data: Any) -> None:
        """Takes finished trajectories."""


def acting_parts(
    envs: tuple[Any, Any],
    policy: Any,
    *,
    clock: Any,
    counting_flops: Callable[[], Any],
    rates: tuple[float, float, float],
    settings: dict[str, Any],
) -> Iterator[tuple[str, float, float | None, str]]:
    """From the hundredth step of every row on.

    Args:
        envs: Two environments of the same rows, one of them for the collector.
        policy: What acts.
        clock: Measures CPU or GPU seconds.
        counting_flops: Context that counts floating-point operations.
        rates: Operations per second of products in float32 and in the precision of acting, and bytes copied per second.
        settings: More arguments of the collector.

    Yields:
        Name of a part, seconds per environment step, the least it could take, and a note.
    """
    from yamame.collectors import SyncCollector

    collector = SyncCollector(envs[0], policy, Nowhere(), **settings)
    env, count = envs[1], envs[1].batch_size[0]
    actor, encoder = collector.policy, collector.policy.trajectory_encoder
    collector.collect(count * 100)
    ages: list[float] = []

    def collect() -> None:
        collector.collect(count * _STEPS)
        ages.append(float(encoder._memory["age"].double().mean()) - (_STEPS - 3) / 2)

    whole = clock.time(collect, seconds=2.0, least=5) / (_STEPS * count)
    held = encoder._memory.get("entries", torch.zeros(0, 0, 0, 0))
    read = sum(ages) / len(ages) * held.nbytes / max(1, held.shape[2] * held.shape[-2])
    seen = env.reset()
    features, context, flops = _operations(policy.eval(), seen, counting_flops)
    with torch.no_grad():
        parts = {name: clock.time(part) / count for name, part in _parts(env, actor, seen, features, context)}
    products = flops[0] / count / rates[0], flops[1] / count / rates[1]
    yield from _beside_limits(whole, parts, products, read, rates[2])


def _parts(
    env: Any, actor: Any, seen: Any, features: Any, context: Any
) -> Iterator[tuple[str, Callable[[], None]]]:
    """What one step of all rows consists of."""
    state, encoder, space = [env.reset()], actor.trajectory_encoder, actor.actor.action_space

    def play() -> None:
        state[0] = env.step_and_maybe_reset(state[0].set("action", env.action_spec.rand()))[1]

    def step() -> None:
        encoder.step(features, None, features.new_zeros(len(features)).bool())
        encoder._memory["age"].sub_(1)  # so that every call reads as much

    def decide() -> None:
        space.decode(space.distribution(actor._params(context), None).sample())

    yield "environment", play
    yield "timestep encoder", lambda: actor.timestep_encoder(seen.copy())
    yield "trajectory encoder", step
    yield "head and sampling", decide


def _beside_limits(
    whole: float, parts: dict[str, float], products: tuple[float, float], read: float, copies: float
) -> Iterator[tuple[str, float, float | None, str]]:
    """Every part with the least it could take."""
    reading = read / copies
    note = f"{sum(products) * 1e6:.0f} us of products, {reading * 1e6:.0f} us for {read / 2**10:.0f} KB of memory"
    yield "whole", whole, sum(products) + reading, note
    for name, seconds in parts.items():
        yield name, seconds, products[1] + reading if name == "trajectory encoder" else None, ""
    yield "the rest: recording and assembling", whole - sum(parts.values()), None, ""


@torch.no_grad()
def _operations(
    policy: Any, seen: Any, counting_flops: Callable[[], Any]
) -> tuple[Any, Any, tuple[float, float]]:
    """Features and context of one step, and the operations outside and inside of the trajectory encoder."""
    with counting_flops() as outside:
        features = policy.timestep_encoder(seen.copy())["features"]
        policy._params(features.new_zeros(len(features), policy.trajectory_encoder.out_features))
    with counting_flops() as inside:
        context = policy.trajectory_encoder(seen.copy().set("features", features))["context"]
    return features, context, (outside[0], inside[0])
