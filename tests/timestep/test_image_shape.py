"""Channels of an image are found by its shape, or given, or it raises."""

import pytest
import torch
from yamame.timestep import ImageShape

DECIDED = {
    (3, 64, 64): (3, 64, 64, "first"),
    (64, 64, 3): (3, 64, 64, "last"),
    (48, 64, 3): (3, 48, 64, "last"),
    (4, 84, 80): (4, 84, 80, "first"),
    (7, 7, 3): (3, 7, 7, "last"),
    (7, 9): (1, 7, 9, None),
    (11, 11, 12): (12, 11, 11, "last"),
    (3, 3, 64): (64, 3, 3, "last"),
    (64, 3, 3): (64, 3, 3, "first"),
    (4, 64, 48, 3): (12, 64, 48, "both"),
    (4, 3, 64, 48): (12, 64, 48, "first"),
    (64, 48, 3, 4): (12, 64, 48, "last"),
}


@pytest.mark.parametrize("shape", DECIDED)
def test_the_smaller_end_holds_the_channels(shape):
    image = ImageShape.of(shape, owner="Demo")
    assert (image.num_channels, image.height, image.width, image.channel_axis) == DECIDED[shape]
    pixels = image.channels_first(torch.zeros(2, 5, *shape))
    assert pixels.shape == (2, 5, *DECIDED[shape][:3])


@pytest.mark.parametrize("shape", [(7, 7, 7), (3, 64, 3), (12, 7, 9), (9, 7, 12)])
def test_a_shape_that_does_not_tell_is_refused_until_it_is_said(shape):
    with pytest.raises(
        ValueError, match=r"Demo: channel_axis must be 'first' or 'last' for .*got 'auto'"
    ):
        ImageShape.of(shape, owner="Demo")
    assert ImageShape.of(shape, channel_axis="first", owner="Demo").num_channels == shape[0]
    assert ImageShape.of(shape, channel_axis="last", owner="Demo").num_channels == shape[2]


def test_what_is_said_wins_over_the_shape():
    assert ImageShape.of((3, 64, 64), channel_axis="last", owner="Demo").num_channels == 64


def test_each_cell_keeps_its_row_and_column():
    pixels = torch.arange(2 * 5 * 3 * 2).reshape(2, 5, 3, 2)
    first = ImageShape.of((5, 3, 2), channel_axis="last", owner="Demo").channels_first(pixels)
    for channel in range(2):
        assert torch.equal(first[:, channel], pixels[..., channel])


@pytest.mark.parametrize(
    ("shape", "axis", "message"),
    [
        ((5,), "auto", r"shape must have 2, 3 or 4 dimensions, got \(5,\)"),
        ((3, 3, 3, 3), "last", r"shape must have two adjacent dimensions.*got \(3, 3, 3, 3\)"),
        ((4, 64, 3, 64), "auto", r"shape must have two adjacent dimensions"),
        (
            (5, 5, 3),
            "middle",
            r"channel_axis must be one of \('auto', 'first', 'last'\), got 'middle'",
        ),
    ],
)
def test_impossible_shapes_are_refused(shape, axis, message):
    with pytest.raises(ValueError, match=f"Demo: {message}"):
        ImageShape.of(shape, channel_axis=axis, owner="Demo")


@pytest.mark.parametrize("order", ["FHWC", "FCHW", "HWCF"])
def test_stacked_frames_are_channels_and_each_pixel_keeps_its_place(order):
    sizes = {"F": 2, "C": 3, "H": 6, "W": 5}
    pixels = torch.arange(180).reshape([sizes[name] for name in order])
    batch = pixels.expand(4, *pixels.shape)
    first = ImageShape.of(pixels.shape, owner="Demo").channels_first(batch)
    assert first.shape == (4, 6, 6, 5)
    for index in range(6):
        frame = pixels.permute([order.index(name) for name in "FCHW"]).reshape(6, 6, 5)
        if order == "HWCF":  # frames and channels keep the order in which they stand
            frame = pixels.permute(2, 3, 0, 1).reshape(6, 6, 5)
        assert torch.equal(first[1, index], frame[index])
