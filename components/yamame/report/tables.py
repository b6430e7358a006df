"""Tables of Markdown pages with numbers from runs.

Texts are written by hand, numbers by `write_tables`. The runs are those of a folder of evidence
(`yamame.report.evidence`), or of an MLflow store. A page marks a table, and its head names the
columns:

    <!-- runs: seeds=0,1,2; typed=AMAGO 3.3 -->

    | task | `yamame train ...` | mark | at the end | reached after CPU-s | AMAGO 3.3 |
    |---|---|---|---|---|---|
    | two goals | `experiment=cpu_mazerunner` | 0.95 | | | 280 |

    <!-- end of runs -->

``task``, the command, ``metric``, ``mark`` (of ``reached after``) and the columns in ``typed`` are
written by hand. All other columns are those of `COLUMNS`; their cells are overwritten. The command
finds the runs: those started with the same overrides, whatever their seed and name. Of several such
groups the latest is used. ``seeds`` selects seeds. A row without runs has the text "to be measured"
instead of numbers. A row that lacks some of the seeds is marked, such as "(2 of 3 seeds)", in its
seeds column or else in the first generated column. ``against`` names a column of published numbers
for the verdict, ``0.53`` or ``0.53 ± 0.01``, written by hand. Any other text in it, such as
``(0.53)``, is not compared.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from yamame.checks import UsageError
from yamame.evaluation.intervals import Resampling
from yamame.files.atomic import atomic_writer
from yamame.files.identity import is_a_setting, key_of
from yamame.report.columns import COLUMNS, RowRuns, lacking_seeds
from yamame.report.content import metric_of
from yamame.report.groups import Group, Section
from yamame.report.markdown import (
    MARKED,
    TO_BE_MEASURED,
    Cells,
    MarkedTable,
    command_of,
    escaped,
    read_page,
)


def write_tables(
    pages: Sequence[Path], sections: Sequence[Section], resampling: Resampling
) -> list[str]:
    """Write the marked tables of pages.

    Args:
        pages: Markdown files.
        sections: Sections from `make_sections`.
        resampling: Settings of intervals.

    Returns:
        A line for every command that is still to be run.

    Raises:
        UsageError: A page has no table that can be read, or a page with numbers has no row with
            runs. Nothing is written then.
    """
    # All pages are computed before the first is written, so that an error leaves all as they are.
    texts = {}
    to_run: list[str] = []
    for page in pages:
        texts[page], commands = _fill_page(page, sections, resampling)
        to_run += commands
    for page, text in texts.items():
        with atomic_writer(page) as file:
            file.write(text.encode())
    return to_run


def check_pages(pages: Sequence[Path]) -> None:
    """Check pages before anything is written.

    Raises:
        UsageError: A page does not exist, or has no marked table that can be read.
    """
    for page in pages:
        for _, options, table, _ in MARKED.findall(read_page(page)):
            MarkedTable.read(page, options, table)


def _fill_page(
    page: Path, sections: Sequence[Section], resampling: Resampling
) -> tuple[str, list[str]]:
    """Return the text of a page with filled tables, and a line for every command to run."""
    text = read_page(page)
    commands = []
    parts = []
    end = 0
    was_run = False
    had_numbers = False
    for match in MARKED.finditer(text):
        marker, options, body, end_marker = match.groups()
        table = MarkedTable.read(page, options, body)
        rows = []
        for row in table.rows:
            runs = _find_runs(sections, table, row, resampling)
            was_run = was_run or runs is not None
            had_numbers = had_numbers or table.has_numbers(row)
            command = _command_to_run(table, row, runs)
            if command is not None:
                commands.append(f"{page}: {TO_BE_MEASURED}: {command}")
            rows.append(row | _generate_cells(table, runs))
        parts.append(text[end : match.start()])
        parts.append(f"{marker}\n{table.to_markdown(rows)}\n\n{end_marker}")
        end = match.end()
    if had_numbers and not was_run:
        # An empty or a wrong store would erase all numbers.
        message = f"no row of {page} was run, so its numbers would be lost"
        raise UsageError(message, key="tables")
    return "".join(parts) + text[end:], commands


def _command_to_run(table: MarkedTable, row: Cells, runs: RowRuns | None) -> str | None:
    """Return the command that runs the missing seeds of a row; None if all seeds were run."""
    command = f"yamame {table.recipe} {command_of(row)}"
    if runs is None:
        return command
    existing = runs.group.seeds
    lacking = [seed for seed in table.seeds if seed not in existing]
    if not lacking:
        return None
    return f"{command} seed={','.join(lacking)}"


def _generate_cells(table: MarkedTable, runs: RowRuns | None) -> Cells:
    """Return the generated cells of a row."""
    if runs is None:
        return _empty_cells(table)
    cells = {}
    for name in table.columns:
        cells[name] = escaped(COLUMNS[name](runs))
    lacking = lacking_seeds(runs, runs.group)
    if cells and lacking:
        noted = "seeds" if "seeds" in cells else table.columns[0]
        cells[noted] = f"{cells[noted]} ({lacking})".strip()
    return cells


def _empty_cells(table: MarkedTable) -> Cells:
    """Return the generated cells of a row without runs: seeds, and a note as the first number."""
    cells = dict.fromkeys(table.columns, "")
    for name in table.columns:
        if name != "seeds":
            cells[name] = TO_BE_MEASURED
            break
    if "seeds" in cells:
        cells["seeds"] = ", ".join(table.seeds)
    return cells


def _find_runs(
    sections: Sequence[Section], table: MarkedTable, row: Cells, resampling: Resampling
) -> RowRuns | None:
    """Find the latest group that the command of a row has started."""
    wanted = _settings_of(shlex.split(command_of(row)))
    found: list[tuple[Section, Group]] = []
    for candidate in sections:
        latest = _latest(candidate, wanted)
        if latest is not None and latest.recipe == table.recipe:
            found.append((candidate, latest))
    if not found:
        return None
    section, group = max(found, key=lambda pair: _last_start(pair[1]))

    # The base may have been rerun with changed settings: compare with its latest group.
    base = section.base
    if base.commands:
        base = _latest(section, _settings_of(base.commands[0].words)) or base
    chosen = _with_seeds(group, table.seeds)
    if not chosen.runs:
        return None
    return RowRuns(
        group=chosen,
        # A group is its own base only as the same object, see compare_with_base.
        base=chosen if group is base else _with_seeds(base, table.seeds),
        metric=row.get("metric", "").strip("`") or metric_of(section),
        mark=float(row["mark"]) if row.get("mark") else None,
        resampling=resampling,
        published=row.get(table.against, ""),
        seeds=table.seeds,
    )


def _with_seeds(group: Group, seeds: Sequence[str]) -> Group:
    if not seeds:
        return group
    runs = [run for run in group.runs if run.seed in seeds]
    return replace(group, runs=tuple(runs))


def _latest(section: Section, wanted: frozenset[str]) -> Group | None:
    """Return the group of a section that was last started with some overrides."""
    groups = []
    for group in section.groups:
        if any(_settings_of(command.words) == wanted for command in group.commands):
            groups.append(group)
    return max(groups, key=_last_start, default=None)


def _last_start(group: Group) -> int:
    return max(run.started_ms for run in group.runs)


def _settings_of(words: Sequence[str]) -> frozenset[str]:
    """Return the overrides of a command line that affect the result."""
    overrides = []
    for word in words:
        if "=" in word or word.startswith("~"):
            # Hydra's `+` prefix, of a new key, does not change the setting.
            override = word.lstrip("+")
            if is_a_setting(key_of(override)):
                overrides.append(override)
    return frozenset(overrides)
