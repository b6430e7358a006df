"""Advice at the end of a run whose agent has hardly learned: findings, and settings to change.

A run without updates, one that ended before exploration had annealed, and one whose score is not
above that of random actions look like any other in their tables.
"""

import contextlib
import time

from tensordict import TensorDictBase

from yamame import distributed
from yamame.cli.job_table import PAGE
from yamame.cli.jobs import is_part, note_hardly_learned
from yamame.cli.nodes import select
from yamame.evaluation import EvaluationResult
from yamame.evaluation.bound import declared_limit
from yamame.runs.alerts import steps_of_evaluation
from yamame.runs.held_out import play_held_out
from yamame.runs.results import HARDLY_LEARNED, ended_by
from yamame.runs.schedules import exploration_of
from yamame.runs.state import RunState

_MOST_SECONDS = 3.0
"""Time that an evaluation with random actions may take in every run."""
_MOST_SHARE = 0.03
"""Share of the time of a run that it may take, if that is longer."""


def advice(run: RunState, result: EvaluationResult) -> str | None:
    """Return advice at the end of a run; None if there is none, or in a part of a larger recipe.

    Args:
        run: The run, after its last evaluation.
        result: Result of that evaluation.
    """
    if is_part() or not run.advises:
        return None
    findings = _findings(run, result)
    if not findings:
        return None
    run.extra[HARDLY_LEARNED] = True
    note_hardly_learned()
    lines = [f"{run.name} has hardly learned:"]
    for finding in findings:
        lines.append(f"  - {finding}")
    lines.append(f"  causes and cures: {PAGE}")
    return "\n".join(lines)


def _findings(run: RunState, result: EvaluationResult) -> list[str]:
    """Return what indicates that a run has hardly learned, each with the settings to change."""
    if run.progress.updates == 0:
        reason = no_updates(run)
        return [] if reason is None else [f"0 updates were made: {reason}"]

    findings = []
    random = play_randomly(run)
    if random is not None:
        comparison = not_above(result, random)
        if comparison is not None:
            findings.append(f"{comparison}, after {run.progress.updates:,} updates")
    unannealed = not_annealed(run)
    if unannealed is not None:
        findings.append(unannealed)
    return findings


def no_updates(run: RunState) -> str | None:
    """Return why a run has made no update; None if its settings ask for none."""
    schedule = run.cfg.schedule
    progress = run.progress
    learns = bool(select(schedule, "offline_updates")) or select(schedule, "updates_per_step") != 0
    if not learns:
        return None
    if run.guard.num_refused:
        return f"all {run.guard.num_refused} were skipped, because they were NaN or infinite"
    if progress.unit == "updates" or progress.env_steps == 0:
        reason = ended_by(run)
        if run.budget.building_cpu_s > 0:
            reason = f"{reason}, of which the start took {run.budget.building_cpu_s:.3g}"
        return f"the run ended before the first one ({reason})"
    if progress.outcome is None:
        num_envs = schedule.num_envs
        longest = declared_limit(run.held_out)
        length = "" if longest is None else f", and episodes have up to {longest:,}"
        return (
            f"no episode has ended in {progress.env_steps:,} steps, "
            f"{progress.env_steps // num_envs:,} in each of {num_envs} environments{length}; "
            "replay holds whole episodes only: set env.time_limit=N, a smaller "
            "schedule.num_envs, or a larger budget"
        )
    starts = select(schedule, "learning_starts") or 0
    episodes = select(schedule, "learning_starts_episodes") or 0
    return (
        f"the run ended after {progress.env_steps:,} steps and {progress.episodes:,} episodes "
        f"({ended_by(run)}), with schedule.learning_starts={starts}, "
        f"schedule.learning_starts_episodes={episodes} and "
        f"schedule.updates_per_step={select(schedule, 'updates_per_step')}"
    )


def not_annealed(run: RunState) -> str | None:
    """Return that a run ended before exploration had annealed; None if it did not."""
    anneal_steps = select(run.cfg, "exploration.anneal_steps")
    steps = run.progress.env_steps
    # Recipes whose policies explore by themselves have the setting as well.
    explores = exploration_of(run) is not None
    # A callback that stops a run has its own reasons.
    if anneal_steps is None or not explores or run.progress.stopped or steps >= anneal_steps:
        return None
    return (
        f"it ended after {steps:,} steps, before exploration had annealed at "
        f"exploration.anneal_steps={anneal_steps}: set it to null, to follow the budget"
    )


class _Late(Exception):  # noqa: N818
    """Random actions have taken too long."""


def play_randomly(run: RunState) -> EvaluationResult | None:
    """Evaluate random actions on the held-out tasks.

    Returns:
        The result; None where it takes long, in a run of several processes, or if the environment
        fails.
    """
    if distributed.world_size() > 1:
        return None
    env = run.held_out
    until = time.monotonic() + max(_MOST_SECONDS, _MOST_SHARE * run.costs.wall_s)

    def act(timestep: TensorDictBase) -> TensorDictBase:
        if time.monotonic() > until:
            raise _Late
        return env.rand_action(timestep)

    # The run is finished: environments of users may fail under random actions, with any error.
    with contextlib.suppress(Exception):
        max_steps = steps_of_evaluation(run)
        return play_held_out(run.cfg, act, env, max_steps=max_steps)
    return None


def not_above(agent: EvaluationResult, random: EvaluationResult) -> str | None:
    """Compare an agent with random actions, on the same episodes.

    Returns:
        A clause with both scores and their 95 % intervals; None if success or return of the agent
        is above that of random actions, or with a single episode, which has no interval. A higher
        return does not count if no episode of the agent has succeeded.
    """
    if min(len(agent.returns), len(random.returns)) < 2:
        return None
    of_agent, of_random = agent.summary(), random.summary()
    names = ["return"] if agent.success is None else ["success", "return"]
    above = [name for name in names if of_agent[f"{name}_low"] > of_random[f"{name}_high"]]
    if above:
        if above[0] == "return" and of_agent.get("success_mean") == 0.0:
            returns = _estimate(of_agent, "return")
            random_returns = _estimate(of_random, "return")
            return (
                f"none of {len(agent.returns)} episodes succeeded ({returns}; random actions: "
                f"{random_returns})"
            )
        return None
    name = names[0]
    agent_score = _estimate(of_agent, name)
    random_score = _estimate(of_random, name)
    if name == "success" and of_random["success_mean"] == 1.0:
        return (
            f"random actions already reach the best value, {random_score}, as the agent, "
            f"{agent_score}"
        )
    if of_agent[f"{name}_high"] < of_random[f"{name}_low"]:
        return f"{agent_score} is below random actions, {random_score}"
    return f"{agent_score} is not clearly above random actions, {random_score}"


def _estimate(summary: dict[str, float], name: str) -> str:
    # Without rounding errors of bounds that are zero.
    mean, low, high = (round(summary[f"{name}_{key}"], 9) for key in ("mean", "low", "high"))
    return f"{name} {mean:.3g} [{low:.3g}, {high:.3g}]"
