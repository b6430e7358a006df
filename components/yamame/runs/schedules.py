"""Schedules of a run, by the share of its budget that is spent."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from yamame import distributed
from yamame.cli.jobs import is_part
from yamame.cli.nodes import select
from yamame.evaluation import EvaluationResult
from yamame.exploration import Exploration
from yamame.runs.build import total_updates
from yamame.runs.state import RunState
from yamame.system.messages import print_stderr
from yamame.training.learner import falling_share, learning_rate_share

_FEWEST_TRAJECTORIES = 2
"""Trajectories of a batch, however long they are, for an average over more than one episode."""
LATEST_START = 0.1
"""Share of the budget after which learning starts with fewer episodes than it should have."""

NUM_EVALUATIONS = 8
"""Evaluations over the budget without ``evaluation.interval``, that at its end included."""
STEPS_PER_EVALUATION = 3
"""Steps of training for each step of an evaluation, at least, without ``evaluation.interval``."""
NUM_CHECKPOINTS = 10
"""Checkpoints over the budget without ``checkpoint.interval``."""
_LONGEST_UNSAVED_S = 300.0
"""Seconds after which a checkpoint is written in any case without ``checkpoint.interval``."""


def spent_share(run: RunState) -> float:
    """Return the spent share of the budget, in [0, 1]; call it on all ranks.

    It is that of the limit that is nearest to its end, and never falls unless the budget is raised.
    """
    progress = run.progress
    share = run.budget.fraction(env_steps=progress.env_steps, updates=progress.updates)
    # Clocks differ between ranks, and what they do must not.
    return distributed.broadcast(share) if run.budget.is_timed else share


def learning_began(run: RunState) -> int | None:
    """Return the environment steps from which updates are counted; None before learning begins."""
    schedule = run.cfg.schedule
    if not select(schedule, "learning_starts_episodes"):
        return int(schedule.learning_starts)
    return run.progress.learning_began


def begin_learning(run: RunState) -> None:
    """Let learning begin if enough steps were taken and enough episodes have ended.

    Long episodes would take up most of a short run: after a tenth of the budget a single episode is
    enough.
    """
    progress, schedule = run.progress, run.cfg.schedule
    if learning_began(run) is not None or progress.env_steps < schedule.learning_starts:
        return
    is_enough = progress.episodes >= schedule.learning_starts_episodes
    if is_enough or (progress.episodes > 0 and spent_share(run) >= LATEST_START):
        progress.learning_began = progress.env_steps


def steps_of_learning(run: RunState) -> int:
    """Return the environment steps since learning began."""
    began = learning_began(run)
    return 0 if began is None else max(0, run.progress.env_steps - began)


def updates_per_step(run: RunState) -> float:
    """Return the present number of updates per environment step."""
    full = float(run.cfg.schedule.updates_per_step)
    return full if run.regulator is None else full * float(run.regulator.factor)


def exploration_of(run: RunState) -> Any:
    """Return the exploration of the collector; None if policies explore by themselves."""
    collector = run.components.get("collector")
    if isinstance(collector, distributed.PerRank):
        collector = collector.component
    return getattr(collector, "exploration", None)


def pace_metrics(run: RunState) -> dict[str, float]:
    """Return metrics of schedules, of the regulator and of the curriculum, if there are any."""
    metrics = {}
    learning_rate = run.components.get("schedule")
    if isinstance(learning_rate, LRScheduler) and learning_rate.base_lrs[0] > 0:
        present = float(learning_rate.get_last_lr()[0])
        metrics["train/learning_rate_share"] = present / float(learning_rate.base_lrs[0])
    exploration = exploration_of(run)
    if isinstance(exploration, Exploration):
        metrics["collector/exploration_share"] = 1.0 - float(exploration.progress())
    if run.regulator is not None:
        metrics["train/updates_per_step"] = updates_per_step(run)
        ratio = getattr(run.regulator, "ratio", None)  # custom regulators may lack it
        if ratio is not None:
            metrics["train/overfitting"] = float(ratio)
    if hasattr(run.curriculum, "metrics"):  # custom curricula may lack it
        for name, value in run.curriculum.metrics().items():
            metrics[f"curriculum/{name}"] = float(value)
    return metrics


def batch_size(run: RunState) -> int:
    """Return the number of trajectories in a batch of this process.

    It depends on the counters of all processes, so that all have batches of one size, and a resumed
    run those of one that was never stopped.
    """
    schedule, progress = run.cfg.schedule, run.progress
    size = int(schedule.batch_size)
    most_timesteps = select(schedule, "batch_timesteps")
    if most_timesteps is not None and progress.episodes > 0:
        length = progress.episode_steps / progress.episodes
        window = select(run.cfg, "window.length")
        if window is not None:
            length = min(length, window)
        size = min(size, max(_FEWEST_TRAJECTORIES, round(most_timesteps / length)))
        # A multiple of the number of processes, none of which goes without.
        world_size = distributed.world_size()
        size = max(1, size // world_size) * world_size
    return distributed.shard(size, "schedule.batch_size")


def annealing(run: RunState) -> Callable[[int], float] | None:
    """Return the share of the learning rate by the number of updates made.

    Returns:
        A function; None if the learning rate stays. Call it on all ranks.
    """
    schedule = run.cfg.schedule
    if not select(schedule, "anneal_lr"):
        return None
    start = select(schedule, "anneal_lr_from")
    if start is None:
        return _annealing_of_earlier_versions(run)

    def share(updates: int) -> float:
        return falling_share(_share_after(run, updates), start=start)

    return share


def _share_after(run: RunState, updates: int) -> float:
    """Return the spent share of the budget after a number of updates."""
    env_steps = float(run.progress.env_steps)
    schedule = run.cfg.schedule
    per_step = select(schedule, "updates_per_step")
    if per_step:
        # Updates follow the steps of an iteration, and those of the last iteration have the whole
        # budget spent before them: each stands for the step at which it was due.
        online = updates - schedule.offline_updates
        if select(schedule, "regulator") is not None:
            left = run.progress.updates_allowed - online
            rate = updates_per_step(run)  # a custom regulator may stop updates for a while
            due = env_steps - left / rate if rate > 0 else env_steps
        elif online > 0:
            due = (learning_began(run) or 0) + online / per_step
        else:
            due = 0.0
        env_steps = min(env_steps, max(0.0, due))
    share = run.budget.fraction(env_steps=env_steps, updates=updates)
    return distributed.broadcast(share) if run.budget.is_timed else share


def _annealing_of_earlier_versions(run: RunState) -> Callable[[int], float]:
    """Return the schedule by updates, and by minutes in their second half."""
    total = total_updates(run.cfg)
    warmup = run.cfg.schedule.warmup_updates
    has_minutes = run.budget.minutes is not None

    def share(updates: int) -> float:
        by_updates = learning_rate_share(updates, warmup=warmup, total=total)
        if not has_minutes:
            return by_updates
        time_spent = distributed.broadcast(run.budget.time_spent)
        return min(by_updates, max(0.0, 2.0 * (1.0 - time_spent)))

    return share


def evaluation_is_due(run: RunState) -> bool:
    """Return whether the agent is to be evaluated now; call it on all ranks.

    Without an interval, evaluations are spread evenly over the budget. Their cost is bounded by
    letting none begin before training has taken `STEPS_PER_EVALUATION` times as many steps since
    the last one as that took, and as many times the time if the budget is one of time. Before the
    first, as many times its episodes must have ended.
    """
    progress, settings = run.progress, run.cfg.evaluation
    if settings.interval is not None:
        return bool(progress.step >= progress.evaluated_at + settings.interval)
    share = spent_share(run)
    if not reaches_part(progress.evaluated_share, share, NUM_EVALUATIONS):
        return False
    # Steps alone do not tell the time: ended environments wait for the longest episode.
    if share - progress.evaluated_share < STEPS_PER_EVALUATION * progress.evaluation_share:
        return False
    if progress.unit == "updates":
        return True
    if progress.evaluation_steps is None:
        return bool(progress.episodes >= STEPS_PER_EVALUATION * settings.num_episodes)
    steps = progress.env_steps - progress.evaluated_at
    return steps > STEPS_PER_EVALUATION * progress.evaluation_steps


@contextmanager
def timed_evaluation(run: RunState) -> Iterator[None]:
    """Note the share of the budget that the block takes.

    If ``evaluation.in_budget`` is false, the block takes nothing of the budget. Call it on all
    ranks.
    """
    if run.cfg.evaluation.in_budget:
        before = spent_share(run)
        yield
        run.progress.evaluation_share = spent_share(run) - before
        return
    run.costs.gather()  # so that the seconds of other ranks before the evaluation count
    with run.budget.paused():
        yield
        run.costs.gather()


def count_evaluation(run: RunState, result: EvaluationResult) -> None:
    """Note where an evaluation was made and what it took; call it on all ranks."""
    progress = run.progress
    progress.evaluated_at = progress.step
    if run.cfg.evaluation.interval is None:
        progress.evaluated_share = spent_share(run)
        progress.evaluation_steps = int(result.lengths.sum())


def count_checkpoint(run: RunState) -> None:
    """Note where a checkpoint is written; call it on all ranks."""
    run.progress.saved_at = run.progress.step
    if run.cfg.checkpoint.interval is None:
        run.progress.saved_share = spent_share(run)


def checkpoint_is_due(run: RunState, saved_s: float) -> bool:
    """Return whether a checkpoint is to be written now; call it on all ranks.

    Args:
        run: The run.
        saved_s: Value of ``time.monotonic`` at the last one.
    """
    progress = run.progress
    interval = run.cfg.checkpoint.interval
    if interval is not None:
        return bool(progress.step >= progress.saved_at + interval)
    if reaches_part(progress.saved_share, spent_share(run), NUM_CHECKPOINTS):
        return True
    return distributed.broadcast(time.monotonic() - saved_s >= _LONGEST_UNSAVED_S)


def reaches_part(before: float, now: float, num_parts: int) -> bool:
    """Return whether another of some equal parts was completed, but for the last.

    >>> reaches_part(0.1, 0.2, 8), reaches_part(0.13, 0.2, 8), reaches_part(0.9, 1.0, 8)
    (True, False, False)
    """
    # The end of the budget is evaluated and saved in any case.
    return now < 1.0 and math.floor(now * num_parts) > math.floor(before * num_parts)


def follow_budget(run: RunState) -> None:
    """Let the intervals of a resumed run go on in a budget that was raised."""
    share = spent_share(run)
    run.progress.evaluated_share = min(run.progress.evaluated_share, share)
    run.progress.saved_share = min(run.progress.saved_share, share)


def warn_timed(run: RunState) -> None:
    """Print, for a run that a clock may end, which limits it could be reproduced with."""
    if not run.budget.is_timed or is_part():
        return
    limits = []
    for name in ("minutes", "cpu_s"):
        limit = getattr(run.budget, name)
        if limit is not None:
            limits.append(f"budget.{name}={limit:g}")
    print_stderr(
        f"{' and '.join(limits)}: this run follows a clock and cannot be reproduced exactly; one "
        "with budget.env_steps or budget.updates alone can"
    )
