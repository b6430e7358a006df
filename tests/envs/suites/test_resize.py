from fractions import Fraction
from math import floor

import numpy as np
import pytest
from yamame_envs.suites.resize import AreaResize


def naive(picture, new):
    """The mean of the area under every new pixel, in exact fractions, halves rounded up."""
    height, width, planes = picture.shape
    down, across = Fraction(height, new[0]), Fraction(width, new[1])
    small = np.zeros((planes, *new), dtype=np.uint8)
    for i in range(new[0]):
        rows = [r for r in range(height) if r < (i + 1) * down and r + 1 > i * down]
        for j in range(new[1]):
            columns = [c for c in range(width) if c < (j + 1) * across and c + 1 > j * across]
            for plane in range(planes):
                total = Fraction(0)
                for r in rows:
                    tall = min(r + 1, (i + 1) * down) - max(r, i * down)
                    for c in columns:
                        wide = min(c + 1, (j + 1) * across) - max(c, j * across)
                        total += tall * wide * int(picture[r, c, plane])
                small[plane, i, j] = floor(total / (down * across) + Fraction(1, 2))
    return small


@pytest.mark.parametrize(
    ("old", "new"),
    [((21, 16), (8, 8)), ((25, 20), (7, 3)), ((8, 6), (4, 2)), ((5, 5), (5, 5)), ((3, 4), (5, 8))],
)
def test_pictures_are_averaged_exactly(old, new):
    picture = np.random.default_rng(0).integers(0, 256, (*old, 3)).astype(np.uint8)
    assert np.array_equal(AreaResize(old, new)(picture), naive(picture, new))


def test_a_screen_of_atari_is_averaged_exactly():
    screen = np.random.default_rng(1).integers(0, 256, (210, 160)).astype(np.uint8)
    small = AreaResize((210, 160), (84, 84))(screen)
    # every pixel as 2 x 21 equal ones: five rows of the old size make two, 40 columns make 21
    fine = screen.repeat(2, axis=0).repeat(21, axis=1).astype(np.int64)
    sums = fine.reshape(84, 5, 84, 40).sum((1, 3))
    assert small.shape == (1, 84, 84)
    assert np.array_equal(small[0], (sums + 100) // 200)
    nearest = screen[(np.arange(84) * 2.5).astype(int)][:, (np.arange(84) * 160 / 84).astype(int)]
    assert not np.array_equal(small[0], nearest)


def test_the_brightest_picture_does_not_overflow():
    white = np.full((250, 160, 3), 255, dtype=np.uint8)
    assert (AreaResize((250, 160), (84, 84))(white) == 255).all()


def test_sums_that_would_not_be_exact_are_refused():
    with pytest.raises(
        ValueError, match=r"old must share larger divisors with \(83, 83\), got \(997, 991\)"
    ):
        AreaResize((997, 991), (83, 83))
