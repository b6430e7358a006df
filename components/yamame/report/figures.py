"""Pictures of plots and attention maps, drawn without a display.

A plot becomes a PNG with title and legend, or an SVG for a page that has both in its own text.
Matplotlib is imported when a picture is drawn.
"""

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from yamame.checks import require
from yamame.evaluation.intervals import with_width
from yamame.files.atomic import atomic_writer
from yamame.report.plots import Curve, Line, Plot
from yamame.report.videos import first_frame as first_frame
from yamame.report.videos import write_gif as write_gif
from yamame.report.videos import write_mp4 as write_mp4

_INK = "#1c2128"
_GRID = "#d5dae1"
COLOURS = ("#0060a8", "#c44e00", "#00795a", "#a3358a", "#7a5c00", "#39788f", "#b3263a", "#5b5b5b")
"""Colours of the groups, in order. They repeat, with other dashes and markers."""
_DASHES = ("-", "--", "-.", ":")
_MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖"}
SIGNS = tuple(_MARKERS.values())
"""Markers of the groups as text, in order."""
_WIDEST_LABEL = 54
_WIDEST_TITLE = 50
_WIDEST_Y_LABEL = 28


def draw(plot: Plot) -> bytes:
    """Draw a plot as a PNG."""
    height = 3.1 + 0.2 * len(plot.lines)  # the legend has a row per line
    figure, axes = _figure(plot, (4.8, height))
    axes.set_title(fill(plot.title, _WIDEST_TITLE), fontsize=10.5, loc="left", fontweight="bold")
    figure.legend(loc="outside lower left", frameon=False, fontsize=9, handlelength=3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150, metadata={"Software": None})
    return picture.getvalue()


def draw_svg(plot: Plot) -> str:
    """Draw the axes of a plot as an SVG in the colours of a page.

    A browser shows the value of a point under the pointer.
    """
    import matplotlib as mpl

    figure, axes = _figure(plot, (2.1, 1.7) if plot.family else (4.4, 2.9))
    figure.set(dpi=72, frameon=False)  # 72 dots are an inch of an SVG
    axes.patch.set_visible(False)
    text = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # The salt keeps ids of one plot apart from those of others on the page.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": plot.name}):
        figure.savefig(text, format="svg", metadata=no_metadata)

    # Ids with a number are never referred to; different pictures would have equal ones.
    drawing = re.sub(r' id="[\w.]+_\d+"', "", text.getvalue())
    # The page defines these variables, for a light and for a dark theme.
    variables = {_INK: "--ink", _GRID: "--line"}
    for index, colour in enumerate(COLOURS):
        variables[colour] = f"--c{index}"
    for colour, variable in variables.items():
        drawing = drawing.replace(colour, f"var({variable})")

    inside = drawing[drawing.index("<svg") + 5 : drawing.rindex("</svg>")]
    head = f'<svg role="img" aria-label="{escape(plot.alt)}" '
    return f"{head}{inside}{_value_circles(plot, axes)}</svg>"


def _value_circles(plot: Plot, axes: Any) -> str:
    """Return an invisible circle per point, with the text that a browser shows at the pointer."""
    height = axes.figure.bbox.height
    circles = []
    for line in plot.lines:
        curve = line.curve
        positions = axes.transData.transform(np.stack([curve.x, curve.y], 1))
        for index, (right, up) in enumerate(positions):
            ends = ""
            if curve.band is not None:
                known = with_width(float(curve.band[0][index]), float(curve.band[1][index]))
                if known is not None:
                    ends = f" [{known[0]:.3g}, {known[1]:.3g}]"
            value = f"{curve.y[index]:.3g}{ends} at {curve.x[index]:,.6g} {plot.x_label}"
            title = escape(f"{line.name}: {value}")
            # An SVG counts from the top, Matplotlib from the bottom.
            centre = f'cx="{right:.1f}" cy="{height - up:.1f}"'
            circles.append(f'<circle class="value" {centre} r="5"><title>{title}</title></circle>')
    return "\n".join(circles)


def _figure(plot: Plot, size: tuple[float, float]) -> tuple[Any, Any]:
    """Return a figure of a width and a height in inches, and its axes with all lines."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    is_small = bool(plot.family)
    style: dict[Any, Any] = {
        "axes.edgecolor": _GRID,
        "axes.labelcolor": _INK,
        "text.color": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "font.size": 8.5 if is_small else 10.0,
        "text.parse_math": False,  # names of runs may hold dollar signs
    }
    with mpl.rc_context(style):
        # Padding in inches: a browser's digits may be wider than those that are measured here.
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1))
        axes = figure.add_subplot()
        if not is_small:
            axes.set(xlabel=plot.x_label, ylabel=fill(plot.y_label, _WIDEST_Y_LABEL))
        axes.grid(color=_GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        for line in plot.lines:
            _draw_line(axes, line)
        if plot.share:
            axes.set_ylim(-0.03, 1.03)
        if plot.expected is not None:
            _shade(axes, *plot.expected)
        _format_x_axis(axes, is_small=is_small, whole=plot.whole)
    return figure, axes


def _shade(axes: Any, low: float, high: float) -> None:
    """Shade an interval of the vertical axis, without a change of its limits."""
    bottom, top = axes.get_ylim()
    low = max(low, bottom)
    high = min(high, top)
    if low < high:
        axes.axhspan(low, high, color=_INK, alpha=0.08, linewidth=0, label="expected")
        axes.set_ylim(bottom, top)


def _format_x_axis(axes: Any, *, is_small: bool, whole: bool) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    # Numbers of a small picture would overlap.
    num_ticks = 3 if is_small else 6
    longest = 1_000 if is_small else 10_000
    axes.xaxis.set_major_locator(MaxNLocator(num_ticks, integer=whole))
    if axes.get_xlim()[1] >= longest:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_line(axes: Any, line: Line) -> None:
    curve, index = line.curve, line.index
    colour = COLOURS[index % len(COLOURS)]
    name = line.name
    if len(name) > _WIDEST_LABEL:
        name = name[: _WIDEST_LABEL - 1] + "…"
    if len(curve.runs) > 1:
        for x, y in curve.runs:
            # Points of a few runs stand for an interval, and a line through one is invisible.
            marker = "." if curve.band is None or len(x) == 1 else ""
            axes.plot(x, y, color=colour, linewidth=0.7, alpha=0.45, marker=marker, markersize=4)
    if curve.band is not None:
        axes.fill_between(curve.x, *curve.band, color=colour, alpha=0.16, linewidth=0)
    axes.plot(
        curve.x,
        curve.y,
        label=name,
        color=colour,
        linewidth=1.9,
        linestyle=_DASHES[index % len(_DASHES)],
        marker=list(_MARKERS)[index % len(_MARKERS)],
        markersize=4,
        markevery=max(1, len(curve.x) // 12),  # about twelve markers tell lines apart
    )


def learning_curve(
    path: Path,
    curves: Mapping[str, Sequence[ArrayLike]],
    *,
    x_label: str = "environment steps",
    y_label: str = "success",
) -> Path:
    """Draw one line per curve as a PNG, with a band if an interval is given.

    Args:
        path: The PNG file.
        curves: Name to ``(x, y)`` or ``(x, y, low, high)``, arrays of equal length.
        x_label: Label of the horizontal axis, which counts something.
        y_label: Label of the vertical axis.

    Raises:
        ValueError: A curve has another number of arrays, or arrays of different lengths.
    """
    owner = "learning_curve"
    lines = []
    for index, (name, curve) in enumerate(curves.items()):
        arrays = [np.asarray(array, dtype=float) for array in curve]
        has_arrays = len(arrays) in (2, 4)
        require(owner, name, len(arrays), has_arrays, "be (x, y) or (x, y, low, high)")
        lengths = [len(array) for array in arrays]
        require(owner, name, lengths, len(set(lengths)) == 1, "have arrays of equal length")
        x, y, *band = arrays
        lines.append(Line(name, Curve(x, y, (band[0], band[1]) if band else None), index))
    plot = Plot(path.stem, "", x_label, y_label, lines, whole=True)
    with atomic_writer(path) as file:
        file.write(draw(plot))
    return path


def draw_attention(path: Path, maps: ArrayLike, *, title: str = "") -> Path:
    """Draw attention maps as a PNG: a row of pictures per layer, a column per head.

    Brightness is the square root of the probability, because a timestep among hundreds takes a
    small share.

    Args:
        path: The PNG file.
        maps: ``[layers, H, L, L]``, from `yamame.trajectory.attention_maps`.
        title: Title above the pictures.

    Raises:
        ValueError: If ``maps`` has another shape.
    """
    from matplotlib.figure import Figure

    array = np.asarray(maps, dtype=float)
    is_square = array.ndim == 4 and array.shape[2] == array.shape[3] and array.size > 0
    require("draw_attention", "maps", list(array.shape), is_square, "be [layers, H, L, L]")
    layers, heads = array.shape[:2]
    size = (1.6 * heads + 0.8, 1.6 * layers + 0.8)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    figure.suptitle(title)
    figure.supxlabel("timestep looked at")
    figure.supylabel("timestep that looks")
    for index, axes in enumerate(figure.subplots(layers, heads, squeeze=False).flat):
        layer, head = divmod(index, heads)
        brightness = np.sqrt(array[layer, head])
        axes.imshow(brightness, vmin=0.0, vmax=1.0, cmap="magma", interpolation="nearest")
        axes.set_title(f"layer {layer} head {head}", fontsize=6)
        axes.tick_params(labelsize=5)
    with atomic_writer(path) as file:
        figure.savefig(file, format="png")
    return path
