"""The numbers of runs as CSV files, so that tables of pages can be filled without the MLflow store.

A folder of evidence holds ``runs.csv``, one row per run, and ``evaluations.csv``, one row per
evaluation of a run. Both are keyed by MLflow's run id. `write_evidence` replaces the rows of the
same runs and keeps all others, so that several machines can contribute to one folder.
`read_evidence` returns the runs as `RunHistory`, with the metrics of their evaluations and those
settings that groups, tables and comparisons need.
"""

import csv
import io
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import pandas as pd

from yamame.checks import SettingError, UsageError, at_source
from yamame.files.atomic import atomic_writer
from yamame.files.identity import is_a_setting, key_of
from yamame.files.paths import read_regular
from yamame.report.content import metric_of
from yamame.report.csv_files import csv_bytes, unguarded
from yamame.report.estimates import crossings, less_is_better
from yamame.report.expected import Expected
from yamame.report.groups import Group, Section
from yamame.report.settings import Command, environment, identity, settings
from yamame.system.messages import one_line, printable
from yamame.tracking.history import (
    AXIS_TAG,
    CHANGED_TAG,
    COMMAND_TAG,
    Axis,
    MetricHistory,
    RunHistory,
)

RUNS = "runs.csv"
EVALUATIONS = "evaluations.csv"
RUN_COLUMNS = (
    "run",
    "name",
    "task",
    "recipe",
    "overrides",
    "seed",
    "metric",
    "value",
    "low",
    "high",
    "episodes",
    "evaluated_on",
    "env_steps",
    "updates",
    "cpu_s",
    "wall_s",
    "mark",
    "mark_env_steps",
    "mark_cpu_s",
    "budget",
    "axis",
    "settings_id",
    "environment_id",
    "revision",
    "date",
    "processor",
    "instructions",
    "cores",
    "threads",
    "device",
    "precision",
    "versions",
)
"""Columns of ``runs.csv``; ``docs/results/README.md`` explains each."""
COST_COLUMNS = ("env_steps", "updates", "cpu_s", "wall_s")
"""Columns of ``evaluations.csv`` after ``run``. The metrics of evaluations follow, sorted."""
_EVALUATION_COLUMNS = ("run", *COST_COLUMNS)
_COMMIT_TAG = "mlflow.source.git.commit"
_DATE = "%Y-%m-%dT%H:%M:%SZ"
_PACKAGES = ("python", "torch", "torchrl", "tensordict", "numpy", "yamame")
# A word of a command line that is read as it stands, as tables of pages write it.
_BARE = re.compile(r"[^\s'\"\\]+")

Row = dict[str, str]


def write_evidence(folder: Path, sections: Sequence[Section]) -> list[str]:
    """Merge the runs of some sections into a folder of evidence.

    A row describes one machine, revision and precision. A run that was resumed on others is left
    out, and an earlier row of it is removed.

    Args:
        folder: Folder of the files; created if missing.
        sections: Sections from `make_sections`.

    Returns:
        A line for each run that is left out.

    Raises:
        UsageError: The folder holds files of these names with other columns.
    """
    folder.mkdir(parents=True, exist_ok=True)
    former_runs = _read_table(folder / RUNS, RUN_COLUMNS)
    former_evaluations = _read_table(folder / EVALUATIONS, _EVALUATION_COLUMNS)

    refused = []
    seen = []
    run_rows = []
    tables = []
    for section in sections:
        metric = metric_of(section)
        for group in section.groups:
            for run in group.runs:
                seen.append(run.run_id)
                changed = run.tags.get(CHANGED_TAG)
                if changed:
                    # Its numbers belong to no single machine or revision.
                    text = f"has sessions that differ in {changed}"
                    refused.append(f"no evidence: {run.name} ({run.run_id}) {text}")
                    continue
                table = _evaluations_of(run)
                tables.append(table)
                run_rows.append(_run_row(run, group, metric, last=table.iloc[-1]))

    kept_runs = former_runs[~former_runs["run"].isin(seen)].drop_duplicates("run", keep="last")
    kept_evaluations = former_evaluations[~former_evaluations["run"].isin(seen)]
    if kept_evaluations.empty:
        # Without its metrics: their columns would stay for ever.
        kept_evaluations = kept_evaluations[list(_EVALUATION_COLUMNS)]
    new_runs = pd.DataFrame(run_rows, columns=list(RUN_COLUMNS), dtype=object)
    runs = _sorted_runs(pd.concat([kept_runs, new_runs], ignore_index=True))

    evaluations = pd.concat([kept_evaluations, *tables], ignore_index=True).fillna("")
    metrics = sorted(set(evaluations.columns) - set(_EVALUATION_COLUMNS))
    evaluations = evaluations[[*_EVALUATION_COLUMNS, *metrics]]
    # Evaluations are in the order of their runs; those of no listed run come last.
    position = pd.Series(runs.index, index=runs["run"])
    order = evaluations["run"].map(position).fillna(len(runs))
    evaluations = evaluations.assign(order=order).sort_values(["order", "run"], kind="stable")

    # Evaluations are written first: if this is interrupted, every listed run has its evaluations.
    _write_table(folder / EVALUATIONS, evaluations.drop(columns="order"))
    _write_table(folder / RUNS, runs)
    return refused


def read_evidence(folder: Path) -> list[RunHistory]:
    """Read the runs of a folder of evidence, oldest first.

    Raises:
        UsageError: There is no such folder, or one of its files cannot be read.
    """
    for name in (RUNS, EVALUATIONS):
        if not (folder / name).is_file():
            condition = f"be a folder with {RUNS} and {EVALUATIONS}"
            raise SettingError("evidence", str(folder), condition)
    evaluations = _read_table(folder / EVALUATIONS, _EVALUATION_COLUMNS)
    by_run = dict(list(evaluations.groupby("run")))
    runs = []
    for row in _read_table(folder / RUNS, RUN_COLUMNS).to_dict("records"):
        own_evaluations = by_run.get(row["run"], evaluations.iloc[:0])
        with at_source(f"{folder / RUNS}, run {row['run']}"):
            try:
                runs.append(_history(row, own_evaluations))
            except UsageError:
                raise
            except ValueError as error:  # a cell that is no number or no date
                raise UsageError(one_line(error), key="evidence") from error
    return sorted(runs, key=lambda run: (run.started_ms, run.run_id))


def _run_row(run: RunHistory, group: Group, metric: str, *, last: "pd.Series[str]") -> Row:
    """Return the row of a run.

    Args:
        run: The run.
        group: Its group.
        metric: Metric of its section.
        last: Row of its last evaluation.
    """
    command = Command.of(run)
    stem = metric.removesuffix("_mean")
    started = datetime.fromtimestamp(run.started_ms / 1000, UTC)
    row = {
        "run": run.run_id,
        "name": run.name,
        "task": group.title,
        "recipe": group.recipe,
        "overrides": "" if command is None else _overrides(command.words),
        "seed": run.seed,
        "metric": metric,
        "value": _last_value(run, metric),
        "low": _last_value(run, f"{stem}_low"),
        "high": _last_value(run, f"{stem}_high"),
        "episodes": _last_value(run, "num_episodes"),
        "evaluated_on": run.tags.get("evaluated_on", ""),
        "mark": "",
        "mark_env_steps": "",
        "mark_cpu_s": "",
        "budget": _budget(run),
        "axis": run.axis,
        "settings_id": identity(settings(run)),
        "environment_id": identity(environment(run)),
        "revision": run.tags.get(_COMMIT_TAG, "unknown"),
        "date": started.strftime(_DATE),
    }
    row.update(_machine(run))
    for cost in COST_COLUMNS:
        row[cost] = last[cost]
    expected = Expected.from_params(run.params)
    if expected is not None and expected.metric == metric:
        row.update(_mark(run, metric, expected))
    return row


def _last_value(run: RunHistory, metric: str) -> str:
    """Return the last value of a metric of evaluations as text."""
    series = run.metrics.get(f"eval/{metric}")
    return "" if series is None or not len(series.values) else _number(series.values[-1])


def _mark(run: RunHistory, metric: str, expected: Expected) -> Row:
    """Return the nearer end of the expected interval, and where the run first reached it."""
    mark = expected.interval[1 if less_is_better(metric) else 0]
    if not math.isfinite(mark):
        return {}
    row = {"mark": _number(mark)}
    found = crossings(Group("", "", (run,)), metric, mark).runs.iloc[0]
    if found["crossed"]:
        row["mark_env_steps"] = _number(found["env_steps"])
        row["mark_cpu_s"] = _number(found["cpu_s"])
    return row


def _budget(run: RunHistory) -> str:
    limits = []
    for key, value in sorted(settings(run).items()):
        if key.startswith("budget.") and value != "None":
            limits.append(f"{key.removeprefix('budget.')}={value}")
    return " ".join(limits)


def _machine(run: RunHistory) -> Row:
    """Return the columns that describe the machine and the software of a run."""
    device = run.params.get("device", "cpu")
    gpu = run.tags.get("machine.gpu", "")
    is_cuda = device.startswith("cuda")
    autocast = run.params.get("schedule.autocast", "None")
    instructions = run.tags.get("version.cpu", "")
    # "auto" uses bfloat16 on hardware that computes in it.
    is_auto = autocast == "auto" and (is_cuda or "bfloat16" in instructions)
    versions = []
    for package in _PACKAGES:
        version = run.tags.get(f"version.{package}")
        if version is not None:
            versions.append(f"{package} {version}")
    return {
        "processor": run.tags.get("machine.processor", ""),
        "instructions": instructions,
        "cores": run.tags.get("machine.cores", ""),
        "threads": run.tags.get("machine.threads", ""),
        "device": f"{device} {gpu}" if is_cuda and gpu else device,
        "precision": "bfloat16" if autocast == "bfloat16" or is_auto else "float32",
        "versions": "; ".join(versions),
    }


def _evaluations_of(run: RunHistory) -> pd.DataFrame:
    """Return the evaluations of a run as texts: one row per step, one column per metric."""
    values = Group("", "", (run,)).metrics.frame
    names = values["metric"].astype(str)
    is_evaluation = names.str.startswith("eval/")
    table = values.assign(metric=names).pivot(index="step", columns="metric", values="value")
    table = table.loc[sorted(values.loc[is_evaluation, "step"].unique())]

    texts = pd.DataFrame({"run": run.run_id}, index=table.index, dtype=object)
    for cost in COST_COLUMNS:
        name = f"cost/{cost}"
        if cost == run.axis:
            texts[cost] = list(map(_number, table.index))
        elif name in table:
            texts[cost] = table[name].map(_number)
        else:
            texts[cost] = ""
    for name in sorted(names[is_evaluation].unique()):
        texts[name.removeprefix("eval/")] = table[name].map(_number)
    return texts


def _history(row: Mapping[str, str], evaluations: pd.DataFrame) -> RunHistory:
    """Rebuild a run from its rows.

    Its settings are not in the files. Their hashes are enough to find runs with the same settings
    and runs with the same environment.
    """
    axes = get_args(Axis)
    if row["axis"] not in axes:
        message = f"axis must be one of {', '.join(axes)}, got {row['axis']!r}"
        raise UsageError(message, key="evidence")
    params = {
        "seed": row["seed"],
        "settings_id": row["settings_id"],
        "env.settings_id": row["environment_id"],
    }
    for part in row["budget"].split():
        limit, _, value = part.partition("=")
        params[f"budget.{limit}"] = value
    mark = row["mark"]
    if mark:
        ends = f"[None, {mark}]" if less_is_better(row["metric"]) else f"[{mark}, None]"
        params["expected.metric"] = row["metric"]
        params["expected.interval"] = ends

    # Groups and tables find runs by their command line.
    tags = {_COMMIT_TAG: row["revision"], AXIS_TAG: row["axis"]}
    if row["overrides"]:
        command = f"python recipes/{row['recipe']}.py {row['overrides']} seed={row['seed']}"
        tags[COMMAND_TAG] = command
    started = datetime.strptime(row["date"], _DATE).replace(tzinfo=UTC)
    return RunHistory(
        run_id=row["run"],
        name=row["name"],
        started_ms=int(started.timestamp() * 1000),
        params=params,
        tags=tags,
        metrics=_metrics(row["axis"], evaluations),
    )


def _metrics(axis: str, evaluations: pd.DataFrame) -> dict[str, MetricHistory]:
    """Return the metrics of a run from the texts of its evaluations."""
    # Of two rows with one step the later counts.
    steps = evaluations[axis].map(float)
    metrics = {}
    for column in evaluations.columns.drop("run"):
        values = evaluations.loc[evaluations[column] != "", column].map(float)
        if values.empty:
            continue
        points = pd.Series(values.to_numpy(float), index=steps[values.index])
        points = points[~points.index.duplicated(keep="last")]
        name = f"cost/{column}" if column in COST_COLUMNS else f"eval/{column}"
        metrics[name] = MetricHistory(points.index.to_numpy(float), points.to_numpy())
    return metrics


def _overrides(words: Sequence[str]) -> str:
    """Return the overrides that affect the result, the experiment first, as pages write them."""
    given = []
    for word in words:
        is_override = "=" in word or word.startswith("~")
        if is_override and is_a_setting(key_of(word)):
            given.append(word)
    given.sort(key=lambda word: key_of(word) != "experiment")
    quoted = [word if _BARE.fullmatch(word) else shlex.quote(word) for word in given]
    return " ".join(quoted)


def _number(value: float) -> str:
    """Format a number with ten digits, whole ones without a point; empty if it is not finite.

    >>> _number(80384.0), _number(2 / 3), _number(float("nan"))
    ('80384', '0.6666666667', '')
    """
    if not math.isfinite(value):
        return ""
    return str(int(value)) if float(value).is_integer() else f"{value:.10g}"


def _sorted_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Sort runs by recipe, overrides, seed, date and id."""
    # By length first, so that seed 10 follows seed 9.
    runs = runs.assign(seed_length=runs["seed"].str.len())
    order = ["recipe", "overrides", "seed_length", "seed", "date", "run"]
    return runs.sort_values(order, ignore_index=True).drop(columns="seed_length")


def _read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read a table of texts.

    Args:
        path: The file. A table without rows is returned if it is missing.
        columns: Its first columns.

    Raises:
        UsageError: The file has other columns, or a row with another number of cells.
    """
    if not os.path.lexists(path):
        return pd.DataFrame(columns=list(columns), dtype=object)
    # Not pandas.read_csv: it accepts rows that are too short.
    header: list[str] = []
    rows = []
    try:
        # The folder may come from somebody else, with links to other files.
        content = read_regular(path).decode()
        reader = csv.reader(io.StringIO(content, newline=""))
        for cells in reader:
            texts = [printable(unguarded(cell)) for cell in cells]
            if not header:
                header = texts
            elif len(texts) == len(header):
                rows.append(texts)
            else:
                message = f"{path}, line {reader.line_num}, must have {len(header)} cells"
                raise UsageError(f"{message}, got {len(texts)}", key="evidence")
    except (csv.Error, UnicodeDecodeError) as error:
        message = f"{path} must be a CSV table in UTF-8, got another file"
        raise UsageError(f"{message}: {error}", key="evidence") from error
    if header[: len(columns)] != list(columns):
        message = f"{path} must have the columns {', '.join(columns)}, got {', '.join(header)}"
        raise UsageError(message, key="evidence")
    return pd.DataFrame(rows, columns=header, dtype=object)


def _write_table(path: Path, table: pd.DataFrame) -> None:
    content = csv_bytes(list(table.columns), table.itertuples(index=False, name=None))
    with atomic_writer(path) as file:
        file.write(content)
