"""The numbers of runs as CSV files, so that tables of pages can be filled without the MLflow store.

A folder of evidence holds ``runs.csv``, one row per run, and ``evaluations.csv``, one row per
evaluation of a run. Both are keyed by MLflow's run id. `write_evidence` adds rows and replaces
those of the same run, and keeps all others: several machines can contribute to one folder.
`read_evidence` gives the runs back as `RunHistory`, with the metrics of their evaluations and with
what groups, tables and comparisons need of their settings.
"""

import csv
import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import numpy as np

from yamame.checks import UsageError
from yamame.files.atomic import atomic_writer
from yamame.files.identity import is_a_setting, key_of
from yamame.report.content import metric_of
from yamame.report.csv_files import csv_bytes, unguarded
from yamame.report.estimates import less_is_better, passed
from yamame.report.expected import Expected
from yamame.report.groups import Group, Section
from yamame.report.settings import Command, environment, settings
from yamame.tracking.history import AXIS_TAG, CHANGED_TAG, COMMAND_TAG, Axis, RunHistory, Series

RUNS, EVALUATIONS = "runs.csv", "evaluations.csv"
RUN_COLUMNS = (
    *("run", "name", "task", "recipe", "overrides", "seed"),
    *("metric", "value", "low", "high", "episodes", "evaluated_on"),
    *("env_steps", "updates", "cpu_s", "wall_s", "mark", "mark_env_steps", "mark_cpu_s"),
    *("budget", "axis", "settings_id", "environment_id"),
    *(
        "revision",
        "date",
        "processor",
        "instructions",
        "cores",
        "threads",
        "device",
        "precision",
        "versions",
    ),
)
"""Columns of ``runs.csv``; ``docs/results/README.md`` explains each."""
COST_COLUMNS = ("env_steps", "updates", "cpu_s", "wall_s")
"""Columns of ``evaluations.csv`` after ``run``; those of the metrics of evaluations follow in
alphabetical order.
"""
_COMMIT_TAG = "mlflow.source.git.commit"
_PACKAGES = ("python", "torch", "torchrl", "tensordict", "numpy", "yamame")
_BARE = re.compile(r"[^\s'\"\\]+")
"""A word of a command line that is read as it stands, as tables of pages write them."""

Row = dict[str, str]


def write_evidence(folder: Path, sections: Sequence[Section]) -> list[str]:
    """Merges the runs of some sections into a folder of evidence.

    A row describes one machine, revision and precision. A run that was resumed with others is left
    out, and a row that it has from before is removed.

    Args:
        folder: Where the files are; made when missing.
        sections: From `make_sections`.

    Returns:
        A line for each run that is left out.

    Raises:
        UsageError: The folder holds files of these names with other columns.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run_rows = {row["run"]: row for row in _read_rows(folder / RUNS, RUN_COLUMNS)}
    evaluation_rows: dict[str, list[Row]] = {}
    for row in _read_rows(folder / EVALUATIONS, ("run", *COST_COLUMNS)):
        evaluation_rows.setdefault(row["run"], []).append(row)

    refused = []
    for section in sections:
        metric = metric_of(section)
        for group in section.groups:
            for run in group.runs:
                if changed := run.tags.get(CHANGED_TAG):
                    refused.append(
                        f"no evidence: {run.name} ({run.run_id}) has sessions that differ in {changed}"
                    )
                    run_rows.pop(run.run_id, None)
                    evaluation_rows.pop(run.run_id, None)
                    continue
                run_rows[run.run_id] = _run_row(run, group, metric)
                evaluation_rows[run.run_id] = _evaluation_rows(run)

    ordered = sorted(run_rows.values(), key=_place)
    known = [row["run"] for row in ordered]
    others = sorted(evaluation_rows.keys() - set(known))
    evaluations = [row for run_id in [*known, *others] for row in evaluation_rows.get(run_id, [])]
    metrics = sorted({name for row in evaluations for name in row} - {"run", *COST_COLUMNS})
    # Evaluations come first: whatever stops this in between, every run that is listed has its
    # evaluations.
    _write_rows(folder / EVALUATIONS, ("run", *COST_COLUMNS, *metrics), evaluations)
    _write_rows(folder / RUNS, RUN_COLUMNS, ordered)
    return refused


def read_evidence(folder: Path) -> list[RunHistory]:
    """Reads the runs of a folder of evidence, oldest first.

    Raises:
        UsageError: There is no such folder, or one of its files cannot be read.
    """
    for name in (RUNS, EVALUATIONS):
        if not (folder / name).is_file():
            raise UsageError(
                f"evidence: must be a folder with {RUNS} and {EVALUATIONS}, got {folder}"
            )
    evaluations: dict[str, list[Row]] = {}
    for row in _read_rows(folder / EVALUATIONS, ("run", *COST_COLUMNS)):
        evaluations.setdefault(row["run"], []).append(row)
    runs = []
    for row in _read_rows(folder / RUNS, RUN_COLUMNS):
        try:
            runs.append(_history(row, evaluations.get(row["run"], [])))
        except ValueError as error:
            raise UsageError(f"evidence: {folder / RUNS}, run {row['run']}: {error}") from error
    return sorted(runs, key=lambda run: (run.started_ms, run.run_id))


def _run_row(run: RunHistory, group: Group, metric: str) -> Row:
    command = Command.of(run)
    expected = Expected.from_params(run.params)
    stem = metric.removesuffix("_mean")
    row = {
        "run": run.run_id,
        "name": run.name,
        "task": group.title,
        "recipe": group.recipe,
        "overrides": "" if command is None else _overrides(command.words),
        "seed": run.seed,
        "metric": metric,
        "value": _number(run.last(f"eval/{metric}")),
        "low": _number(run.last(f"eval/{stem}_low")),
        "high": _number(run.last(f"eval/{stem}_high")),
        "episodes": _number(run.last("eval/num_episodes")),
        "evaluated_on": run.tags.get("evaluated_on", ""),
        "budget": " ".join(f"{key}={value}" for key, value in _budget(run).items()),
        "axis": run.axis,
        "settings_id": _identity(settings(run)),
        "environment_id": _identity(environment(run)),
        "revision": run.tags.get(_COMMIT_TAG, "unknown"),
        "date": datetime.fromtimestamp(run.started_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **_machine(run),
    }
    last = _evaluation_rows(run)[-1]
    row |= {cost: last[cost] for cost in COST_COLUMNS}
    row = {name: row.get(name, "") for name in RUN_COLUMNS}
    if expected is not None and expected.metric == metric:
        row |= _mark(run, metric, expected)
    return row


def _mark(run: RunHistory, metric: str, expected: Expected) -> Row:
    """Returns the nearer end of what the experiment expects, and where the run first reached it."""
    mark = expected.interval[1 if less_is_better(metric) else 0]
    if not math.isfinite(mark):
        return {}
    crossing = passed(Group("", "", (run,)), metric, mark)
    places = zip(
        ("mark_env_steps", "mark_cpu_s"), (crossing.env_steps, crossing.cpu_s), strict=True
    )
    return {"mark": _number(mark)} | {name: _number(found[0]) for name, found in places if found}


def _budget(run: RunHistory) -> dict[str, str]:
    own = {key: value for key, value in settings(run).items() if key.startswith("budget.")}
    return {
        key.removeprefix("budget."): value for key, value in sorted(own.items()) if value != "None"
    }


def _machine(run: RunHistory) -> Row:
    device, autocast = run.params.get("device", "cpu"), run.params.get("schedule.autocast", "None")
    instructions = run.tags.get("version.cpu", "")
    lowers = device.startswith("cuda") or "bfloat16" in instructions
    versions = [
        f"{name} {run.tags[f'version.{name}']}"
        for name in _PACKAGES
        if f"version.{name}" in run.tags
    ]
    gpu = run.tags.get("machine.gpu", "")
    return {
        "processor": run.tags.get("machine.processor", ""),
        "instructions": instructions,
        "cores": run.tags.get("machine.cores", ""),
        "threads": run.tags.get("machine.threads", ""),
        "device": f"{device} {gpu}" if device.startswith("cuda") and gpu else device,
        "precision": "bfloat16"
        if autocast == "bfloat16" or (autocast == "auto" and lowers)
        else "float32",
        "versions": "; ".join(versions),
    }


def _evaluation_rows(run: RunHistory) -> list[Row]:
    names = sorted(name for name in run.metrics if name.startswith("eval/"))
    steps = sorted({step for name in names for step in run.metrics[name].steps.tolist()})
    rows = []
    for step in steps:
        row = {"run": run.run_id}
        for cost in COST_COLUMNS:
            row[cost] = _number(step if cost == run.axis else run.at(f"cost/{cost}", step))
        for name in names:
            row[name.removeprefix("eval/")] = _number(run.at(name, step))
        rows.append(row)
    return rows


def _history(row: Mapping[str, str], evaluations: Sequence[Mapping[str, str]]) -> RunHistory:
    """Builds a run from its rows.

    Settings are known by their hashes alone, which is enough to tell runs apart that have the same
    command, and to find those with the same environment.
    """
    recipe, overrides = row["recipe"], row["overrides"]
    if row["axis"] not in get_args(Axis):
        raise ValueError(f"axis must be one of {', '.join(get_args(Axis))}, got {row['axis']!r}")
    params = {
        "seed": row["seed"],
        "settings_id": row["settings_id"],
        "env.settings_id": row["environment_id"],
    }
    for part in row["budget"].split():
        limit, _, value = part.partition("=")
        params[f"budget.{limit}"] = value
    if row["mark"]:
        ends = (
            f"[None, {row['mark']}]" if less_is_better(row["metric"]) else f"[{row['mark']}, None]"
        )
        params |= {"expected.metric": row["metric"], "expected.interval": ends}
    tags = {_COMMIT_TAG: row["revision"], AXIS_TAG: row["axis"]}
    if overrides:
        tags[COMMAND_TAG] = f"python recipes/{recipe}.py {overrides} seed={row['seed']}"
    started = datetime.strptime(row["date"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return RunHistory(
        run_id=row["run"],
        name=row["name"],
        started_ms=int(started.timestamp() * 1000),
        params=params,
        tags=tags,
        metrics=_metrics(row["axis"], evaluations),
    )


def _metrics(axis: str, evaluations: Sequence[Mapping[str, str]]) -> dict[str, Series]:
    points: dict[str, dict[float, float]] = {}
    for row in evaluations:
        step = float(row[axis])
        for column, text in row.items():
            if column == "run" or text == "":
                continue
            name = f"cost/{column}" if column in COST_COLUMNS else f"eval/{column}"
            points.setdefault(name, {})[step] = float(text)
    return {
        name: Series(np.array(list(series), float), np.array(list(series.values()), float))
        for name, series in points.items()
    }


def _overrides(words: Sequence[str]) -> str:
    """Returns the overrides that make a run what it is, the experiment first, as pages write
    them.
    """
    given = [
        word
        for word in words
        if ("=" in word or word.startswith("~")) and is_a_setting(key_of(word))
    ]
    given.sort(key=lambda word: key_of(word) != "experiment")
    return " ".join(word if _BARE.fullmatch(word) else shlex.quote(word) for word in given)


def _identity(given: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(sorted(given.items())).encode()).hexdigest()[:12]


def _number(value: float | None) -> str:
    """Writes a number with ten digits, whole ones without a point; nothing for what is no number.

    >>> _number(80384.0), _number(2 / 3), _number(None)
    ('80384', '0.6666666667', '')
    """
    if value is None or not math.isfinite(value):
        return ""
    return str(int(value)) if float(value).is_integer() else f"{value:.10g}"


def _place(row: Row) -> tuple[str, str, int, str, str, str]:
    """Sorts runs by recipe, overrides, seed, date and id."""
    return row["recipe"], row["overrides"], len(row["seed"]), row["seed"], row["date"], row["run"]


def _read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """Reads a file, which may be missing; its first columns must be these."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = [unguarded(name) for name in next(reader, [])]
        if tuple(header[: len(columns)]) != tuple(columns):
            raise UsageError(
                f"evidence: {path} must have the columns {', '.join(columns)}, got {', '.join(header)}"
            )
        rows = []
        for cells in reader:
            if len(cells) != len(header):
                problem = f"must have {len(header)} cells, got {len(cells)}"
                raise UsageError(f"evidence: {path}, line {reader.line_num}: {problem}")
            rows.append(dict(zip(header, map(unguarded, cells), strict=True)))
        return rows


def _write_rows(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    with atomic_writer(path) as file:
        file.write(csv_bytes(columns, ([row.get(name, "") for name in columns] for row in rows)))
