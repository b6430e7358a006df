import copy
import pickle

import pytest
import torch
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    Unbounded,
)
from yamame.actions import (
    ActionSpace,
    BetaDistribution,
    TanhNormalDistribution,
    action_space_from_spec,
)

LOW, HIGH = torch.tensor([-1.0, 0.0, -3.0]), torch.tensor([1.0, 10.0, -2.5])
SPECS = {
    "categorical": (Categorical(5), 0),
    "categorical_batch": (Categorical(5, shape=(3,)), 1),
    "categorical_int32": (Categorical(5, shape=(2, 3), dtype=torch.int32), 2),
    "one_hot": (OneHot(5), 0),
    "one_hot_int64_batch": (OneHot(5, shape=(3, 5), dtype=torch.int64), 1),
    "multi_categorical": (MultiCategorical([2, 3]), 0),
    "multi_categorical_batch": (MultiCategorical([2, 3], shape=(4, 2)), 1),
    "multi_categorical_even": (MultiCategorical([3, 3], shape=(4, 2)), 1),
    "multi_one_hot": (MultiOneHot([2, 3]), 0),
    "multi_one_hot_batch": (MultiOneHot([2, 3], shape=(4, 5), dtype=torch.int64), 1),
    "binary": (Binary(3), 0),
    "binary_bool_batch": (Binary(3, shape=(4, 3), dtype=torch.bool), 1),
    "bounded": (Bounded(LOW, HIGH), 0),
    "bounded_batch": (Bounded(LOW.expand(4, -1), HIGH.expand(4, -1)), 1),
    "bounded_float64": (Bounded(LOW.double(), HIGH.double()), 0),
}
specs = pytest.mark.parametrize(("spec", "batch_dims"), SPECS.values(), ids=SPECS)


@specs
def test_decoding_undoes_encoding_in_the_specs_own_dtype_and_shape(spec, batch_dims):
    space = action_space_from_spec(spec, batch_dims=batch_dims)
    action = spec.rand()
    encoded = space.encode(action)
    assert encoded.dtype == torch.float32
    assert encoded.shape == (*spec.shape[:batch_dims], space.encoded_size)
    assert encoded.abs().max() <= 1
    decoded = space.decode(encoded)
    assert spec.is_in(decoded)
    # A box passes through float32; everything else is exact.
    torch.testing.assert_close(decoded, action, rtol=1e-6, atol=1e-5)


@specs
def test_decoding_keeps_leading_dimensions_apart(spec, batch_dims):
    space = action_space_from_spec(spec, batch_dims=batch_dims)
    actions = torch.stack([spec.rand() for _ in range(6)])
    encoded = space.encode(actions)
    for action, row in zip(actions, encoded, strict=True):
        assert torch.equal(space.encode(action), row)
    torch.testing.assert_close(space.decode(encoded), actions, rtol=1e-6, atol=1e-5)


@specs
def test_what_a_policy_samples_is_an_action_of_the_spec(spec, batch_dims):
    space = action_space_from_spec(spec, batch_dims=batch_dims)
    dist = space.distribution(torch.randn(*spec.shape[:batch_dims], space.num_params))
    for encoded in (dist.sample(), dist.rsample(), dist.mode):
        assert spec.is_in(space.decode(encoded))
    assert dist.log_prob(dist.sample()).shape == spec.shape[:batch_dims]


@specs
def test_spaces_pickle_and_copy(spec, batch_dims):
    space = action_space_from_spec(spec, batch_dims=batch_dims)
    action = spec.rand()
    for other in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):
        assert torch.equal(other.encode(action), space.encode(action))
        assert (other.encoded_size, other.num_params) == (space.encoded_size, space.num_params)
        assert other.enumerable == space.enumerable


def test_only_discrete_actions_are_enumerable():
    for name, (spec, batch_dims) in SPECS.items():
        space = action_space_from_spec(spec, batch_dims=batch_dims)
        assert space.enumerable == name.startswith(("categorical", "one_hot"))


def test_encodings_are_one_hots_bits_and_rescaled_numbers():
    assert ActionSpace(Categorical(3)).encode(torch.tensor(1)).tolist() == [0, 1, 0]
    assert ActionSpace(MultiCategorical([3, 2])).encode(torch.tensor([2, 1])).tolist() == [
        0,
        0,
        1,
        0,
        1,
    ]
    assert ActionSpace(Binary(2)).encode(torch.tensor([1, 0])).tolist() == [1, 0]
    box = ActionSpace(Bounded(LOW, HIGH))
    torch.testing.assert_close(
        box.encode(torch.tensor([0.5, 2.5, -2.5])), torch.tensor([0.5, -0.5, 1.0])
    )


def test_box_actions_never_leave_the_bounds():
    box = ActionSpace(Bounded(LOW, HIGH))
    assert torch.equal(box.decode(torch.full((3,), -1.5)), LOW)
    assert torch.equal(box.decode(torch.full((3,), 1.5)), HIGH)
    assert torch.equal(box.encode(HIGH + 1), torch.ones(3))
    assert torch.equal(box.encode(LOW - 1), -torch.ones(3))


def test_the_floor_reaches_every_discrete_family():
    for spec in (Categorical(4), OneHot(4), MultiCategorical([4]), MultiOneHot([4])):
        space = action_space_from_spec(spec, probability_floor=0.4)
        probs = space.distribution(torch.tensor([50.0, 0.0, 0.0, 0.0])).probs
        torch.testing.assert_close(probs, torch.tensor([0.7, 0.1, 0.1, 0.1]))
    bits = action_space_from_spec(Binary(1), probability_floor=0.4)
    torch.testing.assert_close(bits.distribution(torch.tensor([50.0])).probs, torch.tensor([0.8]))


def test_masks_reach_the_distribution():
    mask = torch.tensor([False, True, True])
    for space in (
        ActionSpace(Categorical(3)),
        ActionSpace(MultiCategorical([3])),
        ActionSpace(Binary(3)),
    ):
        probs = space.distribution(torch.zeros(2, 3), mask).probs
        assert (probs[:, 0] == 0).all()
        assert (probs[:, 1:] > 0).all()


def test_the_box_distribution_is_chosen_by_name():
    for name, family in {"tanh_normal": TanhNormalDistribution, "beta": BetaDistribution}.items():
        space = action_space_from_spec(Bounded(LOW, HIGH), box_distribution=name)
        assert isinstance(space.distribution(torch.zeros(6)), family)


@pytest.mark.parametrize(
    ("spec", "batch_dims", "message"),
    [
        (Categorical(5, shape=(3,)), 0, r"Categorical must have 0 dimensions .*got \(3,\)"),
        (OneHot(5, shape=(3, 5)), 0, r"OneHot must have 1 dimensions .*got \(3, 5\)"),
        (Bounded(-1, 1, ()), 0, r"got \(\); .*Bounded of shape \(1,\)"),
        (Bounded(-1, 1, (4, 2, 2)), 1, r"batch_dims=1, got \(4, 2, 2\)"),
        (Bounded(0, 3, (2,), dtype=torch.int64), 0, r"must be continuous .* got torch.int64"),
        (
            Bounded(torch.tensor([[0.0], [1.0]]), torch.full((2, 1), 2.0)),
            1,
            r"bounds must be the same .*\[0.0\], \[1.0\]",
        ),
        (Unbounded(3), 0, "spec must be a leaf of kind .* got 'UnboundedContinuous'"),
        (Composite(action=OneHot(3)), 0, "spec must be a leaf of kind .* got 'Composite'"),
    ],
)
def test_specs_without_a_space_are_refused_with_advice(spec, batch_dims, message):
    with pytest.raises(ValueError, match=message):
        action_space_from_spec(spec, batch_dims=batch_dims)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: ActionSpace(Categorical(0)),
            r"ActionEncoding: numbers of actions must be positive, got \[0\]",
        ),
        (
            lambda: ActionSpace(MultiCategorical([2, 0])),
            r"numbers of actions must be positive, got \[2, 0\]",
        ),
        (lambda: ActionSpace(Binary(0)), r"numbers of actions must be positive, got \[0\]"),
        (
            lambda: ActionSpace(Categorical(2), probability_floor=1.0),
            r"^ActionSpace: probability_floor .*1\.0",
        ),
        (
            lambda: ActionSpace(MultiCategorical([2]), probability_floor=-0.1),
            r"probability_floor must .* got -0\.1",
        ),
        (
            lambda: ActionSpace(Binary(2), probability_floor=2.0),
            r"ActionSpace: probability_floor .*2\.0",
        ),
        (
            lambda: ActionSpace(Categorical(2), probability_floor=0.0, probability_clip=[0.9, 0.1]),
            r"ActionSpace: probability_clip .*\[0\.9, 0\.1\]",
        ),
        (
            lambda: ActionSpace(Categorical(2), probability_clip=[0.1, 0.9]),
            r"ActionSpace: probability_clip must be None with a probability_floor above 0",
        ),
        (
            lambda: ActionSpace(Bounded(HIGH, LOW)),
            r"bounds must be finite, the lower below the upper, got \(\[1\.0",
        ),
        (lambda: ActionSpace(Bounded(LOW, torch.full((3,), torch.inf))), r"must be finite, .*inf"),
        (
            lambda: ActionSpace(Bounded(LOW, HIGH), box_distribution="cauchy"),
            "ActionSpace: box_distribution .* got 'cauchy'",
        ),
    ],
)
def test_impossible_spaces_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_parameters_of_another_size_are_refused():
    message = (
        r"ActionSpace: shape of params must have 3 entries in the last dimension, got \(2, 4\)"
    )
    with pytest.raises(ValueError, match=message):
        ActionSpace(Categorical(3)).distribution(torch.zeros(2, 4))


def test_boxes_take_no_action_mask():
    with pytest.raises(
        ValueError, match=r"ActionSpace: shape of action_mask must be None for a box, got \(3,\)"
    ):
        ActionSpace(Bounded(LOW, HIGH)).distribution(
            torch.zeros(6), torch.ones(3, dtype=torch.bool)
        )
