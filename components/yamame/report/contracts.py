"""Text of an estimate that repeats a published one (recipes/reproduce.py)."""

from collections.abc import Mapping, Sequence
from typing import Any

from yamame.evaluation.contract import JointEstimate


def interval_lines(ours: JointEstimate) -> list[str]:
    """Describe the intervals of an estimate."""
    num_seeds = len(ours.seeds)
    lines = []
    if ours.student is not None:
        lines.append(f"Student's interval over {num_seeds} seeds: {format_ends(ours.student)}")
    elif num_seeds == 1:
        lines.append("no interval over seeds, because there is only one")
    else:
        # Equal means show no spread, which is no evidence that other seeds have none.
        lines.append("no interval over seeds, because their results do not differ")
        lines.append(f"interval over tasks, of these agents alone: {format_ends(ours.tasks)}")
    if ours.bootstrap is not None:
        ends = format_ends(ours.bootstrap)
        lines.append(f"bootstrap over seeds and tasks, as published: {ends}, narrow for few seeds")
    return lines


def verdict_line(report: Mapping[str, Any]) -> str:
    """Describe the published estimate and the verdict.

    Args:
        report: Content of ``contract.json``.
    """
    if report["outcome"] is not None:
        verdict = report["outcome"]
        if not report["settled"]:
            reason = "there is no interval over seeds"
            if report["ours"]["student"] is not None:
                reason = "Student's interval reaches beyond this range"
            verdict = f"{verdict}, not settled: {reason}"
    elif report["edition"] == "full":
        verdict = "no verdict from one seed"
    else:
        verdict = f"no verdict on edition={report['edition']}"

    contract = report["contract"]
    value, *ends = contract["published"][report["memory"]]
    margin = f"{contract['margin']:g}"
    return f"published: {value:.3g} {format_ends(ends)}, margin {margin}: {verdict}"


def threshold_line(report: Mapping[str, Any]) -> str:
    """Describe which seeds have reached the threshold of edition=cpu.

    Args:
        report: Content of ``contract.json``.

    >>> threshold_line({"contract": {"endpoint": "doors"}, "threshold": 20, "reached": [True]})
    'threshold: doors 20: reached, from one seed'
    >>> report = {"contract": {"endpoint": "success"}, "threshold": 1.0, "reached": [True, False]}
    >>> threshold_line(report)
    'threshold: success 1: reached by 1 of 2 seeds'
    """
    reached = report["reached"]
    count = sum(reached)
    if len(reached) == 1:
        verdict = f"{'reached' if count else 'not reached'}, from one seed"
    elif count == len(reached):
        verdict = "reached by all seeds"
    elif count > 0:
        verdict = f"reached by {count} of {len(reached)} seeds"
    else:
        verdict = "not reached"
    return f"threshold: {report['contract']['endpoint']} {report['threshold']:g}: {verdict}"


def cost_lines(report: Mapping[str, Any]) -> list[str]:
    """Describe the cost of every seed.

    Args:
        report: Content of ``contract.json``.

    >>> cost_lines({"costs": {"42": {"env_steps": 81920, "cpu_s": 1800.0}}})
    ['seed 42: 81,920 environment steps, 0.50 CPU-hours']
    """
    lines = []
    for seed, cost in report["costs"].items():
        hours = cost["cpu_s"] / 3600
        lines.append(f"seed {seed}: {cost['env_steps']:,} environment steps, {hours:.2f} CPU-hours")
    return lines


def format_ends(ends: Sequence[float] | None) -> str:
    """Format both ends of an interval; a dash stands for an interval without width.

    >>> format_ends((0.25, 0.5)), format_ends(None)
    ('[0.25, 0.5]', '[-]')
    """
    return "[-]" if ends is None else f"[{ends[0]:.3g}, {ends[1]:.3g}]"
