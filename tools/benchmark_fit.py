"""The fit section of the benchmark: how long a whole run of the configured budget would take."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from benchmark_acting import Nowhere


def fit_parts(subject: Any, clock: Any) -> Iterator[tuple[str, str, float, None, str]]:
    """One environment step and one update of the configuration, and all of them that the budget allows.

    Args:
        subject: Agent, learner and environment.
        clock: Measures CPU or GPU seconds.

    Yields:
        Name, unit, seconds of one unit, no limit, and a note.
    """
    from yamame.collectors import SyncCollector
    from yamame.runs import NonFiniteGuard
    from yamame.runs.build import total_updates
    from yamame.runs.hydra import instantiate

    cfg, learner = subject.cfg, subject.learner
    length = int(subject.env.observation_spec["step_index"].space.high.max()) + 1
    rows, steps, updates = cfg.schedule.num_envs, cfg.budget.env_steps, total_updates(cfg)
    collector = instantiate(
        cfg.collector, env=subject.make_env(rows), policy=subject.agent.policy(), replay=Nowhere()
    )
    assert isinstance(collector, SyncCollector), "collector=sync is what can be measured by itself"
    collector.collect(rows * length // 2)
    acting = clock.time(lambda: collector.collect(rows * 10), seconds=2.0, least=5) / (10 * rows)
    batch, guard = subject.batch(cfg.schedule.batch_size, length), NonFiniteGuard(Path(mkdtemp()))
    with subject.counting_flops() as flops:
        learner.update(batch, guard, step=0, seed=0)
    learning = clock.time(lambda: learner.update(batch, guard, step=0, seed=0), seconds=2.0)
    size = f"{subject.agent.num_parameters() / 1e6:.1f}M parameters, {cfg.schedule.batch_size} x {length}"
    yield f"{rows} rows", "environment step", acting, None, f"{1 / acting:,.0f} a second"
    yield size, "update", learning, None, f"{1 / learning:.1f} a second, {flops[0] / 1e9:.0f} GFLOP each"
    total = steps * acting + updates * learning
    yield (
        f"{steps:,} steps, {updates:,} updates",
        "run",
        total,
        None,
        f"{total / 60:.0f} minutes, without evaluations",
    )
