"""Plots as PNG files: lines with bands, one colour, dash and marker per group, on a light or a dark ground.

Matplotlib and Pillow are imported when a picture is made.
"""

import io
from typing import Any, Literal

from yamame.report.plots import Line, Plot

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


def draw(plot: Plot, theme: Theme = "light") -> bytes:
    """The picture as a PNG of at most 256 colours, which take a third of the room."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator
    from PIL import Image

    ground, ink, grid = _GROUNDS[theme]
    style: dict[Any, Any] = {"axes.edgecolor": grid, "font.size": 10.0, "text.parse_math": False}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink)
    with mpl.rc_context(style):
        height = 3.1 + 0.2 * len(plot.lines)
        figure = Figure(figsize=(4.8, height), dpi=150, layout="constrained", facecolor=ground)
        axes = figure.add_subplot(facecolor=ground, xlabel=plot.x_label, ylabel=plot.y_label)
        axes.set_title(plot.title, fontsize=10.5, loc="left", fontweight="bold")
        axes.grid(color=grid, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        for line in plot.lines:
            _draw_line(axes, line, theme)
        if plot.share:
            axes.set_ylim(-0.03, 1.03)
        if plot.expected is not None:
            bottom, top = axes.get_ylim()
            low, high = max(plot.expected[0], bottom), min(plot.expected[1], top)
            if low < high:
                axes.axhspan(low, high, color=ink, alpha=0.08, linewidth=0, label="expected")
                axes.set_ylim(bottom, top)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=plot.whole))
        if axes.get_xlim()[1] >= 10_000:
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        figure.legend(loc="outside lower left", frameon=False, fontsize=9, handlelength=3)
        picture, reduced = io.BytesIO(), io.BytesIO()
        figure.savefig(picture, format="png", metadata={"Software": None})
    with Image.open(picture) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
            reduced, format="PNG", optimize=True
        )
    return reduced.getvalue()


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
    if curve.band is not None:
        axes.fill_between(curve.x, *curve.band, color=colour, alpha=0.16, linewidth=0)
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
