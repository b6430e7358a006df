"""What people read in a terminal: tables with columns, and pictures made of coloured half blocks."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table

_PLAIN_WIDTH = 120


def print_columns(title: str, rows: Sequence[Mapping[str, Any]], *, stream: TextIO | None = None) -> None:
    """Prints a table with a line per mapping and a column per key; no control characters in a log.

    Args:
        title: Stands above.
        rows: What the columns hold; a key that a line lacks is shown as ``-``, floats with four digits.
        stream: Where to print; the standard output when None.
    """
    stream = sys.stdout if stream is None else stream
    terminal = stream.isatty()
    console = Console(
        file=stream, force_terminal=terminal, width=None if terminal else _PLAIN_WIDTH, highlight=False
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
    if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8 or 0 in frame.shape:
        raise ValueError(f"half_blocks: frame must be uint8 [H, W, 3], got {frame.dtype} {list(frame.shape)}")
    if width < 1:
        raise ValueError(f"half_blocks: width must be positive, got {width}")
    columns = min(width, frame.shape[1])
    lines = max(1, round(frame.shape[0] * columns / frame.shape[1] / 2))
    down = np.arange(2 * lines) * frame.shape[0] // (2 * lines)
    across = np.arange(columns) * frame.shape[1] // columns
    pixels = frame[down + frame.shape[0] // (4 * lines)][:, across + frame.shape[1] // (2 * columns)]
    text = []
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        signs = [_sign(*above, *below) for above, below in zip(upper, lower, strict=True)]
        text.append("".join(signs) + "\x1b[0m")
    return "\n".join(text)


def _sign(r: int, g: int, b: int, r2: int, g2: int, b2: int) -> str:
    return f"\x1b[38;2;{r};{g};{b};48;2;{r2};{g2};{b2}m▀"
