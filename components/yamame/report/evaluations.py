"""Evaluated runs: comparison of groups, tables and pictures.

An evaluated run is a mapping as in ``evaluation.json``: ``source``, ``task``, ``evaluated_on`` and
``gammas``, a list with the numbers of each evaluated discount factor.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from torch import Tensor

from yamame.checks import at_key, require_setting
from yamame.evaluation.intervals import Array, Resampling, with_width
from yamame.report.aggregate import Statistic, aggregate, probability_of_improvement, score_table
from yamame.report.figures import draw_attention, learning_curve
from yamame.report.memory import draw_memory
from yamame.report.terminal import print_columns
from yamame.system.installed import documentation_page
from yamame.system.messages import print_stdout

Numbers = Mapping[str, Any]
METRICS = ("success", "return")
_PAGE = documentation_page("howto/probe")
_SHARED = ("run", "gamma", "episodes", "tasks", "interval over", "played to the end")
"""Columns that a table leaves out if all of its rows agree."""
_PICTURES = (
    "in_context.png",
    "attention.png",
    "attention-[0-9]*.png",
    "recall.png",
    "probes.png",
)


def acting_numbers(run: Numbers) -> Numbers:
    """Return the numbers of the discount factor that acts."""
    for numbers in run["gammas"]:
        if numbers["acting"]:
            return numbers
    raise ValueError(f"no discount factor acts in the evaluation of {run['source']}")


def mean_score(runs: Sequence[Numbers]) -> float:
    """Return the mean score of runs: of success, or of the return if success is not reported."""
    scores = []
    for run in runs:
        numbers = acting_numbers(run)
        scores.append(numbers.get("success_mean", numbers["return_mean"]))
    return sum(scores) / len(scores)


def check_tasks(runs: Sequence[str], against: Sequence[str] = ()) -> None:
    """Check that runs can be aggregated, and compared with others.

    Args:
        runs: Task of every run.
        against: Task of every run of the other group.

    Raises:
        UsageError: Some tasks have more runs than others, or the groups have different tasks.
    """
    with at_key("", {"tasks": "run"}):
        tasks, _ = score_table(runs, [0.0] * len(runs))
    if not against:
        return
    with at_key("", {"tasks": "against"}):
        others, _ = score_table(against, [0.0] * len(against))
    is_same = sorted(tasks) == sorted(others)
    require_setting("against", others, is_same, f"have the same tasks as run, {tasks}")


def compare(
    runs: Sequence[Numbers], against: Sequence[Numbers], resampling: Resampling
) -> dict[str, Any]:
    """Aggregate the scores of evaluated runs, and compare them with those of another group.

    Args:
        runs: Evaluated runs.
        against: The other group; empty for none.
        resampling: Method of the intervals.

    Returns:
        ``aggregate``, by group and metric, and ``improvement``, by metric. Metrics that are not
        known of all runs are left out.
    """
    groups = {"run": runs}
    if against:
        groups["against"] = against
    aggregates: dict[str, Any] = {name: {} for name in groups}
    improvement = {}
    for metric in METRICS:
        key = f"{metric}_mean"
        # Environments may not report success.
        if not all(key in acting_numbers(run) for run in [*runs, *against]):
            continue
        tables = []
        for name, group in groups.items():
            scores = [acting_numbers(run)[key] for run in group]
            tasks, table = score_table([run["task"] for run in group], scores)
            aggregates[name] |= {"tasks": tasks, "num_runs": len(table)}
            aggregates[name][metric] = _estimates(table, resampling)
            # Groups may name their runs in another order. Columns are compared by task.
            tables.append(table[:, np.argsort(tasks)])
        if len(tables) > 1:
            better = probability_of_improvement(*tables, resampling=resampling)
            improvement[metric] = better._asdict()
    return {"aggregate": aggregates, "improvement": improvement}


def _estimates(table: Array, resampling: Resampling) -> dict[str, dict[str, Any]]:
    estimates = {}
    for statistic in get_args(Statistic):
        estimate = aggregate(table, statistic=statistic, resampling=resampling)
        estimates[statistic] = estimate._asdict()
    return estimates


def by_name(runs: Sequence[Numbers]) -> dict[str, Numbers]:
    """Return the runs by the names of their directories.

    Runs of one name are told apart by their index.
    """
    names = [Path(run["source"]).name for run in runs]
    found = {}
    for index, run in enumerate(runs):
        name = names[index]
        found[name if names.count(name) == 1 else f"{index} {name}"] = run
    return found


def in_context_curves(runs: Sequence[Numbers]) -> dict[str, list[list[float]]]:
    """Return the in-context curves of runs with several trials per episode.

    Returns:
        By the name of the run: the numbers of the trials from 1 on, the mean return of each, and
        both ends of its interval.
    """
    curves = {}
    for name, run in by_name(runs).items():
        for who, numbers in _with_control(acting_numbers(run)):
            trials = numbers["trials"]
            num_trials = len(trials["mean"])
            if num_trials > 1:
                label = name if who == "agent" else f"{name}, {who}"
                x = [float(number) for number in range(1, num_trials + 1)]
                curves[label] = [x, trials["mean"], trials["low"], trials["high"]]
    return curves


def _with_control(numbers: Numbers) -> list[tuple[str, Numbers]]:
    """Return the numbers of the agent and, if it was evaluated, of the control without memory."""
    if "control" not in numbers:
        return [("agent", numbers)]
    return [("agent", numbers), ("memory wiped", numbers["control"])]


def draw(folder: Path, runs: Sequence[Numbers], attention: Sequence[Tensor]) -> None:
    """Draw the pictures of an evaluation, in place of those of an earlier one.

    Args:
        folder: Where the pictures are written.
        runs: Evaluated runs.
        attention: Attention ``[layers, H, L, L]`` of each run, or nothing.
    """
    # A picture of an earlier evaluation must not stand beside the numbers of this one.
    for pattern in _PICTURES:
        for picture in folder.glob(pattern):
            picture.unlink()

    curves = in_context_curves(runs)
    if curves:
        learning_curve(folder / "in_context.png", curves, x_label="trial", y_label="return")
    for index, probabilities in enumerate(attention):
        name = "attention.png" if len(runs) == 1 else f"attention-{index}.png"
        draw_attention(folder / name, probabilities, title=runs[index]["source"])
    draw_memory(folder, diagnoses(runs))


def diagnoses(runs: Sequence[Numbers]) -> dict[str, dict[str, Any]]:
    """Return the diagnoses of memory of the runs that have one, by the name of the run."""
    found = {}
    for name, run in by_name(runs).items():
        if "diagnosis" in run:
            found[name] = run["diagnosis"]
    return found


def print_tables(
    report: Mapping[str, Any], memory: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    """Print the content of ``evaluation.json`` as tables.

    Args:
        report: The content.
        memory: Rows of the diagnosis of memory of each run that has one, by the name of the run.
    """
    runs = [*report["run"], *report["against"]]
    rows = []
    for run in runs:
        for numbers in run["gammas"]:
            for who, part in _with_control(numbers):
                start = {"run": run["source"], "gamma": numbers["gamma"], "played by": who}
                rows.append(start | _row(part))
    novelties = dict.fromkeys(run["evaluated_on"] for run in runs)  # without repetitions
    shared, rows = _split_shared(rows)
    title = f"evaluation ({'; '.join(novelties)})"
    if shared:
        title += ": " + ", ".join(f"{name} {value}" for name, value in shared.items())
    print_columns(title, rows)
    for run in runs:
        if _shows_no_benefit(acting_numbers(run)):
            whose = f"{run['source']}: " if len(runs) > 1 else ""
            print_stdout(
                f"{whose}no benefit of memory is shown on these tasks: scores with and without "
                f"memory are not clearly different; test whether the tasks need memory: {_PAGE}"
            )

    for name, of_run in memory.items():
        print_columns(f"memory of {name}", of_run)
    if "aggregate" in report:
        _print_aggregates(report["aggregate"])
    if report.get("improvement"):
        rows = []
        for metric, estimate in report["improvement"].items():
            rows.append({"metric": metric, "probability": format_interval(**estimate)})
        print_columns("how likely a run is better than one of against", rows)


def _shows_no_benefit(numbers: Numbers) -> bool:
    """Return whether the intervals of the agent and of the control without memory overlap.

    Those of every metric must overlap, except of one for which neither has an interval.
    """
    if "control" not in numbers:
        return False
    overlaps = []
    for metric in METRICS:
        if f"{metric}_mean" not in numbers:
            continue
        low, high = numbers[f"{metric}_low"], numbers[f"{metric}_high"]
        other_low, other_high = (numbers["control"][f"{metric}_{end}"] for end in ("low", "high"))
        if with_width(low, high) is not None or with_width(other_low, other_high) is not None:
            overlaps.append(low <= other_high and other_low <= high)
    return bool(overlaps) and all(overlaps)


def _split_shared(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Split rows into the values that are the same in all of them, and the rest.

    A table with all columns is too wide for a terminal, even with a single row.

    >>> _split_shared([{"run": "a", "gamma": 0.9}, {"run": "a", "gamma": 0.99}])
    ({'run': 'a'}, [{'gamma': 0.9}, {'gamma': 0.99}])
    >>> _split_shared([{"run": "a", "played by": "agent"}])
    ({'run': 'a'}, [{'played by': 'agent'}])
    """
    shared: dict[str, Any] = {}
    for name, value in rows[0].items():
        is_shared = all(name in row and row[name] == value for row in rows)
        if is_shared and name in _SHARED:
            shared[name] = value
    rest = []
    for row in rows:
        rest.append({name: value for name, value in row.items() if name not in shared})
    return shared, rest


def _row(numbers: Numbers) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for metric in METRICS:
        if f"{metric}_mean" in numbers:
            ends = (numbers[f"{metric}_low"], numbers[f"{metric}_high"])
            row[metric] = format_interval(numbers[f"{metric}_mean"], *ends)
    trials = numbers["trials"]["mean"]
    if len(trials) > 1:  # else it is the return
        row["return per trial"] = " ".join(f"{mean:.3g}" for mean in trials)
    row["length"] = numbers["length_mean"]
    row["episodes"] = int(numbers["num_episodes"])
    if "num_tasks" in numbers:
        row["tasks"] = int(numbers["num_tasks"])
    row["interval over"] = "tasks" if "intervals_over_tasks" in numbers else "episodes"
    row["played to the end"] = f"{numbers['finished']:.0%}"
    return row


def _print_aggregates(groups: Mapping[str, Mapping[str, Any]]) -> None:
    rows = []
    for name, group in groups.items():
        for metric in METRICS:
            if metric not in group:
                continue
            row = {"group": name, "runs": group["num_runs"], "tasks": len(group["tasks"])}
            row["metric"] = metric
            for statistic, estimate in group[metric].items():
                row[statistic] = format_interval(**estimate)
            rows.append(row)
    print_columns("over runs and tasks", rows)


def format_interval(
    value: float, low: float | None, high: float | None, method: str | None = None
) -> str:
    """Format a number, its interval and the name of the interval.

    >>> format_interval(0.5, 0.25, 0.75, "Student"), format_interval(1.0, None, None)
    ('0.5 [0.25, 0.75] Student', '1 (no interval)')
    """
    text = f"{value:.3g} (no interval)"
    if low is not None and high is not None and with_width(low, high) is not None:
        text = f"{value:.3g} [{low:.3g}, {high:.3g}]"
    return text if method is None else f"{text} {method}"
