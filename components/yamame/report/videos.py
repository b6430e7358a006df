"""Videos as files: GIF and MP4. Pillow and PyAV are imported when a video is written or read."""

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from yamame.checks import require
from yamame.files.atomic import atomic_writer

Frames = npt.NDArray[np.uint8]

# Most players show a frame for at least 20 ms.
_MOST_GIF_FPS = 50.0
_MOST_MP4_FPS = 240.0
_MOST_COLOURS = 256
# The format stores the duration of a frame in 16 bits, in units of 10 ms.
_LONGEST_GIF_FRAME = 655_350
# Frames from which a palette is made; more of them take time and hardly change it.
_SAMPLED_FRAMES = 16


def write_gif(path: Path, frames: ArrayLike, *, fps: float = 10.0) -> Path:
    """Write an endless animation.

    All frames share one palette of 256 colours. Up to 256 different colours are kept exactly. A
    picture that does not change is shown for 655 seconds at most, the limit of the format.

    Args:
        path: The GIF file.
        frames: ``[T, H, W, 3]`` uint8, at least one frame.
        fps: Frames per second; GIF players show at most 50.

    Raises:
        ValueError: ``frames`` has another shape or type, or ``fps`` is not in (0, 50].
    """
    array = _checked_frames("write_gif", frames, fps, most=_MOST_GIF_FPS)
    array, durations = _without_repeats(array, round(1000 / fps))
    images = _with_shared_palette(array)
    with atomic_writer(path) as file:
        images[0].save(
            file,
            format="GIF",
            save_all=True,
            append_images=images[1:],
            # Without this argument Pillow reduces the palette of each frame to its own colours.
            palette=bytes(images[0].getpalette()),
            duration=durations,
            loop=0,
        )
    return path


def _without_repeats(frames: Frames, duration: int) -> tuple[Frames, list[int]]:
    """Return frames without those that equal the one before, and their durations in ms."""
    # Pillow would join them, too, and fail on sums beyond the limit of the format.
    kept = [0]
    durations = [duration]
    for index in range(1, len(frames)):
        if np.array_equal(frames[index], frames[index - 1]):
            durations[-1] = durations[-1] + duration
        else:
            kept.append(index)
            durations.append(duration)
    return frames[kept], [min(each, _LONGEST_GIF_FRAME) for each in durations]


def _with_shared_palette(frames: Frames) -> list[Any]:
    """Return frames as images with the same palette, which therefore do not flicker."""
    from PIL import Image

    # A table of all 2**24 colours takes 16 MB and is faster than to sort the pixels.
    is_used = np.zeros(1 << 24, dtype=bool)
    for frame in frames:
        is_used[_colour_codes(frame)] = True
    colours = np.flatnonzero(is_used)

    images = []
    if len(colours) <= _MOST_COLOURS:
        index_of = np.zeros(1 << 24, dtype=np.uint8)
        index_of[colours] = np.arange(len(colours))
        palette = np.stack([colours >> 16, (colours >> 8) & 255, colours & 255], axis=1)
        for frame in frames:
            image = Image.fromarray(index_of[_colour_codes(frame)])
            image.putpalette(palette.astype(np.uint8).tobytes())
            images.append(image)
        return images

    step = -(-len(frames) // _SAMPLED_FRAMES)
    sample = Image.fromarray(np.concatenate(frames[::step]))  # frames one below the other
    palette_image = sample.quantize(_MOST_COLOURS)
    for frame in frames:
        # Dithering would put a different noise into each frame.
        dither = Image.Dither.NONE
        images.append(Image.fromarray(frame).quantize(palette=palette_image, dither=dither))
    return images


def _colour_codes(frame: Frames) -> npt.NDArray[np.int32]:
    """Return one number per pixel ``[H, W]``, equal for equal colours."""
    # One frame at a time: four bytes per pixel of a long video would be much memory.
    red, green, blue = np.moveaxis(frame.astype(np.int32), -1, 0)
    return (red << 16) | (green << 8) | blue


def write_mp4(path: Path, frames: ArrayLike, *, fps: float = 10.0) -> Path:
    """Write a video (H.264).

    The format has sides of even length only. An odd side is extended by repeating its last pixels.

    Args:
        path: The MP4 file.
        frames: ``[T, H, W, 3]`` uint8, at least one frame.
        fps: Frames per second, up to 240.

    Raises:
        ImportError: PyAV is not installed.
        ValueError: ``frames`` has another shape or type, or ``fps`` is not in (0, 240].
    """
    array = _checked_frames("write_mp4", frames, fps, most=_MOST_MP4_FPS)
    try:
        import av
    except ImportError as error:
        raise ImportError(
            "write_mp4: the package av must be installed, run: pip install 'yamame[video]'"
        ) from error
    height, width = array.shape[1:3]
    array = np.pad(array, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    with atomic_writer(path) as file, av.open(file, "w", format="mp4") as video:
        # The rate is stored as a fraction of small integers.
        stream = video.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        stream.height = array.shape[1]
        stream.width = array.shape[2]
        stream.pix_fmt = "yuv420p"
        for frame in array:
            video.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        video.mux(stream.encode())  # frames that the encoder still holds
    return path


def _checked_frames(caller: str, frames: ArrayLike, fps: float, *, most: float) -> Frames:
    array = np.asarray(frames)
    has_shape = array.ndim == 4 and array.shape[-1] == 3 and len(array) > 0
    got = (array.dtype.name, *array.shape)
    is_video = has_shape and array.dtype == np.uint8
    require(caller, "frames", got, is_video, "be uint8 [T, H, W, 3]")
    require(caller, "fps", fps, 0 < fps <= most, f"be in (0, {most:g}]")
    return array


def first_frame(gif: bytes) -> bytes | None:
    """Return the first frame of an animation as a PNG, for readers who prefer no motion.

    None if the content is not an image.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(gif)) as image:
            buffer = io.BytesIO()
            image.convert("RGB").save(buffer, format="PNG")
            return buffer.getvalue()
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
