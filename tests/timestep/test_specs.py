"""Which entries of an observation spec become flat inputs."""

import pytest
import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, NonTensor, OneHot, Unbounded
from yamame.timestep import NOT_INPUTS, in_sizes_from_spec


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
            "task_seed": Unbounded((*batch, 1), dtype=torch.int64),
        },
        shape=batch,
    )


@pytest.mark.parametrize("batch", [(), (8,), (2, 3)])
def test_sizes_do_not_depend_on_the_batch_and_keys_are_sorted(batch):
    sizes = in_sizes_from_spec(spec(*batch), batch_dims=len(batch))
    assert list(sizes.items()) == [
        ("bits", 4),
        ("choice", 1),
        ("hot", 5),
        (("robot", "arm"), 6),
        (("robot", "goal"), 2),
        ("time", 1),
        ("trial_start", 1),
    ]


def test_what_must_not_be_seen_is_excluded_by_default_and_only_by_default():
    assert set(NOT_INPUTS) & set(in_sizes_from_spec(spec(), batch_dims=0)) == set()
    everything = in_sizes_from_spec(spec(), batch_dims=0, exclude=())
    assert set(NOT_INPUTS) - set(everything) == {"mask"}
    assert ("robot", "arm") not in in_sizes_from_spec(spec(), batch_dims=0, exclude=[("robot", "arm")])


def test_nothing_left_is_an_error():
    with pytest.raises(ValueError, match=r"exclude must leave at least one observation, got \['time'\]"):
        in_sizes_from_spec(Composite(time=Unbounded((1,))), batch_dims=0, exclude=["time"])


def test_too_many_batch_dimensions_are_an_error():
    with pytest.raises(
        ValueError, match=r"batch_dims must be at most the dimensions of 'time' \(1,\), got 2"
    ):
        in_sizes_from_spec(Composite(time=Unbounded((1,))), batch_dims=2)
