"""Entries of an observation spec become inputs of the right kind."""

import pytest
import torch
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    NonTensor,
    OneHot,
    Unbounded,
)
from yamame.keys import NOT_INPUTS
from yamame.timestep import Input, inputs_from_spec


def spec(*batch: int) -> Composite:
    return Composite(
        {
            "time": Unbounded((*batch, 1)),
            "trial_start": Categorical(2, shape=(*batch, 1), dtype=torch.bool),
            "robot": Composite(
                {"goal": Unbounded((*batch, 2)), "arm": Bounded(0, 1, (*batch, 3, 2))}, shape=batch
            ),
            "choice": Categorical(7, shape=batch),
            "hot": OneHot(5, shape=(*batch, 5)),
            "bits": Binary(4, shape=(*batch, 4)),
            "text": NonTensor(shape=batch),
            "goal": Unbounded((*batch, 3, 2)),
            "achieved": Unbounded((*batch, 1, 2)),
            "achieved_mask": Binary(1, shape=(*batch, 1)),
            "action_mask": Binary(4, shape=(*batch, 4)),
            "is_init": Categorical(2, shape=(*batch, 1), dtype=torch.bool),
            "step_index": Unbounded((*batch, 1), dtype=torch.int64),
            "success": Categorical(2, shape=(*batch, 1), dtype=torch.bool),
            "aborted": Binary(1, shape=(*batch, 1), dtype=torch.bool),
            "task_seed": Unbounded((*batch, 1), dtype=torch.int64),
        },
        shape=batch,
    )


@pytest.mark.parametrize("batch", [(), (8,), (2, 3)])
def test_sizes_do_not_depend_on_the_batch_and_keys_are_sorted(batch):
    inputs = inputs_from_spec(spec(*batch), batch_dims=len(batch))
    assert [key for key, value in inputs.items() if value.kind != "vector"] == ["choice"]
    assert [(key, value.size) for key, value in inputs.items()] == [
        ("bits", 4),
        ("choice", 1),
        ("hot", 5),
        (("robot", "arm"), 6),
        (("robot", "goal"), 2),
        ("time", 1),
        ("trial_start", 1),
    ]


def test_what_must_not_be_seen_is_excluded_by_default_and_only_by_default():
    assert set(NOT_INPUTS) & set(inputs_from_spec(spec(), batch_dims=0)) == set()
    everything = inputs_from_spec(spec(), batch_dims=0, exclude=())
    inputs = inputs_from_spec(spec(), batch_dims=0)
    assert set(everything) - set(inputs) == set(NOT_INPUTS) & set(spec().keys())
    assert {"goal", "achieved", "is_init", "success", "task_seed"} <= set(everything) - set(inputs)
    assert ("robot", "arm") not in inputs_from_spec(
        spec(), batch_dims=0, exclude=[("robot", "arm")]
    )


def test_nothing_left_is_an_error():
    with pytest.raises(
        ValueError, match=r"exclude must leave at least one observation, got \['time'\]"
    ):
        inputs_from_spec(Composite(time=Unbounded((1,))), batch_dims=0, exclude=["time"])


def test_too_many_batch_dimensions_are_an_error():
    with pytest.raises(
        ValueError, match=r"batch_dims must be at most the dimensions of 'time' \(1,\), got 2"
    ):
        inputs_from_spec(Composite(time=Unbounded((1,))), batch_dims=2)


KINDS = {
    "pixels": (
        lambda b: Bounded(0, 255, (*b, 64, 64, 3), dtype=torch.uint8),
        Input((64, 64, 3), "image"),
    ),
    "grey": (lambda b: Unbounded((*b, 84, 80), dtype=torch.uint8), Input((84, 80), "image")),
    "bytes": (lambda b: Bounded(0, 255, (*b, 128), dtype=torch.uint8), Input((128,))),
    "frames": (
        lambda b: Bounded(0, 255, (*b, 4, 8, 8, 3), dtype=torch.uint8),
        Input((4, 8, 8, 3), "image"),
    ),
    "clips": (
        lambda b: Bounded(0, 255, (*b, 2, 4, 8, 8, 3), dtype=torch.uint8),
        Input((2, 4, 8, 8, 3)),
    ),
    "shares": (lambda b: Bounded(0, 1, (*b, 8, 9, 3)), Input((8, 9, 3), "image", max_value=1.0)),
    "depth": (lambda b: Bounded(0, 65535, (*b, 8, 9)), Input((8, 9), "image", max_value=65535.0)),
    "floats": (lambda b: Unbounded((*b, 8, 8, 3)), Input((8, 8, 3))),
    "angles": (lambda b: Bounded(-1, 1, (*b, 8, 8, 3)), Input((8, 8, 3))),
    "tens": (lambda b: Bounded(0, 10, (*b, 8, 8, 3)), Input((8, 8, 3))),
    "narrow": (lambda b: Bounded(0, 1, (*b, 7, 40)), Input((7, 40))),
    "row": (lambda b: Bounded(0, 1, (*b, 64)), Input((64,))),
    "counts": (lambda b: Unbounded((*b, 8, 8), dtype=torch.int64), Input((8, 8))),
    "word": (lambda b: Categorical(7, shape=b), Input((), "tokens", 7)),
    "words": (lambda b: Categorical(30, shape=(*b, 9)), Input((9,), "tokens", 30)),
    "cells": (lambda b: Categorical(11, shape=(*b, 7, 7, 3)), Input((7, 7, 3), "tokens", 11)),
    "small": (
        lambda b: Categorical(9, shape=(*b, 7, 9), dtype=torch.uint8),
        Input((7, 9), "tokens", 9),
    ),
    "flag": (lambda b: Categorical(2, shape=(*b, 1), dtype=torch.bool), Input((1,))),
    "flags": (lambda b: Binary(4, shape=(*b, 4), dtype=torch.bool), Input((4,))),
    "hot": (lambda b: OneHot(5, shape=(*b, 5)), Input((5,))),
    "several": (lambda b: MultiCategorical([3, 4], shape=(*b, 2)), Input((2,))),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("batch", [(), (8,), (2, 3)])
def test_the_leaf_decides_the_kind_and_the_batch_does_not(name, batch):
    make, expected = KINDS[name]
    leaf = Composite({name: make(batch)}, shape=batch)
    assert inputs_from_spec(leaf, batch_dims=len(batch)) == {name: expected}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((3,), "sound"), r"kind must be one of \('vector', 'image', 'tokens'\), got 'sound'"),
        (((3, 0),), r"shape must have positive dimensions, got \(3, 0\)"),
        (((64,), "image"), r"shape must have 2 to 4 dimensions for an image, got \(64,\)"),
        (((3,), "tokens"), "num_tokens must be at least 1, got 0"),
        (((3,), "tokens", 0), "num_tokens must be at least 1, got 0"),
        (((3,), "vector", 5), "num_tokens must be None for vector, got 5"),
        (((3,), "vector", None, 1.0), "max_value must be positive, or None for no image, got 1.0"),
    ],
)
def test_inputs_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"Input: {message}"):
        Input(*arguments)
