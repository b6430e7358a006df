"""Phases of a training run: counting steps, updates that are due, and updates before any step."""

from typing import Any

from yamame import distributed
from yamame.collectors import Collector
from yamame.runs.run import Run
from yamame.runs.schedules import begin_learning, learning_began, spent_share
from yamame.training import Learner, Prefetcher

_UPDATES_AT_ONCE = 100  # between two lines of the log, before the first environment step


def collect(run: Run, collector: Collector, num_steps: int) -> None:
    """Collect steps in this process, and count those of all processes.

    Args:
        run: The run.
        collector: Its exploration follows the spent share of the budget, or the steps of all
            processes, of which it counts its own.
        num_steps: Least number of environment steps of this process.
    """
    exploration = getattr(collector, "exploration", None)
    set_spent = getattr(exploration, "set_spent", None)
    if set_spent is not None:
        set_spent(spent_share(run))
    own = collector.collect(num_steps)
    elsewhere = run.count(own).num_steps - own.num_steps
    if elsewhere and exploration is not None:
        exploration.step(elsewhere)
    begin_learning(run)


def updates_due(run: Run, source: Any) -> int:
    """Return the number of updates that the steps so far allow and that were not made yet."""
    # Ranks must make the same number of updates, or they would wait for each other forever.
    if distributed.any_rank(len(source) == 0):
        return 0
    schedule = run.cfg.schedule
    began = learning_began(run)
    steps = 0 if began is None else run.progress.env_steps - began
    # Counted from the start of learning, so that a resumed run makes the same updates.
    allowed = int(steps * schedule.updates_per_step) + schedule.offline_updates
    return max(0, allowed - run.progress.updates)


def learn_offline(run: Run, learner: Learner, batches: Prefetcher) -> None:
    """Make ``schedule.offline_updates`` updates before the first step, and evaluate the agent."""
    offline = run.cfg.schedule.offline_updates
    while run.progress.updates < offline and not run.ended():
        due = min(_UPDATES_AT_ONCE, offline - run.progress.updates)
        for batch, meanwhile in batches.up_to(due, ends=run.is_last):
            run.learned(learner.update(batch, meanwhile=meanwhile))
        # Their axis is updates, that of the metrics under train/ is environment steps.
        metrics = {}
        for key, value in run.metrics().items():
            metrics[f"offline/{key.removeprefix('train/')}"] = value
        run.log(metrics, step=run.progress.updates)

    if offline and not run.progress.curve:
        run.progress.evaluating = True  # due now, whatever the interval is
        run.evaluate_and_save()
