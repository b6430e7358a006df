"""Marked tables of Markdown pages, as text: how they are found and read."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from yamame.checks import UsageError
from yamame.files.atomic import atomic_writer
from yamame.report.columns import COLUMNS

TO_BE_MEASURED = "to be measured"
MARKED = re.compile(r"(<!-- runs:(.*?)-->\n)(.*?)(<!-- end of runs -->)", re.DOTALL)
"""A marked table: its marker with options, the table, its end."""
_NOTES = re.compile(r"<!-- notes -->\n.*?<!-- end of notes -->", re.DOTALL)
_SCORES = re.compile(r"<!-- scores -->\n.*?<!-- end of scores -->", re.DOTALL)
_BEGIN = "<!-- runs:"
_END = "<!-- end of runs -->"
# Both spellings of a command.
_RECIPE = re.compile(r"`(?:yamame (\w+)|python recipes/(\w+)\.py) \.\.\.`")
_BAR = re.compile(r"(?<!\\)\|")  # not one that is escaped within a cell
_TYPED = ("task", "metric", "mark")
_OPTIONS = ("seeds", "typed", "against")

Cells = dict[str, str]


@dataclass(frozen=True)
class MarkedTable:
    """A marked table of a page.

    Attributes:
        page: The page.
        head: Names of the columns.
        rows: Cells by column.
        recipe: Recipe of the commands.
        seeds: Seeds that the table should have; empty for all that exist.
        against: Column of published numbers; empty without one.
    """

    page: Path
    head: list[str]
    rows: list[Cells]
    recipe: str
    seeds: list[str]
    against: str

    @classmethod
    def read(cls, page: Path, options: str, table: str) -> Self:
        """Read a table.

        Args:
            page: The page, for messages.
            options: Options of the marker.
            table: Text of the table.

        Raises:
            UsageError: The table or its options are malformed.
        """
        given = {}
        for option in options.split(";"):
            if option.strip():
                name, _, value = option.strip().partition("=")
                given[name] = value
        unknown = given.keys() - set(_OPTIONS)
        if unknown:
            # A misspelt option would be ignored silently.
            message = f"a marker has options {', '.join(_OPTIONS)}, got {min(unknown)} in {page}"
            raise UsageError(message, key="tables")
        seeds = given.get("seeds")
        if seeds is not None and not re.fullmatch(r"\d+(, *\d+)*", seeds):
            raise UsageError(f"seeds must be as 0,1,2, got {seeds} in {page}", key="tables")

        head, lines = _split_rows(page, table)
        recipe = _recipe_of(page, head)
        typed = re.split(r"\s*,\s*", given.get("typed", "").strip())
        _check_columns(page, head, typed)
        rows = [_read_row(page, head, cells) for cells in lines]
        against = given.get("against", "")
        if against and against not in head:
            raise UsageError(f"against must name a column, got {against} in {page}", key="tables")
        wanted = [] if seeds is None else re.split(", *", seeds)
        return cls(page, head, rows, recipe, wanted, against)

    @property
    def columns(self) -> list[str]:
        """Columns that are written."""
        return [name for name in self.head if name in COLUMNS]

    def has_numbers(self, row: Cells) -> bool:
        """Return True if a row has numbers of runs."""
        for name in self.columns:
            # Seeds are those that the table should have; they are no result.
            if name != "seeds" and row[name] not in ("", TO_BE_MEASURED):
                return True
        return False

    def to_markdown(self, rows: Sequence[Cells]) -> str:
        """Return the text of the table with other rows."""
        lines = [self.head, ["---"] * len(self.head)]
        for row in rows:
            lines.append([row[name] for name in self.head])
        text = []
        for cells in lines:
            line = f"| {' | '.join(cells)} |"
            text.append(re.sub(r"\|  (?=\|)", "| ", line))  # one blank in an empty cell
        return "\n".join(text)


def command_of(row: Cells) -> str:
    """Return the overrides of a row."""
    for name, cell in row.items():
        if _RECIPE.fullmatch(name):
            return cell.strip("`")
    raise KeyError("a row without a command")  # the head was checked when the table was read


def escaped(text: str) -> str:
    """Escape a text as a single cell: the names of runs may hold anything."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def read_page(page: Path) -> str:
    """Return the text of a page with marked tables.

    Raises:
        UsageError: The page does not exist, has no marked table, or its markers do not match.
    """
    if not page.is_file():
        remedy = "name Markdown pages with marked tables"
        raise UsageError(f"{page} does not exist or is no file", key="tables", remedy=remedy)
    try:
        text = page.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        message = f"{page} must be a Markdown page, got a file that is not UTF-8 text"
        raise UsageError(message, key="tables") from error
    # A regular expression finds complete tables only: what it does not find would stay as it is.
    begins = text.count(_BEGIN)
    ends = text.count(_END)
    if not begins and not ends:
        remedy = f"write one between '{_BEGIN} -->' and '{_END}'"
        raise UsageError(f"{page} has no marked table", key="tables", remedy=remedy)
    if begins != ends:
        message = f"{page} has {begins} '{_BEGIN} ... -->' and {ends} '{_END}'"
        remedy = "end each table" if begins > ends else "start each table"
        raise UsageError(message, key="tables", remedy=remedy)
    if len(MARKED.findall(text)) != begins:
        message = f"{page} has a marker that is out of place"
        remedy = f"write each table between a line '{_BEGIN} ... -->' and '{_END}'"
        raise UsageError(message, key="tables", remedy=remedy)
    return text


def place_table(page: Path, title: str, table: str, notes: str, *, scores: str = "") -> None:
    """Replace the marked table of a page, and its scores. A page that does not exist is created.

    Args:
        page: The page.
        title: Title of a new page.
        table: Text of the table, with its markers.
        notes: Text between markers below the table of a new page; replaced in a page with these
            markers.
        scores: Text between the markers of scores, which are placed below the table; empty for
            none.

    Raises:
        UsageError: The page has no marked table, or several.
    """
    below = f"<!-- notes -->\n\n{notes}\n\n<!-- end of notes -->"
    text = page.read_text() if page.exists() else f"# {title}\n\n{table}\n\n{below}\n"
    # A function, because a text would be searched for references such as \1.
    placed, count = MARKED.subn(lambda match: table, text)
    if count != 1:
        raise UsageError(f"{page} must have one marked table, it has {count}", key="page")
    placed = _NOTES.sub(lambda match: below, placed)
    if scores:
        block = f"<!-- scores -->\n\n{scores}\n\n<!-- end of scores -->"
        placed, count = _SCORES.subn(lambda match: block, placed)
        if count == 0:
            placed = placed.replace(_END, f"{_END}\n\n{block}")
    page.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(page) as file:
        file.write(placed.encode())


def plain_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table with a line per mapping and a column per key.

    >>> print(plain_table([{"a": "1", "b": "2"}, {"a": "3"}]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    | 3 |  |
    """
    head = list(dict.fromkeys(name for row in rows for name in row))
    lines = [head, ["---"] * len(head)]
    for row in rows:
        lines.append([escaped(row.get(name, "")) for name in head])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _split_rows(page: Path, table: str) -> tuple[list[str], list[list[str]]]:
    """Return the cells of the head and of every row."""
    lines = []
    for line in table.splitlines():
        if line.strip():
            lines.append(line.strip()[1:-1])  # without the outer bars
    if len(lines) > 1 and not re.fullmatch(r"[-:| ]+", lines[1]):
        rule = lines[1].strip()
        message = f"a table must have a rule below its head, got {rule} in {page}"
        raise UsageError(message, key="tables")
    cells = []
    for line in lines[:1] + lines[2:]:
        cells.append([cell.strip() for cell in _BAR.split(line)])
    return (cells[0], cells[1:]) if cells else ([""], [])


def _recipe_of(page: Path, head: Sequence[str]) -> str:
    for name in head:
        match = _RECIPE.fullmatch(name)
        if match is not None:
            return match[1] or match[2]
    message = f"a table must have a column `yamame <recipe> ...`, got {head} in {page}"
    raise UsageError(message, key="tables")


def _check_columns(page: Path, head: Sequence[str], typed: Sequence[str]) -> None:
    known = {*_TYPED, *typed, *COLUMNS}
    for name in head:
        if name not in known and not _RECIPE.fullmatch(name):
            columns = ", ".join(COLUMNS)
            message = f"a column must be typed or one of {columns}, got {name} in {page}"
            raise UsageError(message, key="tables")


def _read_row(page: Path, head: Sequence[str], cells: Sequence[str]) -> Cells:
    if len(cells) != len(head):
        line = " | ".join(cells)
        message = f"a row must have {len(head)} cells, got {line} in {page}"
        raise UsageError(message, key="tables")
    row = dict(zip(head, cells, strict=True))
    command = command_of(row)
    try:
        shlex.split(command)
    except ValueError as error:
        message = f"a command must be one, got {command} in {page}"
        raise UsageError(message, key="tables") from error
    mark = row.get("mark", "")
    if not re.fullmatch(r"(-?\d+(\.\d+)?)?", mark):
        raise UsageError(f"a mark must be a number, got {mark} in {page}", key="tables")
    return row
