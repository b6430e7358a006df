"""Phases of a training run: counting steps, updates that are due, and updates before any step."""

from typing import Any

from yamame import distributed
from yamame.collectors import Collector, Episodes
from yamame.runs.run import Run
from yamame.training import Learner, Prefetcher

_UPDATES_AT_ONCE = 100  # between two lines of the log, before the first environment step


def count_episodes(run: Run, collector: Collector, own: Episodes) -> None:
    """Count the environment steps and episodes of all processes.

    Args:
        run: The run.
        collector: Its exploration follows a schedule over the steps of all processes, and has
            counted its own.
        own: Result of this process's last `collect`.
    """
    elsewhere = run.count(own).num_steps - own.num_steps
    exploration = getattr(collector, "exploration", None)
    if elsewhere and exploration is not None:
        exploration.step(elsewhere)


def updates_due(run: Run, source: Any) -> int:
    """Return the number of updates that the steps so far allow and that were not made yet."""
    # Ranks must make the same number of updates, or they would wait for each other forever.
    if distributed.any_rank(len(source) == 0):
        return 0
    schedule = run.cfg.schedule
    steps = run.progress.env_steps - schedule.learning_starts
    # Counted from the start of the run, so that a resumed run makes the same updates.
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
        run.progress.evaluated_at = -run.cfg.evaluation.interval  # an evaluation is due now
        run.evaluate_and_save()
