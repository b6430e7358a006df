"""Small pieces of HTML and numbers as people read them. Text is escaped here, and only here."""

import base64
import html
import math
from collections.abc import Sequence

MINUS, DASH = "\u2212", "\u2013"


def text(value: object) -> str:
    """Any text, escaped.

    >>> text("<b>")
    '&lt;b&gt;'
    """
    return html.escape(str(value), quote=True)


def number(value: float | None) -> str:
    """Three digits after the point below ten, thousands grouped; a dash where there is none.

    >>> number(0.9), number(81920.0), number(-12.345), number(None)
    ('0.900', '81,920', '−12.3', '–')
    """
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    size = abs(value)
    digits = 3 if size < 10 else 1 if size < 100 else 0
    return f"{value:,.{digits}f}".replace("-", MINUS)


def interval(ends: Sequence[float] | None) -> str:
    """Both ends in brackets; a dash where there is none.

    >>> interval((0.5, 1.0)), interval(None)
    ('[0.500, 1.000]', '–')
    """
    return (
        DASH if ends is None or any(math.isnan(end) for end in ends) else f"[{', '.join(map(number, ends))}]"
    )


def seconds(value: float | None) -> str:
    """Seconds, to a tenth below a hundred.

    >>> seconds(6.337), seconds(184.2)
    ('6.3', '184')
    """
    return DASH if value is None or not math.isfinite(value) else f"{value:,.{1 if value < 100 else 0}f}"


def signed(value: float) -> str:
    """A difference, with its sign.

    >>> signed(0.25)
    '+0.250'
    """
    return f"+{number(value)}" if value > 0 else number(value)


def count(amount: int, noun: str) -> str:
    """An amount with its noun.

    >>> count(1, "seed"), count(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{amount} {noun}{'' if amount == 1 else 's'}"


def cell(main: str, *notes: str) -> str:
    """The content of a cell, escaped: a value, and notes in smaller letters below it, one per line."""
    return text(main) + "".join(f'<small class="together">{text(note)}</small>' for note in notes if note)


def table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names the rows.

    Cells are HTML already. On a narrow screen every row becomes a card; the roles keep it a table for those who
    listen to it.
    """
    head = "".join(f'<th scope="col" role="columnheader">{text(header)}</th>' for header in headers)
    body = "".join(
        f'<tr role="row"><th scope="row" role="rowheader">{first}</th>'
        + "".join(
            f'<td role="cell" data-label="{text(header)}"><span>{content}</span></td>'
            for header, content in zip(headers[1:], rest, strict=True)
        )
        + "</tr>\n"
        for first, *rest in rows
    )
    return (
        f'<table role="table"><caption>{text(caption)}</caption>\n<thead role="rowgroup"><tr role="row">{head}</tr>'
        f'</thead>\n<tbody role="rowgroup">\n{body}</tbody></table>\n'
    )


def data_uri(content: bytes, kind: str) -> str:
    """An image as an address that holds it."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def picture(default: str, alternatives: Sequence[tuple[str, str]], alt: str) -> str:
    """An image, with others for certain media.

    Args:
        default: Address of the image.
        alternatives: Media queries with the addresses that they choose.
        alt: What it shows.
    """
    sources = "".join(f'<source media="{text(media)}" srcset="{uri}">' for media, uri in alternatives)
    return f'<picture>{sources}<img src="{default}" alt="{text(alt)}"></picture>'
