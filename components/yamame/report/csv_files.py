"""CSV files that are safe to open in a spreadsheet: no text is read as a formula."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

_APOSTROPHE = "'"
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
"""Beginnings of texts that a spreadsheet may compute, with the full-width forms of the signs."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def csv_bytes(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Return the content of a CSV file. All texts are guarded, also those of the header.

    >>> csv_bytes(["name", "value"], [["a", 0.5], ["=b", None]])
    b"name,value\\na,0.5\\n'=b,\\n"
    """
    lines = []
    for row in (columns, *rows):
        cells = [guarded(cell) if isinstance(cell, str) else cell for cell in row]
        text = io.StringIO(newline="")
        # With a line end of "\n" the writer would leave "\r" in a cell without quotes.
        csv.writer(text, lineterminator="\r\n").writerow(cells)
        lines.append(text.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines).encode()


def guarded(text: str) -> str:
    """Put an apostrophe before a text that is, or looks like, a formula or a guarded text.

    >>> guarded("+ablation=no_memory"), guarded("seed=1"), guarded("-0.5")
    ("'+ablation=no_memory", 'seed=1', '-0.5')
    """
    if _NUMBER.fullmatch(text):
        return text
    # A text with an apostrophe gets another one, because `unguarded` removes one from every text.
    if text.startswith(_APOSTROPHE) or _FORMULA.match(text):
        return _APOSTROPHE + text
    return text


def unguarded(text: str) -> str:
    """Reverse `guarded`.

    >>> unguarded("'+ablation=no_memory"), unguarded("it's"), unguarded(guarded("'=1"))
    ('+ablation=no_memory', "it's", "'=1")
    """
    return text.removeprefix(_APOSTROPHE)
