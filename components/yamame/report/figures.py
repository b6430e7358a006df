"""What a run leaves to look at, as files: learning curves, attention maps and videos, made without a display.

Matplotlib, Pillow and PyAV are imported when a picture is made.
"""

import io
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from yamame.checks import require
from yamame.files.atomic import atomic_writer
from yamame.report.curves import Curve
from yamame.report.pictures import draw
from yamame.report.plots import Line, Plot


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
    path = Path(path)
    path.write_bytes(draw(Plot(path.stem, "", x_label, y_label, lines, whole=True)))
    return path


def draw_attention(path: str | Path, maps: ArrayLike, *, title: str = "") -> Path:
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

    images = [Image.fromarray(frame) for frame in _checked_frames("write_gif", frames, fps, most=50.0)]
    path = Path(path)
    images[0].save(
        path, format="GIF", save_all=True, append_images=images[1:], duration=round(1000 / fps), loop=0
    )
    return path


def write_mp4(path: str | Path, frames: ArrayLike, *, fps: float = 10.0) -> Path:
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
    path = Path(path)
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
    except OSError:
        return None
