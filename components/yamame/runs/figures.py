"""Pictures of a run: learning curves and animations, written as files without a display.

Matplotlib and Pillow are imported when a picture is made.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike


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

    array = np.asarray(frames)
    if array.ndim != 4 or array.shape[-1] != 3 or array.shape[0] == 0 or array.dtype != np.uint8:
        raise ValueError(
            f"write_gif: frames must be uint8 [T, H, W, 3], got {array.dtype} {list(array.shape)}"
        )
    if not 0 < fps <= 50:
        raise ValueError(f"write_gif: fps must be in (0, 50], got {fps}")
    images = [Image.fromarray(frame) for frame in array]
    path = Path(path)
    images[0].save(
        path, format="GIF", save_all=True, append_images=images[1:], duration=round(1000 / fps), loop=0
    )
    return path
