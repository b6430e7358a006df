"""Pictures of a report: lines with bands, one colour, dash and marker per group, on a light or a dark ground.

Matplotlib and Pillow are imported when a picture is made.
"""

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from yamame.runs.report.curves import Curve

Theme = Literal["light", "dark"]
_GROUNDS = {"light": ("#ffffff", "#1c2128", "#d5dae1"), "dark": ("#161b22", "#e6edf3", "#3a424d")}
"""Ground, ink and grid."""
COLOURS = {
    "light": ("#0060a8", "#c44e00", "#00795a", "#a3358a", "#7a5c00", "#39788f", "#b3263a", "#5b5b5b"),
    "dark": ("#5ab0f2", "#ff9b57", "#3fce9f", "#e58fd0", "#e3c04a", "#8fd0e6", "#ff8490", "#b9b9b9"),
}
"""Colours of the groups, in order; they come again after the last one, with other dashes and markers."""
_DASHES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LONGEST_LABEL = 44


@dataclass(frozen=True)
class Line:
    """A curve with a name.

    Attributes:
        name: What the legend says.
        curve: The curve.
        index: Which colour, dash and marker it gets.
        shade: In [0, 1] to be coloured by a scale instead; None for the colour of the index.
    """

    name: str
    curve: Curve
    index: int
    shade: float | None = None


@dataclass(frozen=True)
class Plot:
    """A picture to be drawn.

    Attributes:
        name: Of the file, without its ending.
        title: What is shown.
        x_label: With its unit.
        y_label: With its unit.
        lines: At least one.
        expected: An interval to be shaded; infinite ends bound nothing.
        levels: Whole numbers only on the horizontal axis.
        share: The vertical axis goes from 0 to 1.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line] = field(default_factory=tuple)
    expected: tuple[float, float] | None = None
    levels: bool = False
    share: bool = False

    def alt(self) -> str:
        """What the picture shows, in words."""
        ends = "; ".join(
            f"{line.name} goes from {line.curve.y[0]:.3g} to {line.curve.y[-1]:.3g}" for line in self.lines
        )
        return f"{self.title}: {self.y_label} against {self.x_label}. {ends}."


def draw(plot: Plot, theme: Theme) -> bytes:
    """The picture as a PNG."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ground, ink, grid = _GROUNDS[theme]
    style: dict[Any, Any] = {"axes.edgecolor": grid, "font.size": 10.0, "text.parse_math": False}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink)
    with mpl.rc_context(style):
        height = 3.1 + 0.2 * len(plot.lines)
        figure = Figure(figsize=(4.8, height), dpi=150, layout="constrained", facecolor=ground)
        FigureCanvasAgg(figure)
        axes = figure.add_subplot(facecolor=ground)
        axes.set_title(plot.title, fontsize=10.5, loc="left", fontweight="bold")
        axes.set_xlabel(plot.x_label)
        axes.set_ylabel(plot.y_label)
        axes.grid(color=grid, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        for line in plot.lines:
            _draw_line(axes, line, theme)
        if plot.share:
            axes.set_ylim(-0.03, 1.03)
        if plot.expected is not None:
            _shade(axes, plot.expected, ink)
        _ticks(axes, plot.levels)
        figure.legend(loc="outside lower left", frameon=False, fontsize=9, handlelength=3)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return _reduced(buffer.getvalue())


def _reduced(png: bytes) -> bytes:
    """The same picture with at most 256 colours, a third of the size."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _draw_line(axes: Any, line: Line, theme: Theme) -> None:
    import matplotlib as mpl

    curve = line.curve
    if line.shade is None:
        colour: Any = COLOURS[theme][line.index % len(COLOURS[theme])]
    else:
        # The darkest and the lightest end of the scale would vanish in the ground.
        low, high = (0.0, 0.8) if theme == "light" else (0.25, 1.0)
        colour = mpl.colormaps["viridis"](low + (high - low) * line.shade)
    name = line.name if len(line.name) <= _LONGEST_LABEL else line.name[: _LONGEST_LABEL - 1] + "…"
    if len(curve.runs) > 1:
        for x, y in curve.runs:
            axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.45)
    if len(curve.low):
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(
        curve.x,
        curve.y,
        label=name,
        color=colour,
        linewidth=1.9,
        linestyle=_DASHES[line.index % len(_DASHES)],
        marker=_MARKERS[line.index % len(_MARKERS)],
        markersize=4,
        markevery=max(1, len(curve.x) // 12),
    )


def _shade(axes: Any, interval: tuple[float, float], ink: str) -> None:
    bottom, top = axes.get_ylim()
    low, high = max(interval[0], bottom), min(interval[1], top)
    if low < high:
        axes.axhspan(low, high, color=ink, alpha=0.08, linewidth=0, label="expected")
        axes.set_ylim(bottom, top)


def _ticks(axes: Any, levels: bool) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, integer=levels))
    if not levels and axes.get_xlim()[1] >= 10_000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def first_frame(gif: bytes) -> bytes | None:
    """The first frame of an animation as a PNG, for those who want nothing to move; None where it is no image."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(gif)) as image:
            buffer = io.BytesIO()
            image.convert("RGB").save(buffer, format="PNG")
            return buffer.getvalue()
    except (UnidentifiedImageError, OSError):
        return None


def lines(curves: Sequence[tuple[str, int, Curve | None]], *, shaded: bool = False) -> tuple[Line, ...]:
    """Lines of the curves that exist, given as name, index and curve; ``shaded`` colours them by a scale, in order."""
    known = [(name, index, curve) for name, index, curve in curves if curve is not None]
    shades = itertools.repeat(None) if not shaded else (i / max(1, len(known) - 1) for i in range(len(known)))
    return tuple(
        Line(name, curve, index, shade) for (name, index, curve), shade in zip(known, shades, strict=False)
    )
