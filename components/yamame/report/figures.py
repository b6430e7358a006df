"""What there is to look at: plots on a light or a dark ground, attention maps and videos, made without a display.

Matplotlib, Pillow and PyAV are imported when a picture is made.
"""

import io
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from yamame.checks import require
from yamame.files.atomic import atomic_writer
from yamame.report.plots import Curve, Line, Plot

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
        require("learning_curve", name, len(arrays), len(arrays) in (2, 4), "be (x, y) or (x, y, low, high)")
        require("learning_curve", name, lengths, len(set(lengths)) == 1, "have arrays of equal length")
        x, y, *band = arrays
        lines.append(Line(name, Curve(x, y, (band[0], band[1]) if band else None), index))
    with atomic_writer(path) as file:
        file.write(draw(Plot(path.stem, "", x_label, y_label, lines, whole=True)))
    return path


def draw_attention(path: Path, maps: ArrayLike, *, title: str = "") -> Path:
    """Draws what `yamame.trajectory.attention_maps` gives: a row of pictures per layer, a column per head.

    Brightness is the square root of the probability, for a timestep among hundreds takes a small share.

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
        axes.imshow(np.sqrt(array[layer, head]), vmin=0.0, vmax=1.0, cmap="magma", interpolation="nearest")
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

    images = [Image.fromarray(frame) for frame in _checked_frames("write_gif", frames, fps, most=50.0)]
    with atomic_writer(path) as file:
        images[0].save(
            file, format="GIF", save_all=True, append_images=images[1:], duration=round(1000 / fps), loop=0
        )
    return path


def write_mp4(path: Path, frames: ArrayLike, *, fps: float = 10.0) -> Path:
    """Writes a video (H.264). Sides of odd length are made even, as the format has it, by repeating the last pixels.

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


def _checked_frames(caller: str, frames: ArrayLike, fps: float, *, most: float) -> npt.NDArray[np.uint8]:
    array = np.asarray(frames)
    is_video = array.ndim == 4 and array.shape[-1] == 3 and len(array) > 0 and array.dtype == np.uint8
    got = (array.dtype.name, *array.shape)
    require(caller, "frames", got, is_video, "be uint8 [T, H, W, 3]")
    require(caller, "fps", fps, 0 < fps <= most, f"be in (0, {most:g}]")
    return array


def first_frame(gif: bytes) -> bytes | None:
    """The first frame of an animation as a PNG, for those who want nothing to move; None where it is no image."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(gif)) as image:
            buffer = io.BytesIO()
            image.convert("RGB").save(buffer, format="PNG")
            return buffer.getvalue()
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
