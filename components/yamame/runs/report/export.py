"""Writes a report: the page, its pictures and films as files, its numbers as tables."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from yamame.runs.atomic import atomic_writer
from yamame.runs.report.content import Content, GroupResult, SectionResult
from yamame.runs.report.page import film_name, render
from yamame.runs.report.pictures import Plot, draw

PAGE = "index.html"
FILES = "files.csv"
"""Table of what a report wrote, so that the next one in its place can take away what it does not write itself."""
_Rows = Iterator[Sequence[object]]


def write_report(content: Content, directory: Path) -> Path:
    """Writes everything into a directory, in place of an earlier report; the page comes last.

    Of the earlier report goes what this one does not write again; whatever else lies there stays.

    Returns:
        Path of the page.
    """
    directory.mkdir(parents=True, exist_ok=True)
    images = {
        plot.name: {"light": draw(plot, "light"), "dark": draw(plot, "dark")}
        for result in content.sections
        for plot in plots_of(result)
    }
    files = {
        f"{name}.png" if theme == "light" else f"{name}-dark.png": image
        for name, themes in images.items()
        for theme, image in themes.items()
    }
    for index, result in enumerate(content.sections, start=1):
        for entry in result.results:
            if entry.film is not None:
                files[film_name(index, entry.group)] = entry.film[0]
    files |= {f"{name}.csv": _csv(_COLUMNS[name].split(), rows) for name, rows in _tables(content).items()}
    files[PAGE] = render(content, images).encode()
    former = _former(directory) - files.keys()
    # Until the old ones are gone they are listed too: whoever is stopped in between leaves nothing unknown.
    _write(directory / FILES, _csv(["file"], ([name] for name in sorted(files.keys() | former))))
    for name, file in files.items():
        _write(directory / name, file)
    for name in former:
        (directory / name).unlink(missing_ok=True)
    _write(directory / FILES, _csv(["file"], ([name] for name in sorted(files))))
    return directory / PAGE


def _former(directory: Path) -> set[str]:
    """Names of the files that an earlier report wrote into a directory and nothing took away."""
    if not (directory / FILES).is_file():
        return set()
    with (directory / FILES).open(newline="") as table:
        header, *rows = [row for row in csv.reader(table) if row] or [[]]
    names = {row[0] for row in rows}
    if header != ["file"] or PAGE not in names:  # somebody else's table
        return set()
    return {name for name in names if Path(name).name == name and (directory / name).is_file()}


def _csv(columns: Sequence[str], rows: _Rows) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if value is None or value != value else value for value in row] for row in rows)
    return text.getvalue().encode()


def plots_of(result: SectionResult) -> list[Plot]:
    """Every picture of a section."""
    return [*result.learning, *result.trials, *result.training]


def _write(path: Path, content: bytes) -> None:
    with atomic_writer(path) as file:
        file.write(content)


_COLUMNS = {
    "groups": "section group label metric mean low high episodes_low episodes_high num_seeds env_steps cpu_s wall_s",
    "runs": "section group seed run run_id metric value",
    "thresholds": "section group metric threshold num_seeds num_passed env_steps_median cpu_s_median",
    "ablations": "section group parameters metric difference low high base_better base_better_low base_better_high",
    "curves": "section plot line x y low high",
    "training": "section plot line x y low high",
    "verdicts": "section metric low high mean num_seeds outcome",
    "not_counted": "run run_id seed status reason",
}


def _tables(content: Content) -> dict[str, _Rows]:
    return {
        "groups": _groups(content),
        "runs": _runs(content),
        "thresholds": _thresholds(content),
        "ablations": _ablations(content),
        "curves": _curves(content, lambda result: [*result.learning, *result.trials]),
        "training": _curves(content, lambda result: result.training),
        "verdicts": _verdicts(content),
        "not_counted": ([run.name, run.run_id, run.seed, run.status, why] for run, why in content.left_out),
    }


def _entries(content: Content) -> Iterator[tuple[SectionResult, GroupResult]]:
    return ((result, entry) for result in content.sections for entry in result.results)


def _groups(content: Content) -> _Rows:
    for result, entry in _entries(content):
        for metric, final in entry.finals.items():
            if final is None:
                continue
            ends = [*(final.over_seeds or (None, None)), *(final.over_episodes or (None, None))]
            group, costs = entry.group, entry.costs.values()
            name = [result.section.title, group.letter, group.label]
            yield [*name, metric, final.mean, *ends, len(final.values), *costs]


def _runs(content: Content) -> _Rows:
    for result, entry in _entries(content):
        for metric, final in entry.finals.items():
            for run in entry.group.runs:
                value = None if final is None else final.values.get(run.seed)
                yield [
                    result.section.title,
                    entry.group.letter,
                    run.seed,
                    run.name,
                    run.run_id,
                    metric,
                    value,
                ]


def _thresholds(content: Content) -> _Rows:
    for result, entry in _entries(content):
        for item in entry.passed:
            numbers = [item.threshold, item.num_runs, len(item.env_steps), *item.median()]
            yield [result.section.title, entry.group.letter, result.metric, *numbers]


def _ablations(content: Content) -> _Rows:
    for result, entry in _entries(content):
        if entry.comparison is not None:
            comparison = entry.comparison
            parameters = "; ".join(f"{d.parameter}: {d.before} -> {d.after}" for d in comparison.differing)
            name = [result.section.title, entry.group.letter, parameters, result.metric]
            yield [*name, *comparison.difference, *comparison.base_better]


def _curves(content: Content, plots: Callable[[SectionResult], list[Plot]]) -> _Rows:
    for result in content.sections:
        for plot in plots(result):
            for line in plot.lines:
                curve = line.curve
                for index, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
                    ends = [curve.low[index], curve.high[index]] if len(curve.low) else [None, None]
                    yield [result.section.title, plot.name, line.name, float(x), float(y), *ends]


def _verdicts(content: Content) -> _Rows:
    for entry in content.verdicts:
        ends = entry.expected.interval
        yield [entry.section, entry.expected.metric, *ends, entry.mean, entry.num_seeds, entry.outcome]
