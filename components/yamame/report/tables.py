"""Tables of Markdown pages whose numbers come from runs: words are typed, numbers are written by
`write_tables`.

The runs are those of a folder of evidence (`yamame.report.evidence`), or of an MLflow store. A page
marks a table, and its head says what stands where:

    <!-- runs: seeds=0,1,2; typed=AMAGO 3.3 -->

    | task | `python recipes/train.py ...` | mark | at the end | reached after CPU-s | AMAGO 3.3 |
    |---|---|---|---|---|---|
    | two goals | `experiment=cpu_mazerunner` | 0.95 | | | 280 |

    <!-- end of runs -->

``task``, the command, ``metric`` and ``mark`` (of ``reached after``) are typed, and so are columns
that the marker names; all others are those of `COLUMNS` and written, whatever stood there. The
command finds the runs: those that were started with the same overrides, whatever their seed and
name. Of several such groups the latest counts. ``seeds`` leaves out others. A row without runs gets
no number and says "to be measured". A row that lacks some of the seeds is marked, as "(2 of 3
seeds)", in its seeds column or else in the first column that is written. ``against`` names a typed
column of published numbers, ``0.53`` or ``0.53 ± 0.01``, for the verdict; what else stands there,
as ``(0.53)``, is not compared.
"""

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from yamame.checks import UsageError
from yamame.evaluation.intervals import Resampling
from yamame.files.atomic import atomic_writer
from yamame.files.identity import is_a_setting, key_of
from yamame.report.aggregate import aggregate
from yamame.report.content import costs_of, metric_of
from yamame.report.estimates import compare, final, less_is_better, passed
from yamame.report.groups import Group, Section
from yamame.report.page import interval, number, seconds, signed

TO_BE_MEASURED = "to be measured"
_MARKED = re.compile(r"(<!-- runs:(.*?)-->\n)(.*?)(<!-- end of runs -->)", re.DOTALL)
_BEGIN, _END = "<!-- runs:", "<!-- end of runs -->"
_RECIPE = re.compile(r"`python recipes/(\w+)\.py \.\.\.`")
_BAR = re.compile(r"(?<!\\)\|")
_TYPED = ("task", "metric", "mark")
_PUBLISHED = re.compile(r"(-?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")


class _Row(NamedTuple):
    """The runs of a row, beside those they are compared with."""

    group: Group
    base: Group
    metric: str
    mark: float | None
    resampling: Resampling
    published: str = ""
    seeds: Sequence[str] = ()


def _lacks_seeds(row: _Row, group: Group) -> str:
    """Return how many of the wanted seeds a group has measured, as "2 of 3 seeds"; "" if it has all
    of them.

    Without wanted seeds these are all that the group has.
    """
    wanted = set(row.seeds or [run.seed for run in group.runs])
    measured = {run.seed for run in group.runs if run.last(f"eval/{row.metric}") is not None}
    return "" if wanted <= measured else f"{len(wanted & measured)} of {len(wanted)} seeds"


def _ends(row: _Row) -> str:
    values = (run.last(f"eval/{row.metric}") for run in row.group.runs)
    return ", ".join(map(number, values))


def _bests(row: _Row) -> list[tuple[float, float]]:
    """The best evaluation of every seed, and its step."""
    sign = -1 if less_is_better(row.metric) else 1
    found = []
    for run in row.group.runs:
        steps, values = run.along(f"eval/{row.metric}", run.axis)
        if len(values):
            place = int((sign * values).argmax())
            found.append((float(values[place]), float(steps[place])))
    return found


def _verdict(row: _Row) -> str:
    """Compare the interval of the best evaluations with a published number and twice its deviation.

    The interval is over seeds. With one seed, or if all seeds are equal, it is over the episodes of
    the best evaluations, which shows nothing of the noise between trainings. The verdict of one
    seed is marked.
    """
    match, bests = _PUBLISHED.fullmatch(row.published.replace("\N{MINUS SIGN}", "-")), _bests(row)
    if match is None or not bests:
        return ""
    mean = aggregate([[value] for value, _ in bests], statistic="mean", resampling=row.resampling)
    if mean.ends is not None:
        low, high = mean.ends
    else:
        low, high = _over_best_episodes(row)
    theirs, apart = float(match[1]), 2 * float(match[2] or 0.0)
    above, below = low > theirs + apart, high < theirs - apart
    if less_is_better(row.metric):
        above, below = below, above
    verdict = "above" if above else "below" if below else "within"
    return verdict if len(bests) > 1 else f"{verdict} (one seed)"


def _over_best_episodes(row: _Row) -> tuple[float, float]:
    """Widest interval over episodes of the best evaluations of several seeds; their value if none
    was logged.
    """
    stem = row.metric.removesuffix("_mean")
    lows, highs = [], []
    for run in row.group.runs:
        for value, step in _bests(row._replace(group=replace(row.group, runs=(run,)))):
            low, high = (run.at(f"eval/{stem}_{end}", step) for end in ("low", "high"))
            lows.append(value if math.isnan(low) else low)
            highs.append(value if math.isnan(high) else high)
    return min(lows), max(highs)


def _mean(row: _Row) -> str:
    """The mean of the last evaluations, with its interval over seeds; over episodes if seeds do not
    differ.
    """
    end = final(row.group, row.metric, row.resampling)
    if end is None:
        return number(None)
    ends, method = end.over_seeds, end.method
    if ends is None and len(end.values) > 1 and end.over_episodes is not None:
        ends, method = end.over_episodes, "episodes"
    return number(end.mean) if ends is None else f"{number(end.mean)} {interval(ends)} {method}"


def _difference(row: _Row) -> str:
    comparison = compare(row.base, row.group, row.metric, row.resampling)
    if comparison is None:
        return ""
    difference = comparison.difference
    ends = difference.ends and interval(difference.ends)
    lacks = _lacks_seeds(row, row.base)
    base = lacks and f"(base: {lacks})"
    return " ".join(filter(None, (signed(difference.value), ends, difference.method, base)))


def _reached(row: _Row, *, in_seconds: bool) -> str:
    """When each seed crossed the mark."""
    if row.mark is None:
        return ""
    crossings = []
    for run in row.group.runs:
        crossing = passed(replace(row.group, runs=(run,)), row.metric, row.mark)
        places = crossing.cpu_s if in_seconds else crossing.env_steps
        crossings.append(
            (seconds(places[0]) if in_seconds else f"{places[0]:,.0f}") if places else "never"
        )
    return ", ".join(crossings)


def _attempts(row: _Row) -> str:
    """The return of every trial in the last evaluation, the mean over seeds; of the trials that all
    seeds had.
    """
    means: list[float] = []
    while True:
        logged = [run.last(f"eval/return_mean_trial_{len(means)}") for run in row.group.runs]
        values = [value for value in logged if value is not None]
        if len(values) < len(logged):
            return ", ".join(map(number, means))
        means.append(float(np.mean(values)))


def _budget(row: _Row) -> str:
    """By what its runs ended, as they were last started."""
    limits = []
    for key, unit in (("env_steps", "steps"), ("updates", "updates"), ("minutes", "min")):
        value = row.group.settings.get(f"budget.{key}", "None")
        if value != "None":
            limits.append(f"{float(value):,.6g} {unit}")
    return ", ".join(limits)


COLUMNS: dict[str, Callable[[_Row], str]] = {
    "seeds": lambda row: ", ".join(run.seed for run in row.group.runs),
    "at the end": _ends,
    "best": lambda row: ", ".join(number(value) for value, _ in _bests(row)),
    "verdict": _verdict,
    "per attempt": _attempts,
    "mean": _mean,
    "difference": _difference,
    "reached after CPU-s": lambda row: _reached(row, in_seconds=True),
    "reached after steps": lambda row: _reached(row, in_seconds=False),
    "steps": lambda row: number(costs_of(row.group)["env_steps"]),
    "CPU-s": lambda row: seconds(costs_of(row.group)["cpu_s"]),
    "wall-s": lambda row: seconds(costs_of(row.group)["wall_s"]),
    "budget": _budget,
    "revision": lambda row: ", ".join(revision[:7] for revision in row.group.revisions),
}
"""What can be written: the last evaluation of every seed and its best one, whether that is above,
within or below what was published, the returns of the trials of an episode, the mean of the last
evaluations with its interval, the difference to the base of the section, when every seed crossed
the mark, the means of what runs took, their budget and their revision."""


def write_tables(
    pages: Sequence[Path], sections: Sequence[Section], resampling: Resampling
) -> list[str]:
    """Writes the marked tables of pages.

    Args:
        pages: Markdown files.
        sections: From `make_sections`.
        resampling: How intervals are made.

    Returns:
        A line for every command that is still to be run.

    Raises:
        UsageError: A page has no table that can be read, or has numbers and none of its rows was
            run; nothing is written then.
    """
    texts, missing = {}, []
    for page in pages:
        text = _text_of(page)
        written, start, was_run, had_numbers = "", 0, False, False
        for match in _MARKED.finditer(text):
            table = _Table.read(page, match[2], match[3])
            filled, lines = table.filled(sections, resampling)
            missing += lines
            was_run |= any(table.runs_of(row, sections) for row in table.rows)
            had_numbers |= any(table.has_numbers(row) for row in table.rows)
            written += f"{text[start : match.start()]}{match[1]}\n{filled}\n\n{match[4]}"
            start = match.end()
        if had_numbers and not was_run:
            raise UsageError(f"tables: none of {page} was run, so its numbers would be lost")
        texts[page] = written + text[start:]
    for page, text in texts.items():
        with atomic_writer(page) as file:
            file.write(text.encode())
    return missing


def check_pages(pages: Sequence[Path]) -> None:
    """Check pages before anything is written.

    Raises:
        UsageError: A page does not exist, has no marked table, or one that cannot be read.
    """
    for page in pages:
        for _, options, table, _ in _MARKED.findall(_text_of(page)):
            _Table.read(page, options, table)


def _text_of(page: Path) -> str:
    """Read a page with marked tables."""
    if not page.is_file():
        raise UsageError(
            f"tables: {page} does not exist or is no file; name Markdown pages with marked tables"
        )
    try:
        text = page.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"tables: {page} must be a Markdown page, got a file that is not UTF-8 text"
        ) from error
    begins, ends, tables = text.count(_BEGIN), text.count(_END), len(_MARKED.findall(text))
    if not begins and not ends:
        raise UsageError(
            f"tables: {page} has no marked table; write one between '{_BEGIN} -->' and '{_END}'"
        )
    if begins > ends:
        raise UsageError(
            f"tables: {page} has {begins} '{_BEGIN} ... -->' but {ends} '{_END}'; end each table"
        )
    if ends > begins:
        raise UsageError(
            f"tables: {page} has {ends} '{_END}' but {begins} '{_BEGIN} ... -->'; begin each table"
        )
    if tables != begins:
        raise UsageError(
            f"tables: {page} has a marker that is out of place; each table stands between a line "
            f"'{_BEGIN} ... -->' and '{_END}'"
        )
    return text


def place_table(page: Path, title: str, table: str, notes: str) -> None:
    """Puts a marked table in the place of that of a page; one that is not there is made, with a
    title and notes.

    Raises:
        UsageError: The page has no marked table, or several.
    """
    text = page.read_text() if page.exists() else f"# {title}\n\n{table}\n\n{notes}\n"
    placed, count = _MARKED.subn(lambda match: table, text)
    if count != 1:
        raise UsageError(f"page: must have one marked table, got {count} in {page}")
    page.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(page) as file:
        file.write(placed.encode())


class _Table(NamedTuple):
    """A marked table of a page: head, rows, the recipe of its commands, and the options of its
    marker.
    """

    page: Path
    head: list[str]
    rows: list[dict[str, str]]
    recipe: str
    seeds: str | None
    against: str

    @classmethod
    def read(cls, page: Path, options: str, table: str) -> "_Table":
        """Reads a table and the options of its marker.

        Raises:
            UsageError: Either has something that cannot be read.
        """
        given = dict(
            part.strip().partition("=")[::2] for part in options.split(";") if part.strip()
        )
        if unknown := given.keys() - {"seeds", "typed", "against"}:
            raise UsageError(
                f"tables: a marker may say seeds, typed and against, got {min(unknown)} in {page}"
            )
        typed, against = given.get("typed", "").split(","), given.get("against", "")
        if not re.fullmatch(r"\d+(, *\d+)*", given.get("seeds", "0")):
            raise UsageError(f"tables: seeds must be as 0,1,2, got {given['seeds']} in {page}")
        head, rows, recipe = _read(page, table, typed=typed)
        if against and against not in head:
            raise UsageError(f"tables: against must name a column, got {against} in {page}")
        return cls(page, head, rows, recipe, given.get("seeds"), against)

    @property
    def wanted_seeds(self) -> list[str]:
        """The seeds that its marker asks for; none where it takes those that there are."""
        return [] if self.seeds is None else [seed.strip() for seed in self.seeds.split(",")]

    def runs_of(
        self, row: Mapping[str, str], sections: Sequence[Section]
    ) -> tuple[Group, Group, str] | None:
        """The latest group of the command of a row, the base of its section, and the section's
        metric.
        """
        return _runs_of(sections, self.recipe, _command(row), self.wanted_seeds)

    def has_numbers(self, row: Mapping[str, str]) -> bool:
        """Whether a row has cells with numbers of runs."""
        return any(
            row[name] not in ("", TO_BE_MEASURED)
            for name in self.head
            if name in COLUMNS and name != "seeds"
        )

    def filled(self, sections: Sequence[Section], resampling: Resampling) -> tuple[str, list[str]]:
        """The table with the numbers of runs, and a line for every command that is still to be
        run.
        """
        lines, missing = [self.head, ["---"] * len(self.head)], []
        for row in self.rows:
            command = f"python recipes/{self.recipe}.py {_command(row)}"
            found = self.runs_of(row, sections)
            if found is None:
                missing.append(f"{self.page}: {TO_BE_MEASURED}: {command}")
                written = self._empty()
            else:
                group, base, metric = found
                lacking = [
                    seed
                    for seed in self.wanted_seeds
                    if seed not in {run.seed for run in group.runs}
                ]
                if lacking:
                    missing.append(
                        f"{self.page}: {TO_BE_MEASURED}: {command} seed={','.join(lacking)}"
                    )
                mark = float(row["mark"]) if row.get("mark") else None
                metric = row.get("metric", "").strip("`") or metric
                seeds = self.wanted_seeds
                numbers = _Row(
                    group, base, metric, mark, resampling, row.get(self.against, ""), seeds
                )
                written = {
                    name: _cell(COLUMNS[name](numbers)) for name in self.head if name in COLUMNS
                }
                if written and (lacks := _lacks_seeds(numbers, group)):
                    first = "seeds" if "seeds" in written else next(iter(written))
                    written[first] = f"{written[first]} ({lacks})".strip()
            lines.append([written.get(name, row[name]) for name in self.head])
        text = "\n".join(re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(line)} |") for line in lines)
        return text, missing

    def _empty(self) -> dict[str, str]:
        """The cells of a row that was not run: its seeds, a note in place of the first number,
        nothing else.
        """
        cells = {name: "" for name in self.head if name in COLUMNS}
        first = next((name for name in cells if name != "seeds"), None)
        if first is not None:
            cells[first] = TO_BE_MEASURED
        if "seeds" in cells:
            cells["seeds"] = ", ".join(self.wanted_seeds)
        return cells


def _command(cells: Mapping[str, str]) -> str:
    """The overrides of a row."""
    return next(cell for name, cell in cells.items() if _RECIPE.fullmatch(name)).strip("`")


def _cell(text: str) -> str:
    """A text as one cell, whatever a run was called."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _read(
    page: Path, table: str, *, typed: Sequence[str]
) -> tuple[list[str], list[dict[str, str]], str]:
    """Head and rows of a table, and the recipe that its commands are of."""
    lines = [line.strip()[1:-1] for line in table.splitlines() if line.strip()] or [""]
    if len(lines) > 1 and not re.fullmatch(r"[-:| ]+", lines[1]):
        raise UsageError(
            f"tables: a table must have a rule below its head, got {lines[1].strip()} in {page}"
        )
    head, *rows = [[cell.strip() for cell in _BAR.split(line)] for line in lines[:1] + lines[2:]]
    recipe = next((match[1] for name in head if (match := _RECIPE.fullmatch(name))), None)
    if recipe is None:
        raise UsageError(
            f"tables: a table must have a column `python recipes/<recipe>.py ...`, got {head} in {page}"
        )
    known = {*_TYPED, *(name.strip() for name in typed), *COLUMNS}
    for name in head:
        if name not in known and not _RECIPE.fullmatch(name):
            raise UsageError(
                f"tables: a column must be typed or one of {', '.join(COLUMNS)}, got {name} in {page}"
            )
    named = []
    for row in rows:
        if len(row) != len(head):
            raise UsageError(
                f"tables: a row must have {len(head)} cells, got {' | '.join(row)} in {page}"
            )
        cells = dict(zip(head, row, strict=True))
        try:
            shlex.split(_command(cells))
        except ValueError as error:
            raise UsageError(
                f"tables: a command must be one, got {_command(cells)} in {page}"
            ) from error
        mark = cells.get("mark", "")
        if not re.fullmatch(r"(-?\d+(\.\d+)?)?", mark):
            raise UsageError(f"tables: a mark must be a number, got {mark} in {page}")
        named.append(cells)
    return head, named, recipe


def _runs_of(
    sections: Sequence[Section], recipe: str, command: str, seeds: Sequence[str]
) -> tuple[Group, Group, str] | None:
    """Finds the latest group that a command has started, the base of its section, and the section's
    metric.
    """
    wanted = _settings_of(shlex.split(command))
    candidates = []
    for section in sections:
        group = _latest(section, wanted)
        if group is not None and group.recipe == recipe:
            candidates.append((_last_start(group), section, group))
    if not candidates:
        return None
    _, section, group = max(candidates, key=lambda candidate: candidate[0])
    # The base may have been run again after its settings have changed: the later runs are those to
    # compare with.
    base = section.base
    if base.commands:
        base = _latest(section, _settings_of(base.commands[0].words)) or base

    def chosen(group: Group) -> Group:
        return replace(
            group, runs=tuple(run for run in group.runs if not seeds or run.seed in seeds)
        )

    ours = chosen(group)
    return (
        (ours, ours if group is base else chosen(base), metric_of(section)) if ours.runs else None
    )


def _latest(section: Section, wanted: frozenset[str]) -> Group | None:
    """Returns the group of a section that was started last with these overrides; None where there
    is none.
    """
    started = [
        group
        for group in section.groups
        if any(_settings_of(command.words) == wanted for command in group.commands)
    ]
    return max(started, key=_last_start, default=None)


def _last_start(group: Group) -> int:
    return max(run.started_ms for run in group.runs)


def _settings_of(words: Sequence[str]) -> frozenset[str]:
    """Returns the overrides among the words of a command line that make a run what it is."""
    given = (word.lstrip("+") for word in words if "=" in word or word.startswith("~"))
    return frozenset(word for word in given if is_a_setting(key_of(word)))
