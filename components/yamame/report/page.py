"""The HTML page of a report. It needs no other file: style, pictures and videos are inside.

The text is in the template ``page.html.jinja``; this module formats numbers. Jinja2 is imported
when a page is made, and escapes everything that the template does not mark as HTML.
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
from yamame.report.figures import COLOURS, SIGNS, draw_svg
from yamame.report.groups import Group
from yamame.report.plots import FEWEST_SEEDS, Plot, describe
from yamame.report.videos import first_frame
from yamame.system.installed import documentation_page

LARGEST_VIDEO = 3_000_000
"""Largest video in bytes that is inside the page. A larger one lies beside it."""
_MINUS = "\u2212"
_DASH = "\u2013"
_OUTCOMES = {"reached": "✓", "below": "▼", "above": "▲", UNKNOWN: "?"}


def render(content: Content, directory: Path, served_by: str | None) -> str:
    """Return the page; arguments are those of `write_report`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("yamame.report", ""),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name is an error instead of nothing
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "interval": interval,
        "seconds": seconds,
        "signed": signed,
        "count": count,
        "day": day,
        "data_uri": data_uri,
        "describe": describe,
        "first_frame": first_frame,
        "training_name": training_name,
        "draw_svg": draw_svg,
    }
    environment.tests["less_is_better"] = less_is_better
    environment.tests["small_video"] = lambda video: len(video) <= LARGEST_VIDEO

    num_groups = 0
    started = []
    for result in content.sections:
        num_groups += len(result.results)
        for entry in result.results:
            started += [run.started_ms for run in entry.group.runs]
    page = environment.get_template("page.html.jinja").render(
        content=content,
        served_by=served_by,
        # A relative address survives when the folder with runs and report is moved.
        relative=lambda folder: os.path.relpath(folder, directory.resolve()),
        started=started,
        num_groups=num_groups,
        infinity=math.inf,
        colours=COLOURS,
        signs=SIGNS,
        outcomes=_OUTCOMES,
        confidence=f"{content.resampling.confidence:.0%}",
        few=FEW,
        fewest_seeds=FEWEST_SEEDS,
        metrics_page=documentation_page("metrics"),
        video_name=video_name,
    )
    return page.strip() + "\n"


def training_name(plot: Plot) -> str:
    """Return the title of a picture of training, without its discount factor."""
    return plot.title.partition(", gamma ")[0]


def video_name(section: int, group: Group) -> str:
    """Return the name of the file of a video."""
    return f"section-{section}-video-{group.letter}.gif"


def number(value: float | None) -> str:
    """Format a number: three decimals below ten, thousands grouped, a dash for a missing one.

    >>> number(0.9), number(81920.0), number(-12.345), number(None)
    ('0.900', '81,920', '−12.3', '–')
    """
    if value is None or math.isnan(value):
        return _DASH
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    size = abs(value)
    if size < 10:
        digits = 3
    else:
        digits = 1 if size < 100 else 0
    return f"{value:,.{digits}f}".replace("-", _MINUS)


def interval(ends: Sequence[float] | None) -> str:
    """Format both ends of an interval in brackets; a dash without one.

    >>> interval((0.5, 1.0)), interval(None)
    ('[0.500, 1.000]', '–')
    """
    return _DASH if ends is None else f"[{', '.join(map(number, ends))}]"


def seconds(value: float | None) -> str:
    """Format seconds, below a hundred with one decimal.

    >>> seconds(6.337), seconds(184.2)
    ('6.3', '184')
    """
    if value is None or not math.isfinite(value):
        return _DASH
    digits = 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def signed(value: float) -> str:
    """Format a difference with its sign.

    >>> signed(0.25)
    '+0.250'
    """
    return f"+{number(value)}" if value > 0 else number(value)


def count(amount: int, noun: str) -> str:
    """Format an amount with its noun.

    >>> count(1, "seed"), count(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{amount} {noun}{'' if amount == 1 else 's'}"


def day(milliseconds: int) -> str:
    """Format milliseconds since 1970 as UTC, to the minute; a dash if it is no date.

    >>> day(1_700_000_000_000)
    '2023-11-14 22:13'
    """
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):  # a clock may have been wrong
        return _DASH


def data_uri(content: bytes, kind: str) -> str:
    """Return an address that holds an image.

    Args:
        content: The file.
        kind: ``png`` or ``gif``.
    """
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
