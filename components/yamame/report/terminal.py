"""What people read in a terminal: tables with columns, and pictures made of coloured half
blocks.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table

from yamame.checks import require, require_at_least

_PLAIN_WIDTH = 120


def print_columns(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints a table with a line per mapping and a column per key; no control characters in a log.

    Args:
        title: Stands above.
        rows: What the columns hold; a key that a line lacks is shown as ``-``, floats with four
            digits.
    """
    terminal = sys.stdout.isatty()
    console = Console(
        force_terminal=terminal, width=None if terminal else _PLAIN_WIDTH, highlight=False
    )
    table = Table(title=title, title_justify="left", box=box.ROUNDED if terminal else box.ASCII)
    names = list(dict.fromkeys(name for row in rows for name in row))
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(row.get(name)) for name in names))
    console.print(table, markup=False)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def half_blocks(frame: npt.NDArray[np.uint8], *, width: int = 40) -> str:
    """A picture as lines of text: every sign is two pixels, one above the other, in 24-bit colours.

    Args:
        frame: ``[H, W, 3]`` RGB; taken at every n-th pixel to fit.
        width: Signs in a line at most.

    Raises:
        ValueError: If the picture has another form or the width is not positive.
    """
    is_picture = (
        frame.ndim == 3 and frame.shape[-1] == 3 and frame.dtype == np.uint8 and frame.size > 0
    )
    require(
        "half_blocks", "frame", (frame.dtype.name, *frame.shape), is_picture, "be uint8 [H, W, 3]"
    )
    require_at_least("half_blocks", 1, width=width)
    columns = min(width, frame.shape[1])
    lines = max(1, round(frame.shape[0] * columns / frame.shape[1] / 2))
    down = np.arange(2 * lines) * frame.shape[0] // (2 * lines)
    across = np.arange(columns) * frame.shape[1] // columns
    pixels = frame[down + frame.shape[0] // (4 * lines)][
        :, across + frame.shape[1] // (2 * columns)
    ]
    sign = "\x1b[38;2;{};{};{};48;2;{};{};{}m▀"
    pairs = np.concatenate([pixels[::2], pixels[1::2]], -1).tolist()
    return "\n".join("".join(sign.format(*pair) for pair in line) + "\x1b[0m" for line in pairs)
