"""Pictures of a run: learning curves and animations, written as files without a display.

Matplotlib, Pillow and PyAV are imported when a picture is made.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from yamame.runs.atomic import atomic_writer


def learning_curve(
    path: str | Path,
    curves: Mapping[str, Sequence[ArrayLike]],
    *,
    x_label: str = "environment steps",
    y_label: str = "success",
) -> Path:
    """Draws one line per curve, with a band where an interval is given.

    Args:
        path: The PNG file.
        curves: Name to ``(x, y)`` or ``(x, y, low, high)``, arrays of equal length.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.

    Raises:
        ValueError: A curve has another number of arrays, or arrays of different lengths.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.4, 4.0), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
    for name, curve in curves.items():
        arrays = [np.asarray(array, dtype=float) for array in curve]
        if len(arrays) not in (2, 4):
            raise ValueError(f"learning_curve: {name} must be (x, y) or (x, y, low, high), got {len(arrays)}")
        lengths = [len(array) for array in arrays]
        if len(set(lengths)) > 1:
            raise ValueError(f"learning_curve: {name} must have arrays of equal length, got {lengths}")
        (line,) = axes.plot(arrays[0], arrays[1], label=name, marker="o", markersize=3)
        if len(arrays) == 4:
            axes.fill_between(arrays[0], arrays[2], arrays[3], color=line.get_color(), alpha=0.2, linewidth=0)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if curves:
        figure.legend(loc="outside lower left", ncols=2, frameon=False)
    path = Path(path)
    figure.savefig(path, format="png")
    return path


def write_gif(path: str | Path, frames: ArrayLike, *, fps: float = 10.0) -> Path:
    """Writes an endless animation.

    Args:
        path: The GIF file.
        frames: ``[T, H, W, 3]`` uint8, at least one frame.
        fps: Frames per second; GIF players show at most 50.

    Raises:
        ValueError: ``frames`` has another shape or type, or ``fps`` is not in (0, 50].
    """
    from PIL import Image

    array = _checked_film("write_gif", frames, fps, most=50.0)
    images = [Image.fromarray(frame) for frame in array]
    path = Path(path)
    images[0].save(
        path, format="GIF", save_all=True, append_images=images[1:], duration=round(1000 / fps), loop=0
    )
    return path


def write_mp4(path: str | Path, frames: ArrayLike, *, fps: float = 10.0) -> Path:
    """Writes a film (H.264). Sides of odd length are made even, as the format has it, by repeating the last pixels.

    Args:
        path: The MP4 file.
        frames: ``[T, H, W, 3]`` uint8, at least one frame.
        fps: Frames per second, up to 240.

    Raises:
        ImportError: PyAV is not installed.
        ValueError: ``frames`` has another shape or type, or ``fps`` is not in (0, 240].
    """
    array = _checked_film("write_mp4", frames, fps, most=240.0)
    try:
        import av
    except ImportError as error:
        raise ImportError(
            "write_mp4: the package av must be installed, run: pip install 'yamame[video]'"
        ) from error
    height, width = array.shape[1:3]
    array = np.pad(array, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    path = Path(path)
    with atomic_writer(path) as file, av.open(file, "w", format="mp4") as film:
        stream = film.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        stream.height, stream.width, stream.pix_fmt = array.shape[1], array.shape[2], "yuv420p"
        for frame in array:
            film.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        film.mux(stream.encode())
    return path


def _checked_film(caller: str, frames: ArrayLike, fps: float, *, most: float) -> npt.NDArray[np.uint8]:
    array = np.asarray(frames)
    if array.ndim != 4 or array.shape[-1] != 3 or array.shape[0] == 0 or array.dtype != np.uint8:
        raise ValueError(
            f"{caller}: frames must be uint8 [T, H, W, 3], got {array.dtype} {list(array.shape)}"
        )
    if not 0 < fps <= most:
        raise ValueError(f"{caller}: fps must be in (0, {most:g}], got {fps}")
    return array
