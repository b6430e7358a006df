"""Table at the end of a sweep: a line per job, and what follows from them."""

import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from yamame.files.identity import key_of
from yamame.system.installed import documentation_page
from yamame.system.messages import print_stdout
from yamame.tracking.sweep import groups_of

PAGE = documentation_page("howto/does_not_learn")
"""Page with the causes and cures of agents that have hardly learned."""


def print_table(
    jobs: Mapping[int, Mapping[str, Any]], planned: Sequence[list[str]], reports: Sequence[str]
) -> None:
    """Print a line per job, the means of groups, and the commands that may follow. Jobs whose agent
    has hardly learned are named.

    The line of a job has its number, outcome, the overrides that not all jobs have, and its
    objective or error.
    """
    metrics = {str(job["metric"]) for job in jobs.values() if job.get("metric")}
    objective = metrics.pop() if len(metrics) == 1 else "objective"
    rows = _rows(jobs, planned, objective)
    _print_rows(rows)
    means = _means(jobs, objective)
    if means:
        print_stdout("")
        _print_rows(means)
        print_stdout("")

    hardly_learned = _hardly_learned(jobs, rows)
    if hardly_learned:
        print_stdout(f"hardly learned: {hardly_learned}; causes and cures: {PAGE}")

    outcomes = {row[1] for row in rows}
    if outcomes & {"not begun", "stopped"}:
        print_stdout("next: the same command (runs continue unless run.overwrite=true)")
    elif outcomes & {"ran", "resumed", "done"}:
        for command in reports:
            print_stdout(f"next: {command}")


def _hardly_learned(jobs: Mapping[int, Mapping[str, Any]], rows: Sequence[Sequence[str]]) -> str:
    """Return number and overrides of the jobs whose agent has hardly learned; empty for none."""
    names = []
    for number, _, own, _ in rows[1:]:  # without the head
        if jobs.get(int(number), {}).get("hardly_learned"):
            names.append(f"job {number} ({own})" if own else f"job {number}")
    return ", ".join(names)


def _print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print a table in columns, whose last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print_stdout("  ".join(cells).rstrip())


def _means(jobs: Mapping[int, Mapping[str, Any]], objective: str) -> list[tuple[str, ...]]:
    """Return the mean objective of each group of jobs that differ in their seed alone.

    Returns:
        Rows of a table with its head; none if no group has several jobs with an objective.
    """
    groups = groups_of(jobs)
    if max(map(len, groups.values())) < 2:
        return []
    rows: list[tuple[str, ...]] = [("group", "jobs", f"mean {objective}")]
    for name, values in groups.items():
        mean = f"{fmean(values):.4g}" if values else "-"
        rows.append((name, str(len(values)), mean))
    return rows


def _rows(
    jobs: Mapping[int, Mapping[str, Any]], planned: Sequence[list[str]], objective: str
) -> list[tuple[str, ...]]:
    """Return a row per job, planned or begun, after the head of the table."""
    begun = {number: job["overrides"] for number, job in jobs.items()}
    given = dict(enumerate(planned)) if are_planned(begun, planned) else begun
    common = set.intersection(*map(set, given.values()))
    has_failed = any(job["outcome"] == "failed" for job in jobs.values())
    result = f"{objective} or error" if has_failed else objective
    rows: list[tuple[str, ...]] = [("job", "outcome", "overrides", result)]
    for number, texts in given.items():
        job = jobs.get(number, {"outcome": "not begun", "result": ""})
        own = shlex.join(text for text in texts if text not in common)
        rows.append((str(number), job["outcome"], own, job["result"]))
    return rows


def are_planned(begun: Mapping[int, list[str]], planned: Sequence[list[str]]) -> bool:
    """Return whether the jobs are among the planned ones, which they are not with ``shuffle()`` or
    where a search chooses them.
    """
    # Hydra may spell the overrides that all jobs have otherwise.
    shared = set.intersection(*map(set, planned)) if planned else set()
    for number, texts in begun.items():
        if number >= len(planned):
            return False
        plan = planned[number]
        if not set(plan) - shared <= set(texts):
            return False
        if not set(map(key_of, texts)) <= set(map(key_of, plan)):
            return False
    return True
