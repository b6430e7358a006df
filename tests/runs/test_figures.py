"""Pictures: what is drawn is there, what cannot be drawn is refused."""

import numpy as np
import pytest
from PIL import Image
from yamame.runs.figures import learning_curve, write_gif


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


def test_curves_of_wrong_form_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"ours must be \(x, y\) or \(x, y, low, high\), got 3"):
        learning_curve(tmp_path / "a.png", {"ours": ([0], [0], [0])})
    with pytest.raises(ValueError, match=r"ours must have arrays of equal length, got \[2, 1\]"):
        learning_curve(tmp_path / "a.png", {"ours": ([0, 1], [0])})


def test_a_gif_holds_every_frame_at_the_speed_asked_for(tmp_path):
    frames = np.zeros((3, 8, 6, 3), dtype=np.uint8)
    frames[1, :, :, 0] = 255
    frames[2, :, :, 1] = 255
    with Image.open(write_gif(tmp_path / "a.gif", frames, fps=20)) as gif:
        assert (gif.n_frames, gif.size, gif.info["duration"], gif.info["loop"]) == (3, (6, 8), 50, 0)
        for index in range(3):
            gif.seek(index)
            assert np.array_equal(np.asarray(gif.convert("RGB")), frames[index])


@pytest.mark.parametrize(
    "frames", [np.zeros((0, 8, 6, 3), np.uint8), np.zeros((2, 8, 6), np.uint8), np.zeros((2, 8, 6, 3))]
)
def test_frames_of_another_form_are_refused(tmp_path, frames):
    with pytest.raises(ValueError, match=r"frames must be uint8 \[T, H, W, 3\], got"):
        write_gif(tmp_path / "a.gif", frames)


@pytest.mark.parametrize("fps", [0, 51])
def test_speeds_no_player_shows_are_refused(tmp_path, fps):
    with pytest.raises(ValueError, match=rf"fps must be in \(0, 50\], got {fps}"):
        write_gif(tmp_path / "a.gif", np.zeros((1, 8, 6, 3), np.uint8), fps=fps)
