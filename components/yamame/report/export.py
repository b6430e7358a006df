"""Writes a report: the page, its pictures and videos as files, its numbers as tables."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from yamame.files.atomic import atomic_writer
from yamame.report.content import Content
from yamame.report.csv_files import csv_bytes
from yamame.report.figures import draw
from yamame.report.page import render, video_name
from yamame.report.plots import Plot

PAGE = "index.html"
FILES = "files.csv"
"""Table of what a report wrote, so that the next one in its place can delete what it does not write
itself.
"""
_COLUMNS = {
    "groups": "section group label metric mean low high interval episodes_low episodes_high "
    "num_seeds env_steps cpu_s wall_s",
    "runs": "section group seed run run_id metric value",
    "thresholds": "section group metric threshold crossing num_seeds num_passed env_steps_median cpu_s_median",
    "ablations": "section group parameters metric difference low high interval "
    "base_better base_better_low base_better_high base_better_interval",
    "curves": "section plot line x y low high interval",
    "training": "section plot line x y low high interval",
    "verdicts": "section metric low high mean mean_low mean_high interval num_seeds outcome",
    "not_counted": "run run_id seed status reason",
}


def write_report(content: Content, directory: Path, *, served_by: str | None = None) -> Path:
    """Writes everything into a directory, in place of an earlier report; the page comes last.

    Of the earlier report goes what this one does not write again; whatever else lies there stays.

    Args:
        content: What the page says.
        directory: Where everything goes.
        served_by: The command that shows the runs in MLflow; None where that is always there.

    Returns:
        Path of the page.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, bytes] = {}
    for index, result in enumerate(content.sections, start=1):
        files |= {f"{plot.name}.png": draw(plot) for plot in result.pictures}
        for entry in result.results:
            if entry.video is not None:
                files[video_name(index, entry.group)] = entry.video.content
    page = render(content, directory, served_by)
    files |= {
        f"{name}.csv": _csv(_COLUMNS[name].split(), rows) for name, rows in _tables(content).items()
    }
    files[PAGE] = page.encode()
    former = _former(directory) - files.keys()
    # Until the old ones are gone they are listed too: whoever is stopped in between leaves nothing
    # unknown.
    _write(directory / FILES, _csv(["file"], [[name] for name in sorted(files.keys() | former)]))
    for name, file in files.items():
        _write(directory / name, file)
    for name in former:
        (directory / name).unlink(missing_ok=True)
    _write(directory / FILES, _csv(["file"], [[name] for name in sorted(files)]))
    return directory / PAGE


def _former(directory: Path) -> set[str]:
    """Names of the files that an earlier report wrote into a directory and none has deleted
    since.
    """
    if not (directory / FILES).is_file():
        return set()
    header, *names = (directory / FILES).read_text().splitlines() or [""]
    if header != "file" or PAGE not in names:  # somebody else's table
        return set()
    return {name for name in names if Path(name).name == name and (directory / name).is_file()}


def _csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    return csv_bytes(columns, ([_cell(value) for value in row] for row in rows))


def _cell(value: object) -> object:
    """Returns a value as CSV files have it: missing ones and NaN are empty."""
    return "" if value is None or value != value else value


def _write(path: Path, content: bytes) -> None:
    with atomic_writer(path) as file:
        file.write(content)


def _tables(content: Content) -> dict[str, list[list[object]]]:
    """The rows of every table of `_COLUMNS`."""
    tables: dict[str, list[list[object]]] = {name: [] for name in _COLUMNS}
    none = (None, None)
    for result in content.sections:
        title, metric = result.section.title, result.metric
        for entry in result.results:
            group = entry.group
            for name, final in entry.finals.items():
                values = {} if final is None else final.values
                tables["runs"] += [
                    [
                        title,
                        group.letter,
                        run.seed,
                        run.name,
                        run.run_id,
                        name,
                        values.get(run.seed),
                    ]
                    for run in group.runs
                ]
                if final is not None:
                    ends = [
                        *(final.over_seeds or none),
                        final.method,
                        *(final.over_episodes or none),
                    ]
                    numbers = [name, final.mean, *ends, len(values), *entry.costs.values()]
                    tables["groups"].append([title, group.letter, group.label, *numbers])
            for passed in entry.passed:
                counts = [passed.num_runs, len(passed.env_steps)]
                numbers = [passed.threshold, "interpolated", *counts, *passed.median()]
                tables["thresholds"].append([title, group.letter, metric, *numbers])
            if entry.comparison is not None:
                differing, difference, base_better = entry.comparison
                parameters = "; ".join(f"{d.parameter}: {d.before} -> {d.after}" for d in differing)
                tables["ablations"].append(
                    [title, group.letter, parameters, metric, *difference, *base_better]
                )
        tables["curves"] += _points(title, result.pictures)
        tables["training"] += _points(title, result.training)
    for verdict in content.verdicts:
        expected = verdict.expected
        ends = [*(verdict.ends or none), verdict.method]
        numbers = [*expected.interval, verdict.mean, *ends, verdict.num_seeds, verdict.outcome]
        tables["verdicts"].append([verdict.section, expected.metric, *numbers])
    for run, reason in content.left_out:
        tables["not_counted"].append([run.name, run.run_id, run.seed, run.status, reason])
    return tables


def _points(title: str, plots: Sequence[Plot]) -> Iterator[list[object]]:
    """A row per point of a curve."""
    for plot in plots:
        for line in plot.lines:
            curve = line.curve
            columns = np.stack(
                [curve.x, curve.y, *(curve.band or np.full((2, len(curve.x)), np.nan))]
            )
            yield from (
                [title, plot.name, line.name, *row, curve.method] for row in columns.T.tolist()
            )
