"""What there is to look at: plots, attention maps and videos, made without a display.

A plot is a PNG that stands alone, with title and legend, or an SVG for a page that says both in its
own words. Matplotlib, Pillow and PyAV are imported when a picture is made.
"""

import io
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from html import escape
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from yamame.checks import require
from yamame.evaluation.intervals import with_width
from yamame.files.atomic import atomic_writer
from yamame.report.plots import Curve, Line, Plot

_INK, _GRID = "#1c2128", "#d5dae1"
COLOURS = ("#0060a8", "#c44e00", "#00795a", "#a3358a", "#7a5c00", "#39788f", "#b3263a", "#5b5b5b")
"""Colours of the groups, in order; they come again after the last one, with other dashes and
markers.
"""
_DASHES = ("-", "--", "-.", ":")
_MARKERS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖"}
SIGNS = tuple(_MARKERS.values())
"""The markers of the groups as text, in order."""
_WIDEST_LABEL, _WIDEST_TITLE = 54, 50


def draw(plot: Plot) -> bytes:
    """The picture as a PNG."""
    figure, axes = _figure(plot, (4.8, 3.1 + 0.2 * len(plot.lines)))
    axes.set_title(fill(plot.title, _WIDEST_TITLE), fontsize=10.5, loc="left", fontweight="bold")
    figure.legend(loc="outside lower left", frameon=False, fontsize=9, handlelength=3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150, metadata={"Software": None})
    return picture.getvalue()


def draw_svg(plot: Plot) -> str:
    """The axes alone in the colours of a page; every point tells its value to whoever points at
    it.
    """
    import matplotlib as mpl

    figure, axes = _figure(plot, (2.1, 1.7) if plot.family else (4.4, 2.9))
    figure.set(dpi=72, frameon=False)  # 72 dots are an inch of an SVG
    axes.patch.set_visible(False)
    text, nothing = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": plot.name}):
        figure.savefig(text, format="svg", metadata=nothing)
    # Ids of hashes are referred to, and no other picture's.
    drawing = re.sub(r' id="[\w.]+_\d+"', "", text.getvalue())
    names = {colour: f"--c{index}" for index, colour in enumerate(COLOURS)} | {
        _INK: "--ink",
        _GRID: "--line",
    }
    for colour, name in names.items():
        drawing = drawing.replace(colour, f"var({name})")
    head = f'<svg role="img" aria-label="{escape(plot.alt)}" '
    inside = drawing[drawing.index("<svg") + 5 : drawing.rindex("</svg>")]
    return f"{head}{inside}{_values(plot, axes)}</svg>"


def _values(plot: Plot, axes: Any) -> str:
    """A circle that nobody sees on every point of a mean, with what a browser shows when it is
    pointed at.
    """
    circles = []
    for line in plot.lines:
        places = axes.transData.transform(np.stack([line.curve.x, line.curve.y], 1))
        for index, (right, up) in enumerate(places):
            band = line.curve.band
            known = (
                None if band is None else with_width(float(band[0][index]), float(band[1][index]))
            )
            ends = "" if known is None else f" [{known[0]:.3g}, {known[1]:.3g}]"
            x, y = line.curve.x[index], line.curve.y[index]
            label = f"{line.name}: {y:.3g}{ends} at {x:,.6g} {plot.x_label}"
            place = f'cx="{right:.1f}" cy="{axes.figure.bbox.height - up:.1f}"'
            circles.append(
                f'<circle class="value" {place} r="5"><title>{escape(label)}</title></circle>'
            )
    return "\n".join(circles)


def _figure(plot: Plot, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure of a width and a height in inches, and its axes with all lines."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    is_small = bool(plot.family)
    style: dict[Any, Any] = {"axes.edgecolor": _GRID, "font.size": 8.5 if is_small else 10.0}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK)
    with mpl.rc_context(style | {"text.parse_math": False}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot(
            xlabel="" if is_small else plot.x_label, ylabel="" if is_small else plot.y_label
        )
        axes.grid(color=_GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        for line in plot.lines:
            _draw_line(axes, line)
        if plot.share:
            axes.set_ylim(-0.03, 1.03)
        if plot.expected is not None:
            bottom, top = axes.get_ylim()
            low, high = max(plot.expected[0], bottom), min(plot.expected[1], top)
            if low < high:
                axes.axhspan(low, high, color=_INK, alpha=0.08, linewidth=0, label="expected")
                axes.set_ylim(bottom, top)
        axes.xaxis.set_major_locator(MaxNLocator(3 if is_small else 6, integer=plot.whole))
        if axes.get_xlim()[1] >= (1_000 if is_small else 10_000):
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure, axes


def _draw_line(axes: Any, line: Line) -> None:
    curve, index = line.curve, line.index
    colour = COLOURS[index % len(COLOURS)]
    name = line.name if len(line.name) <= _WIDEST_LABEL else line.name[: _WIDEST_LABEL - 1] + "…"
    if len(curve.runs) > 1:
        for x, y in curve.runs:
            axes.plot(
                x, y, color=colour, linewidth=0.7, alpha=0.45, marker="." if len(x) == 1 else ""
            )
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
        markevery=max(1, len(curve.x) // 12),
    )


def learning_curve(
    path: Path,
    curves: Mapping[str, Sequence[ArrayLike]],
    *,
    x_label: str = "environment steps",
    y_label: str = "success",
) -> Path:
    """Draws one line per curve, with a band where an interval is given.

    Args:
        path: The PNG file.
        curves: Name to ``(x, y)`` or ``(x, y, low, high)``, arrays of equal length.
        x_label: Label of the horizontal axis, which counts something.
        y_label: Label of the vertical axis.

    Raises:
        ValueError: A curve has another number of arrays, or arrays of different lengths.
    """
    lines = []
    for index, (name, curve) in enumerate(curves.items()):
        arrays = [np.asarray(array, dtype=float) for array in curve]
        lengths = [len(array) for array in arrays]
        require(
            "learning_curve",
            name,
            len(arrays),
            len(arrays) in (2, 4),
            "be (x, y) or (x, y, low, high)",
        )
        require(
            "learning_curve", name, lengths, len(set(lengths)) == 1, "have arrays of equal length"
        )
        x, y, *band = arrays
        lines.append(Line(name, Curve(x, y, (band[0], band[1]) if band else None), index))
    with atomic_writer(path) as file:
        file.write(draw(Plot(path.stem, "", x_label, y_label, lines, whole=True)))
    return path


def draw_attention(path: Path, maps: ArrayLike, *, title: str = "") -> Path:
    """Draws what `yamame.trajectory.attention_maps` gives: a row of pictures per layer, a column
    per head.

    Brightness is the square root of the probability, for a timestep among hundreds takes a small
    share.

    Args:
        path: The PNG file.
        maps: ``[layers, H, L, L]``.
        title: Stands above.

    Raises:
        ValueError: If ``maps`` has another shape.
    """
    from matplotlib.figure import Figure

    array = np.asarray(maps, dtype=float)
    is_square = array.ndim == 4 and array.shape[2] == array.shape[3] and array.size > 0
    require("draw_attention", "maps", list(array.shape), is_square, "be [layers, H, L, L]")
    layers, heads = array.shape[:2]
    figure = Figure(figsize=(1.6 * heads + 0.8, 1.6 * layers + 0.8), dpi=120, layout="constrained")
    figure.suptitle(title)
    figure.supxlabel("timestep looked at")
    figure.supylabel("timestep that looks")
    for index, axes in enumerate(figure.subplots(layers, heads, squeeze=False).flat):
        layer, head = divmod(index, heads)
        axes.imshow(
            np.sqrt(array[layer, head]), vmin=0.0, vmax=1.0, cmap="magma", interpolation="nearest"
        )
        axes.set_title(f"layer {layer} head {head}", fontsize=6)
        axes.tick_params(labelsize=5)
    with atomic_writer(path) as file:
        figure.savefig(file, format="png")
    return path


def write_gif(path: Path, frames: ArrayLike, *, fps: float = 10.0) -> Path:
    """Writes an endless animation.

    Args:
        path: The GIF file.
        frames: ``[T, H, W, 3]`` uint8, at least one frame.
        fps: Frames per second; GIF players show at most 50.

    Raises:
        ValueError: ``frames`` has another shape or type, or ``fps`` is not in (0, 50].
    """
    from PIL import Image

    images = [
        Image.fromarray(frame) for frame in _checked_frames("write_gif", frames, fps, most=50.0)
    ]
    with atomic_writer(path) as file:
        images[0].save(
            file,
            format="GIF",
            save_all=True,
            append_images=images[1:],
            duration=round(1000 / fps),
            loop=0,
        )
    return path


def write_mp4(path: Path, frames: ArrayLike, *, fps: float = 10.0) -> Path:
    """Writes a video (H.264). Sides of odd length are made even, as the format has it, by repeating
    the last pixels.

    Args:
        path: The MP4 file.
        frames: ``[T, H, W, 3]`` uint8, at least one frame.
        fps: Frames per second, up to 240.

    Raises:
        ImportError: PyAV is not installed.
        ValueError: ``frames`` has another shape or type, or ``fps`` is not in (0, 240].
    """
    array = _checked_frames("write_mp4", frames, fps, most=240.0)
    try:
        import av
    except ImportError as error:
        raise ImportError(
            "write_mp4: the package av must be installed, run: pip install 'yamame[video]'"
        ) from error
    height, width = array.shape[1:3]
    array = np.pad(array, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    with atomic_writer(path) as file, av.open(file, "w", format="mp4") as video:
        stream = video.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        stream.height, stream.width, stream.pix_fmt = array.shape[1], array.shape[2], "yuv420p"
        for frame in array:
            video.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        video.mux(stream.encode())
    return path


def _checked_frames(
    caller: str, frames: ArrayLike, fps: float, *, most: float
) -> npt.NDArray[np.uint8]:
    array = np.asarray(frames)
    is_video = (
        array.ndim == 4 and array.shape[-1] == 3 and len(array) > 0 and array.dtype == np.uint8
    )
    got = (array.dtype.name, *array.shape)
    require(caller, "frames", got, is_video, "be uint8 [T, H, W, 3]")
    require(caller, "fps", fps, 0 < fps <= most, f"be in (0, {most:g}]")
    return array


def first_frame(gif: bytes) -> bytes | None:
    """The first frame of an animation as a PNG, for those who want nothing to move; None where it
    is no image.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(gif)) as image:
            buffer = io.BytesIO()
            image.convert("RGB").save(buffer, format="PNG")
            return buffer.getvalue()
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
