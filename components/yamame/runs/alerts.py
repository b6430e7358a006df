"""Warnings of a run: work that does not happen, and settings that keep an agent from learning.

Each is one line on the standard error, once per run, with the setting that mends it.
"""

from collections.abc import Mapping

from yamame.cli.nodes import select
from yamame.collectors import Episodes
from yamame.evaluation.bound import declared_limit
from yamame.normalization import LARGEST
from yamame.runs.callbacks import Callback
from yamame.runs.state import RunState
from yamame.system.messages import print_once, print_stderr

_MOST_STEPS = 10_000
"""Environment steps without an end of an episode after which there is a warning."""
_STEPS_EACH = 250
"""Steps per environment before which there is none, though learning should have begun."""
_CUT_EVALUATION = 1000
"""Least steps of an evaluation that is cut, because no episode of training has ended."""
_MOST_CLIPPED = 0.01
"""Share of targets outside the bounds of binned critics that needs no warning."""


class RewardWarning(Callback):
    """Warns once of rewards that the learner ignores."""

    warned = False

    def on_collect(self, run: RunState, episodes: Episodes) -> None:
        """Check the returns."""
        # Negated, because NaN fails every comparison.
        if not self.warned and not (episodes.returns.abs() <= LARGEST).all():
            self.warned = True
            print_stderr(
                f"rewards that are NaN or beyond {LARGEST:g} are not learned from, and some "
                "episodes have such returns"
            )


class EndlessWarning(Callback):
    """Warns once if no episode has ended though learning should begin.

    Only whole episodes are stored, so there is nothing to learn from before.
    """

    steps = 0
    warned = False

    def on_collect(self, run: RunState, episodes: Episodes) -> None:
        """Count the steps until an episode ends."""
        # A resumed run knows outcomes of its former sessions.
        has_ended = len(episodes.lengths) > 0 or run.progress.outcome is not None
        self.steps = 0 if has_ended else self.steps + episodes.num_steps
        num_envs = select(run.cfg, "schedule.num_envs") or 1
        learning_starts = select(run.cfg, "schedule.learning_starts") or 0
        patience = min(_MOST_STEPS, max(learning_starts, _STEPS_EACH * num_envs))

        longest = declared_limit(run.held_out)
        if longest is not None:
            # Its episodes end in time, and a run that is too short for them is reported at its end.
            patience = max(patience, 2 * longest * num_envs)
        if self.steps >= patience and not self.warned:
            self.warned = True
            print_stderr(
                f"no episode has ended in {self.steps} steps of {num_envs} environments: replay "
                "holds whole episodes only, so nothing is learned before; if episodes do not end "
                "by themselves, set env.time_limit=N"
            )


class ClippedTargetsWarning(Callback):
    """Warns once if more than 1 % of the targets lie outside the bounds of binned critics."""

    warned = False

    def on_log(self, run: RunState, metrics: Mapping[str, float], step: int) -> None:
        """Check the share that the loss reports."""
        share = metrics.get("train/clipped_targets", 0.0)  # only binned critics report it
        if share > _MOST_CLIPPED and not self.warned:
            self.warned = True
            returns = run.cfg.agent.returns
            low, high = returns.get("min_return"), returns.get("max_return")
            print_stderr(
                f"{share:.0%} of the critics' targets lie outside of agent.returns.min_return={low}"
                f" and agent.returns.max_return={high} and are clipped: widen these bounds, or "
                "lower agent.loss.reward_multiplier, which rewards are multiplied by"
            )


def steps_of_evaluation(run: RunState) -> int | None:
    """Return the steps after which the episodes of an evaluation are cut; None for no limit.

    Without a limit in the settings or the environment, and as long as no episode of training has
    ended, an evaluation plays as many steps as training has, at least 1,000.
    """
    limit: int | None = run.cfg.evaluation.max_steps
    progress = run.progress
    has_evidence = progress.unit == "env_steps" and progress.env_steps > 0
    if limit is not None or not has_evidence or progress.outcome is not None:
        return limit
    if declared_limit(run.held_out) is not None:
        return None
    print_once(
        "evaluations are cut after as many steps as training has taken in each environment, at "
        f"least {_CUT_EVALUATION}, because evaluation.max_steps is null and no episode of training "
        "has ended: set env.time_limit=N, or evaluation.max_steps=N"
    )
    steps_each = progress.env_steps // (select(run.cfg, "schedule.num_envs") or 1)
    return max(_CUT_EVALUATION, steps_each)
