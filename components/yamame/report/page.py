"""One HTML page of a report that needs nothing else: style, pictures and videos are inside it.

What it says is in the template ``page.html.jinja``; here is how numbers are written. Jinja2 is
imported when a page is made, and escapes whatever the template does not mark as HTML.
"""

import base64
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from yamame.evaluation.intervals import FEW
from yamame.report.content import UNKNOWN, Content
from yamame.report.estimates import less_is_better
from yamame.report.figures import COLOURS, SIGNS, draw_svg, first_frame
from yamame.report.groups import Group
from yamame.report.plots import describe

LARGEST_VIDEO = 3_000_000
"""Bytes up to which a video is inside the page; a larger one lies beside it."""
_MINUS, _DASH = "\u2212", "\u2013"
_OUTCOMES = {"reached": "✓", "below": "▼", "above": "▲", UNKNOWN: "?"}


def render(content: Content, directory: Path, served_by: str | None) -> str:
    """The page, of which the arguments are those of `write_report`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("yamame.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (
        number,
        interval,
        seconds,
        signed,
        count,
        day,
        data_uri,
        describe,
        first_frame,
        draw_svg,
    )
    environment.filters |= {function.__name__: function for function in filters}
    environment.tests |= {
        "less_is_better": less_is_better,
        "small_video": lambda video: len(video) <= LARGEST_VIDEO,
    }
    groups = [entry.group for result in content.sections for entry in result.results]
    page = environment.get_template("page.html.jinja").render(
        content=content,
        served_by=served_by,
        relative=lambda folder: os.path.relpath(folder, directory.resolve()),
        started=[run.started_ms for group in groups for run in group.runs],
        num_groups=len(groups),
        infinity=math.inf,
        colours=COLOURS,
        signs=SIGNS,
        outcomes=_OUTCOMES,
        confidence=f"{content.resampling.confidence:.0%}",
        few=FEW,
        video_name=video_name,
    )
    return page.strip() + "\n"


def video_name(section: int, group: Group) -> str:
    """Name of the file of a video."""
    return f"section-{section}-video-{group.letter}.gif"


def number(value: float | None) -> str:
    """Three digits after the point below ten, thousands grouped; a dash where there is none.

    >>> number(0.9), number(81920.0), number(-12.345), number(None)
    ('0.900', '81,920', '−12.3', '–')
    """
    if value is None or math.isnan(value):
        return _DASH
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    size = abs(value)
    digits = 3 if size < 10 else 1 if size < 100 else 0
    return f"{value:,.{digits}f}".replace("-", _MINUS)


def interval(ends: Sequence[float] | None) -> str:
    """Both ends in brackets; a dash where there is none.

    >>> interval((0.5, 1.0)), interval(None)
    ('[0.500, 1.000]', '–')
    """
    return _DASH if ends is None else f"[{', '.join(map(number, ends))}]"


def seconds(value: float | None) -> str:
    """Seconds, to a tenth below a hundred.

    >>> seconds(6.337), seconds(184.2)
    ('6.3', '184')
    """
    return (
        _DASH
        if value is None or not math.isfinite(value)
        else f"{value:,.{1 if value < 100 else 0}f}"
    )


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


def day(milliseconds: int) -> str:
    """A time since 1970, in UTC to the minute.

    >>> day(1_700_000_000_000)
    '2023-11-14 22:13'
    """
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def data_uri(content: bytes, kind: str) -> str:
    """An image as an address that holds it."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
