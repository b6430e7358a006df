"""Schedules of a run, by the share of its budget that is spent."""

from collections.abc import Callable

from yamame import distributed
from yamame.cli.jobs import is_part
from yamame.cli.nodes import select
from yamame.runs.build import total_updates
from yamame.runs.state import RunState
from yamame.system.messages import print_stderr
from yamame.training.learner import falling_share, learning_rate_share

_LATEST_START = 0.1
"""Share of the budget after which learning starts with fewer episodes than it should have."""


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
    if is_enough or (progress.episodes > 0 and spent_share(run) >= _LATEST_START):
        progress.learning_began = progress.env_steps


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
    per_step = select(run.cfg.schedule, "updates_per_step")
    if per_step:
        # Updates follow the steps of an iteration, and those of the last iteration have the whole
        # budget spent before them: each stands for the step at which it was due.
        online = updates - run.cfg.schedule.offline_updates
        due = (learning_began(run) or 0) + online / per_step if online > 0 else 0.0
        env_steps = min(env_steps, due)
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
