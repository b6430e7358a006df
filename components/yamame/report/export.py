"""Writing a report: the page, its pictures and videos as files, its numbers as CSV tables."""

from collections.abc import Sequence, Set
from pathlib import Path

import pandas as pd

from yamame.evaluation.intervals import Interval
from yamame.files.atomic import atomic_writer
from yamame.report.content import Content, SectionResult
from yamame.report.csv_files import csv_bytes
from yamame.report.figures import draw
from yamame.report.page import render, video_name
from yamame.report.plots import Plot

PAGE = "index.html"
FILES = "files.csv"
"""Table of the files of a report. The next report in the same folder deletes those that it does not
write itself.
"""


def write_report(content: Content, directory: Path, *, served_by: str | None = None) -> Path:
    """Write a report into a directory, in place of an earlier one.

    Files of the earlier report that this one does not write are deleted. Other files stay.

    Args:
        content: Content of the page.
        directory: Directory of all files.
        served_by: Command that shows the runs in MLflow; None if a server is always there.

    Returns:
        Path of the page.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, bytes] = {}
    for number, result in enumerate(content.sections, start=1):
        for plot in result.pictures:
            files[f"{plot.name}.png"] = draw(plot)
        for entry in result.results:
            if entry.video is not None:
                files[video_name(number, entry.group)] = entry.video.content
    page = render(content, directory, served_by)
    for name, table in _tables(content).items():
        files[f"{name}.csv"] = _csv(table)
    files[PAGE] = page.encode()  # last: a page never shows files that are not there yet

    former = _former_files(directory) - files.keys()
    # Former files stay in the list until they are deleted. If this is interrupted, the next report
    # still knows all files.
    _write(directory / FILES, _list_of(files.keys() | former))
    for name, file in files.items():
        _write(directory / name, file)
    for name in former:
        (directory / name).unlink(missing_ok=True)
    _write(directory / FILES, _list_of(set(files)))
    return directory / PAGE


def _former_files(directory: Path) -> set[str]:
    """Return the names of the files of an earlier report that still exist."""
    path = directory / FILES
    if not path.is_file():
        return set()
    header, *names = path.read_text().splitlines() or [""]
    if header != "file" or PAGE not in names:
        return set()  # the table of another program
    former = set()
    for name in names:
        # Only files in the directory itself: a list may have been edited.
        if Path(name).name == name and (directory / name).is_file():
            former.add(name)
    return former


def _list_of(names: Set[str]) -> bytes:
    return _csv(pd.DataFrame({"file": sorted(names)}))


def _csv(table: pd.DataFrame) -> bytes:
    """Return a table as CSV; missing values are empty cells."""
    rows = []
    for row in table.itertuples(index=False, name=None):
        # NaN is the only value that differs from itself.
        rows.append(["" if cell is None or cell != cell else cell for cell in row])
    return csv_bytes(list(table.columns), rows)


def _write(path: Path, content: bytes) -> None:
    with atomic_writer(path) as file:
        file.write(content)


def _tables(content: Content) -> dict[str, pd.DataFrame]:
    """Return the tables of a report by the names of their files."""
    return {
        "groups": _groups_table(content),
        "runs": _runs_table(content),
        "thresholds": _thresholds_table(content),
        "ablations": _ablations_table(content),
        "curves": _curves_table(content, "pictures"),
        "training": _curves_table(content, "training"),
        "verdicts": _verdicts_table(content),
        "not_counted": _left_out_table(content),
    }


def _table(columns: str, rows: Sequence[Sequence[object]]) -> pd.DataFrame:
    """Return a table from the names of its columns, separated by blanks."""
    # Objects, because pandas would turn a column of integers and None into floats.
    return pd.DataFrame(rows, columns=columns.split(), dtype=object)


def _ends(interval: Interval | None) -> Sequence[float | None]:
    return (None, None) if interval is None else interval


def _groups_table(content: Content) -> pd.DataFrame:
    rows = []
    for result in content.sections:
        for entry in result.results:
            for metric, final in entry.finals.items():
                if final is None:
                    continue
                rows.append(
                    [
                        result.section.title,
                        entry.group.letter,
                        entry.group.label,
                        metric,
                        final.mean,
                        *_ends(final.over_seeds),
                        final.method,
                        *_ends(final.over_episodes),
                        len(final.values),
                        *entry.costs.values(),
                    ]
                )
    columns = (
        "section group label metric mean low high interval episodes_low episodes_high "
        "num_seeds env_steps cpu_s wall_s"
    )
    return _table(columns, rows)


def _runs_table(content: Content) -> pd.DataFrame:
    rows = []
    for result in content.sections:
        for entry in result.results:
            for metric, final in entry.finals.items():
                values = {} if final is None else final.values
                for run in entry.group.runs:
                    value = values.get(run.seed)
                    cells = (run.seed, run.name, run.run_id, metric, value)
                    rows.append([result.section.title, entry.group.letter, *cells])
    return _table("section group seed run run_id metric value", rows)


def _thresholds_table(content: Content) -> pd.DataFrame:
    rows = []
    for result in content.sections:
        for entry in result.results:
            for crossings in entry.crossings:
                rows.append(
                    [
                        result.section.title,
                        entry.group.letter,
                        result.metric,
                        crossings.threshold,
                        "interpolated",
                        crossings.num_runs,
                        len(crossings.env_steps),
                        *crossings.median(),
                    ]
                )
    columns = (
        "section group metric threshold crossing num_seeds num_passed env_steps_median cpu_s_median"
    )
    return _table(columns, rows)


def _ablations_table(content: Content) -> pd.DataFrame:
    rows = []
    for result in content.sections:
        for entry in result.results:
            if entry.comparison is None:
                continue
            differing, difference, base_better = entry.comparison
            changes = [f"{each.parameter}: {each.before} -> {each.after}" for each in differing]
            rows.append(
                [
                    result.section.title,
                    entry.group.letter,
                    "; ".join(changes),
                    result.metric,
                    *difference,
                    *base_better,
                ]
            )
    columns = (
        "section group parameters metric difference low high interval "
        "base_better base_better_low base_better_high base_better_interval"
    )
    return _table(columns, rows)


def _curves_table(content: Content, kind: str) -> pd.DataFrame:
    """Return the points of all curves of plots of evaluations or of training."""
    parts = [_table("section plot line x y low high interval", [])]
    for result in content.sections:
        plots = result.pictures if kind == "pictures" else result.training
        parts += [_points_table(result, plot) for plot in plots]
    return pd.concat(parts, ignore_index=True)


def _points_table(result: SectionResult, plot: Plot) -> pd.DataFrame:
    tables = []
    for line in plot.lines:
        curve = line.curve
        low, high = (None, None) if curve.band is None else curve.band
        table = pd.DataFrame({"x": curve.x, "y": curve.y, "low": low, "high": high})
        table.insert(0, "section", result.section.title)
        table.insert(1, "plot", plot.name)
        table.insert(2, "line", line.name)
        table["interval"] = curve.method
        tables.append(table.astype(object))
    return pd.concat(tables)


def _verdicts_table(content: Content) -> pd.DataFrame:
    rows = []
    for verdict in content.verdicts:
        rows.append(
            [
                verdict.section,
                verdict.expected.metric,
                *verdict.expected.interval,
                verdict.mean,
                *_ends(verdict.ends),
                verdict.method,
                verdict.num_seeds,
                verdict.outcome,
            ]
        )
    columns = "section metric low high mean mean_low mean_high interval num_seeds outcome"
    return _table(columns, rows)


def _left_out_table(content: Content) -> pd.DataFrame:
    rows = []
    for run, reason in content.left_out:
        rows.append([run.name, run.run_id, run.seed, run.status, reason])
    return _table("run run_id seed status reason", rows)
