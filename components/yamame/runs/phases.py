"""Phases of a training run: counting what was collected, and updates from data before the first
step.
"""

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
    """Return the number of updates that the steps collected so far allow and that were not made
    yet.
    """
    if distributed.any_rank(len(source) == 0):
        return 0
    schedule = run.cfg.schedule
    beyond = run.progress.env_steps - schedule.learning_starts
    return max(
        0, int(beyond * schedule.updates_per_step) + schedule.offline_updates - run.progress.updates
    )


def learn_offline(run: Run, learner: Learner, batches: Prefetcher) -> None:
    """Make ``schedule.offline_updates`` updates before the first environment step, and evaluate the
    agent.
    """
    offline = run.cfg.schedule.offline_updates
    while run.progress.updates < offline and not run.ended():
        due = min(_UPDATES_AT_ONCE, offline - run.progress.updates)
        for batch, meanwhile in batches.up_to(due, ends=run.is_last):
            run.learned(learner.update(batch, meanwhile=meanwhile))
        # Under names of their own, for their axis is updates.
        metrics = {
            f"offline/{key.removeprefix('train/')}": value for key, value in run.metrics().items()
        }
        run.log(metrics, step=run.progress.updates)

    if offline and not run.progress.curve:
        run.progress.evaluated_at = -run.cfg.evaluation.interval  # an evaluation is due now
        run.evaluate_and_save()
