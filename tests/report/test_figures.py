"""Pictures: what is drawn is there, what cannot be drawn is refused."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from yamame.report.figures import draw_attention, learning_curve, write_gif, write_mp4


def test_a_learning_curve_is_a_png_that_depends_on_the_data(tmp_path):
    def draw(name, y):
        path = learning_curve(
            tmp_path / name, {"ours": ([0, 1], y, [0, 0], [1, 1]), "base": ([0, 1], [0, 0])}
        )
        return np.asarray(Image.open(path).convert("RGB"))

    first = draw("a.png", [0.2, 0.8])
    assert first.std() > 0
    assert np.array_equal(first, draw("b.png", [0.2, 0.8]))
    assert not np.array_equal(first, draw("c.png", [0.8, 0.2]))


def test_counted_things_have_whole_numbers_on_the_axis(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(FigureCanvasAgg, "__init__", recording(FigureCanvasAgg.__init__, drawn))
    learning_curve(tmp_path / "a.png", {"ours": ([1, 2, 3], [0, 0.5, 1])}, x_label="trial")
    (axes,) = drawn[0].axes
    ticks = axes.get_xticks()
    assert len(ticks) > 1
    assert all(tick == round(tick) for tick in ticks)


def recording(construct, figures: list):
    def constructor(canvas, figure):
        figures.append(figure)
        construct(canvas, figure)

    return constructor


def test_curves_of_wrong_form_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"ours must be \(x, y\) or \(x, y, low, high\), got 3"):
        learning_curve(tmp_path / "a.png", {"ours": ([0], [0], [0])})
    with pytest.raises(ValueError, match=r"ours must have arrays of equal length, got \[2, 1\]"):
        learning_curve(tmp_path / "a.png", {"ours": ([0, 1], [0])})


def test_attention_becomes_a_picture(tmp_path):
    path = draw_attention(tmp_path / "a.png", np.full((2, 3, 4, 4), 0.25))
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"maps must be \[layers, H, L, L\], got \[2, 3, 4\]"):
        draw_attention(tmp_path / "b.png", np.zeros((2, 3, 4)))


def test_a_picture_that_stays_is_shown_for_as_long_and_one_that_comes_again_is_shown_again(
    tmp_path,
):
    pictures = np.zeros((3, 8, 6, 3), np.uint8)
    pictures[1, -1, -1] = pictures[2, 4, 3] = 200  # all with the same first pixel
    shown = [0, 0, 1, 0, 0, 0, 2, 2]
    with Image.open(write_gif(tmp_path / "a.gif", pictures[shown], fps=10)) as gif:
        durations, frames = [], []
        for index in range(gif.n_frames):
            gif.seek(index)
            durations.append(gif.info["duration"])
            frames.append(np.asarray(gif.convert("RGB")))
    assert durations == [200, 100, 300, 200]
    assert np.array_equal(frames, pictures[[0, 1, 0, 2]])


def test_a_gif_holds_every_frame_at_the_speed_asked_for(tmp_path):
    frames = np.zeros((3, 8, 6, 3), dtype=np.uint8)
    frames[1, :, :, 0] = 255
    frames[2, :, :, 1] = 255
    with Image.open(write_gif(tmp_path / "a.gif", frames, fps=20)) as gif:
        assert (gif.n_frames, gif.size, gif.info["duration"], gif.info["loop"]) == (
            3,
            (6, 8),
            50,
            0,
        )
        for index in range(3):
            gif.seek(index)
            assert np.array_equal(np.asarray(gif.convert("RGB")), frames[index])


def local_palettes(content):
    """Count the frames of a GIF that have a palette of their own."""
    position = 13 + (3 << (1 + (content[10] & 7)) if content[10] & 128 else 0)
    count = 0
    while content[position] != 0x3B:
        if content[position] == 0x21:  # an extension
            position += 2
        else:
            flags = content[position + 9]
            count += flags >> 7
            position += 11 + (3 << (1 + (flags & 7)) if flags & 128 else 0)
        while content[position]:
            position += 1 + content[position]
        position += 1
    return count


@pytest.mark.parametrize("few_colours", [True, False])
def test_the_frames_of_a_gif_share_one_palette_that_is_close_to_their_colours(
    tmp_path, few_colours
):
    ramp = np.linspace(0, 255, 16).astype(np.uint8)
    frames = np.zeros((12, 16, 16, 3), np.uint8)
    frames[..., 0] = ramp[:, None]
    if not few_colours:
        frames[..., 1] = ramp  # 256 colours, and those of the square
    for index, frame in enumerate(frames):
        frame[index : index + 4, index : index + 4] = [255 - 10 * index, 0, 255]
    path = write_gif(tmp_path / "a.gif", frames)
    assert local_palettes(path.read_bytes()) == 0
    with Image.open(path) as gif:
        assert gif.n_frames == len(frames)
        for index, frame in enumerate(frames):
            gif.seek(index)
            error = np.abs(np.asarray(gif.convert("RGB")).astype(int) - frame)
            if few_colours:
                assert error.max() == 0
            else:
                assert error.mean() < 4
                assert error.max() < 40


def test_frames_with_palettes_of_their_own_are_found(tmp_path):
    images = [Image.fromarray(np.full((8, 8, 3), 60 * i, np.uint8)) for i in range(3)]
    images[0].save(tmp_path / "a.gif", save_all=True, append_images=images[1:])
    assert local_palettes((tmp_path / "a.gif").read_bytes()) > 0


def test_an_mp4_holds_every_frame_at_the_speed_asked_for(tmp_path):
    av = pytest.importorskip("av")
    frames = np.zeros((4, 33, 46, 3), dtype=np.uint8)
    for index, channel in enumerate((0, 1, 2)):
        frames[index + 1, :, :, channel] = 255
    path = write_mp4(tmp_path / "a.mp4", frames, fps=12.5)
    assert list(tmp_path.iterdir()) == [path]
    with av.open(str(path)) as video:
        (stream,) = video.streams
        assert (stream.codec_context.name, float(stream.average_rate)) == ("h264", 12.5)
        read = [frame.to_ndarray(format="rgb24").astype(int) for frame in video.decode(stream)]
    assert [frame.shape for frame in read] == [(34, 46, 3)] * 4
    for got, written in zip(read, frames, strict=True):
        assert np.abs(got[:33] - written).max() < 20  # the colours of H.264 are not exact
        assert np.abs(got[33] - got[32]).max() < 20


def test_a_video_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    av = pytest.importorskip("av")
    path = write_mp4(tmp_path / "a.mp4", np.zeros((2, 8, 6, 3), np.uint8))
    before = path.read_bytes()

    def from_ndarray(frame, format):
        raise OSError("no space left")

    monkeypatch.setattr(av, "VideoFrame", SimpleNamespace(from_ndarray=from_ndarray))
    with pytest.raises(OSError, match="no space left"):
        write_mp4(path, np.ones((2, 8, 6, 3), np.uint8))
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_a_missing_encoder_is_named_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"pip install 'yamame\[video\]'"):
        write_mp4(tmp_path / "a.mp4", np.zeros((2, 8, 6, 3), np.uint8))


@pytest.mark.parametrize("write", [write_gif, write_mp4])
@pytest.mark.parametrize(
    "frames",
    [np.zeros((0, 8, 6, 3), np.uint8), np.zeros((2, 8, 6), np.uint8), np.zeros((2, 8, 6, 3))],
)
def test_frames_of_another_form_are_refused(tmp_path, write, frames):
    with pytest.raises(ValueError, match=r"frames must be uint8 \[T, H, W, 3\], got"):
        write(tmp_path / "a", frames)


@pytest.mark.parametrize(
    ("write", "fps", "most"), [(write_gif, 0, 50), (write_gif, 51, 50), (write_mp4, 241, 240)]
)
def test_speeds_no_player_shows_are_refused(tmp_path, write, fps, most):
    with pytest.raises(ValueError, match=rf"fps must be in \(0, {most}\], got {fps}"):
        write(tmp_path / "a", np.zeros((1, 8, 6, 3), np.uint8), fps=fps)
