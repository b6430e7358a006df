"""Phases of a training run: counting steps, updates that are due, and updates before any step."""

from functools import partial
from typing import Any

from yamame import distributed
from yamame.collectors import Collector
from yamame.runs.run import Run
from yamame.runs.schedules import (
    batch_size,
    begin_learning,
    spent_share,
    steps_of_learning,
    updates_per_step,
)
from yamame.system.messages import print_once, warnings_as_lines
from yamame.training import Learner, Prefetcher

_UPDATES_AT_ONCE = 100  # between two lines of the log, before the first environment step
_UPDATES_BEFORE = 60  # before overfitting is observed for the first time
_UPDATES_BETWEEN, _STEPS_BETWEEN = 10, 2048  # observations; either is enough
_UPDATES_UNOBSERVED = 120  # after which there is a message if nothing could be observed
_FEWEST_HELD_OUT = 2  # trajectories, for an observation


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
    steps_before = steps_of_learning(run)
    own = collector.collect(num_steps)
    elsewhere = run.count(own).num_steps - own.num_steps
    if elsewhere and exploration is not None:
        exploration.step(elsewhere)
    begin_learning(run)
    if run.regulator is not None:
        # Summed up as it changes: what earlier steps have allowed stays allowed.
        new_steps = steps_of_learning(run) - steps_before
        run.progress.updates_allowed += new_steps * updates_per_step(run)


def updates_due(run: Run, source: Any) -> int:
    """Return the number of updates that the steps so far allow and that were not made yet."""
    # Ranks must make the same number of updates, or they would wait for each other forever.
    if distributed.any_rank(len(source) == 0):
        return 0
    schedule = run.cfg.schedule
    if run.regulator is None:
        # Counted from the start of learning, so that a resumed run makes the same updates.
        allowed = int(steps_of_learning(run) * schedule.updates_per_step)
    else:
        allowed = int(run.progress.updates_allowed)
    return max(0, allowed + int(schedule.offline_updates) - run.progress.updates)


def regulate(run: Run, learner: Learner, replay: Any) -> None:
    """Observe overfitting if it is due, and let the regulator move the updates per step.

    The loss is computed on one batch of trajectories that are held out from updates, and on one of
    the others. It is ``loss_critic``, or the sum of all terms of a loss without it.

    Args:
        run: The run; without a regulator nothing is done.
        learner: Its learner.
        replay: Replay buffer of this process, also where batches are mixed with data.
    """
    progress = run.progress
    if run.regulator is None or progress.updates < _UPDATES_BEFORE:
        return
    new_updates = progress.updates - progress.observed_updates
    new_steps = progress.env_steps - progress.observed_steps
    if new_updates < _UPDATES_BETWEEN and new_steps < _STEPS_BETWEEN:
        return
    # All ranks observe, or none does: their losses are averaged.
    if distributed.any_rank(replay.num_held_out < _FEWEST_HELD_OUT):
        online = progress.updates - int(run.cfg.schedule.offline_updates)
        if progress.observed_updates == 0 and online >= _UPDATES_UNOBSERVED:
            _report_unobserved(run, replay)
        return

    progress.observed_updates = progress.updates
    progress.observed_steps = progress.env_steps
    losses = []
    for sample in (replay.sample, replay.sample_held_out):
        # Nothing was fetched in advance: no draw of an update comes before these.
        batch = Prefetcher(partial(sample, batch_size(run)), run.cfg.device).take()
        metrics = learner.evaluate(batch)
        losses.append(float(metrics.get("loss_critic", metrics["loss"])))
    with warnings_as_lines(UserWarning, prints=distributed.is_rank0()):
        run.regulator.observe(*losses)


def _report_unobserved(run: Run, replay: Any) -> None:
    """Print why overfitting was not observed, unless this session or a former one has printed it.

    Too few episodes may have ended. If the buffer has already dropped trajectories, further
    episodes do not help.
    """
    progress = run.progress
    num_appended = getattr(replay, "write_count", 0)  # custom buffers may not count
    is_full = distributed.any_rank(num_appended > len(replay))
    reason = "full" if is_full else "few"
    if progress.unobserved == reason:
        return
    progress.unobserved = reason
    if not distributed.is_rank0():
        return
    if is_full:
        print_once(
            "overfitting cannot be observed, because the replay buffer is full and holds fewer "
            f"than {_FEWEST_HELD_OUT} held-out trajectories: the updates per step stay as they "
            "are; increase replay.capacity or decrease replay.held_out"
        )
    else:
        print_once(
            f"overfitting is not observed yet: {progress.episodes:,} episodes have ended, too few "
            f"for {_FEWEST_HELD_OUT} held-out trajectories; until then, the updates per step stay "
            "as they are; nothing needs to be done"
        )


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
