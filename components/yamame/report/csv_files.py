"""CSV files that a spreadsheet may open: no text in them is read as a formula."""

import csv
import io
from collections.abc import Iterable, Sequence

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a text that a spreadsheet would compute."""


def csv_bytes(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Returns the content of a CSV file with a header.

    >>> csv_bytes(["name", "value"], [["a", 0.5], ["b", None]])
    b'name,value\\na,0.5\\nb,\\n'
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode()


def guarded(text: str) -> str:
    """Puts an apostrophe before a text that a spreadsheet would take for a formula.

    >>> guarded("+ablation=no_memory"), guarded("seed=1")
    ("'+ablation=no_memory", 'seed=1')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def unguarded(text: str) -> str:
    """Reverses `guarded`.

    >>> unguarded("'+ablation=no_memory"), unguarded("it's")
    ('+ablation=no_memory', "it's")
    """
    return text[1:] if text.startswith("'") and text[1:].startswith(_FORMULA) else text
