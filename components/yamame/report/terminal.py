"""Output for a terminal: tables with columns, and pictures made of coloured half blocks."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from yamame.checks import require, require_at_least
from yamame.system.messages import print_stdout, printable

# Columns of a log; Rich would wrap at 80.
_PLAIN_WIDTH = 120


def print_columns(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with a line per mapping and a column per key.

    Outside of a terminal, for example in a log, the table is plain text.

    Args:
        title: Title above the table.
        rows: Values by column. A missing key is shown as ``-``, floats with four digits.
    """
    terminal = sys.stdout.isatty()
    console = Console(
        force_terminal=terminal, width=None if terminal else _PLAIN_WIDTH, highlight=False
    )
    table = Table(box=box.ROUNDED if terminal else box.ASCII)
    names: dict[str, None] = {}  # keeps the order of first appearance
    for row in rows:
        names.update(dict.fromkeys(row))
    for index, name in enumerate(names):
        justify: Literal["left", "right"] = "right" if index else "left"
        # As `Text`, in which rich finds no markup: names and values may be a stranger's.
        table.add_column(Text(printable(name)), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(_text, map(row.get, names)))
    # Rich ends the process where the output has no reader.
    with console.capture() as captured:
        # Not the table's own title, which would be wrapped at its width.
        console.print(Text(printable(title), style="italic"), soft_wrap=True)
        console.print(table)
    # The names and values are escaped already, and the colours of a terminal are not to be.
    print_stdout(captured.get().rstrip("\n"), escape=False)


def _text(value: Any) -> Text:
    if value is None:
        return Text("-")
    return Text(f"{value:.4g}" if isinstance(value, float) else printable(str(value)))


def half_blocks(frame: npt.NDArray[np.uint8], *, width: int = 40) -> str:
    """Return a picture as lines of text in 24-bit colours.

    Every character shows two pixels, one above the other.

    Args:
        frame: ``[H, W, 3]`` RGB; every n-th pixel is taken to fit.
        width: Largest number of characters in a line.

    Raises:
        ValueError: If the picture has another form or the width is not positive.
    """
    has_shape = frame.ndim == 3 and frame.shape[-1] == 3 and frame.size > 0
    got = (frame.dtype.name, *frame.shape)
    require(
        "half_blocks", "frame", got, has_shape and frame.dtype == np.uint8, "be uint8 [H, W, 3]"
    )
    require_at_least("half_blocks", 1, width=width)

    columns = min(width, frame.shape[1])
    lines = max(1, round(frame.shape[0] * columns / frame.shape[1] / 2))
    # Pixels in the middle of the block that they stand for.
    down = np.arange(2 * lines) * frame.shape[0] // (2 * lines) + frame.shape[0] // (4 * lines)
    across = np.arange(columns) * frame.shape[1] // columns + frame.shape[1] // (2 * columns)
    pixels = frame[down][:, across]

    # The upper half block has the foreground colour (38), the rest of the cell the background (48).
    character = "\x1b[38;2;{};{};{};48;2;{};{};{}m▀"
    pairs = np.concatenate([pixels[::2], pixels[1::2]], -1)  # [lines, columns, 6]
    text = []
    for line in pairs.tolist():
        cells = [character.format(*pair) for pair in line]
        text.append("".join(cells) + "\x1b[0m")
    return "\n".join(text)
