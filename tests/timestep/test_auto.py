"""The automatic encoder fits its inputs, and is the plain MLP where all are vectors."""

import inspect

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded
from yamame.timestep import (
    FlattenedWarning,
    Input,
    MLPGoalEncoder,
    MLPTimestepEncoder,
    inputs_from_spec,
    make_timestep_encoder,
)

CONTEXT = {
    "is_init": Binary(1, (8, 1), dtype=torch.bool),
    "prev_action": Bounded(-1, 1, (8, 5)),
    "prev_reward": Unbounded((8, 1)),
    "step_index": Unbounded((8, 1), dtype=torch.int64),
    "time": Bounded(0, 1, (8, 1)),
    "trial_start": Binary(1, (8, 1), dtype=torch.bool),
}


def pixels(*shape: int) -> Bounded:
    return Bounded(0, 255, (8, *shape), dtype=torch.uint8)


TABLE = {
    "maze": (
        {
            "observation": Unbounded((8, 10)),
            "goal": Unbounded((8, 3, 2)),
            "achieved": Unbounded((8, 1, 2)),
        },
        {},
    ),
    "pixels": ({"observation": pixels(64, 64, 3)}, {"observation": "ImpalaCNN"}),
    "Atari": ({"observation": pixels(4, 84, 84)}, {"observation": "ImpalaCNN"}),
    "crop": ({"image": pixels(48, 64, 3), "inventory": Unbounded((8, 16))}, {"image": "ImpalaCNN"}),
    "small pixels": ({"observation": pixels(32, 32, 3)}, {"observation": "ImpalaCNN"}),
    "wide pixels": ({"observation": pixels(31, 64, 3)}, {"observation": "GridCNN"}),
    "grid of bytes": ({"observation": pixels(7, 7, 3)}, {"observation": "GridCNN"}),
    "MiniGrid": (
        {
            "image": Categorical(11, shape=(8, 7, 7, 3)),
            "mission": Categorical(30, shape=(8, 9)),
            "direction": Unbounded((8, 4)),
        },
        {"image": "TokenEncoder", "mission": "TokenEncoder"},
    ),
    "Crafter": (
        {
            "textures": Categorical(65, shape=(8, 7, 9)),
            "info": Unbounded((8, 21)),
            "goal": Unbounded((8, 5, 3)),
        },
        {"textures": "TokenEncoder"},
    ),
    "robot": (
        {
            "robot": Composite({"camera": pixels(3, 64, 64), "arm": Unbounded((8, 7))}, shape=(8,)),
            "bytes": pixels(128),
        },
        {("robot", "camera"): "ImpalaCNN"},
    ),
}


def spec(name: str) -> Composite:
    return Composite({**TABLE[name][0], **CONTEXT}, shape=(8,))


@pytest.mark.parametrize("name", TABLE)
def test_each_environment_gets_the_encoder_that_fits(name):
    observations, expected = spec(name), TABLE[name][1]
    inputs = inputs_from_spec(observations, batch_dims=1)
    goals = (
        MLPGoalEncoder(*observations["goal"].shape[1:]) if "goal" in observations.keys() else None
    )
    module = make_timestep_encoder(inputs, goal_encoder=goals, embedding_size=24)
    vectors = [key for key in inputs if key not in expected]
    encoded = [key for key in inputs if key in expected]
    assert module.in_keys == [*vectors, *encoded, *(["goal"] if goals is not None else [])]
    by_key = zip(module.encoded_keys, module.encoders, strict=True)
    assert {key: type(encoder).__name__ for key, encoder in by_key} == expected
    assert {encoder.out_features for encoder in module.encoders} <= {24}
    assert module(observations.rand())["features"].shape == (8, 64)


def test_the_chosen_image_encoder_is_for_large_pictures_only():
    inputs = {"large": Input((64, 64, 3), "image"), "small": Input((7, 7, 3), "image")}
    module = make_timestep_encoder(inputs, image_encoder="nature", max_images=5)
    assert [type(encoder).__name__ for encoder in module.encoders] == ["NatureCNN", "GridCNN"]
    assert [encoder.max_images for encoder in module.encoders] == [5, 5]


def test_where_all_are_vectors_it_is_the_mlp_of_their_sizes_from_the_same_seed():
    inputs = inputs_from_spec(spec("maze"), batch_dims=1)
    settings = {"hidden_size": 32, "out_size": 16, "num_layers": 3}
    torch.manual_seed(0)
    ours = make_timestep_encoder(inputs, goal_encoder=MLPGoalEncoder(3, 2), **settings)
    torch.manual_seed(0)
    sizes = {key: value.size for key, value in inputs.items()}
    mlp = MLPTimestepEncoder(sizes, goal_encoder=MLPGoalEncoder(3, 2), **settings)
    assert ours.state_dict().keys() == mlp.state_dict().keys()
    assert all(
        torch.equal(value, mlp.state_dict()[name]) for name, value in ours.state_dict().items()
    )
    td = spec("maze").rand()
    assert torch.equal(ours(td.clone())["features"], mlp(td.clone())["features"])


def test_the_defaults_of_the_trunk_are_those_of_the_mlp():
    ours = inspect.signature(make_timestep_encoder).parameters
    for name in ("hidden_size", "out_size", "num_layers", "normalize"):
        assert ours[name].default == inspect.signature(MLPTimestepEncoder).parameters[name].default


@pytest.mark.parametrize("value", [Input((4,)), Input((7, 7), "image")], ids=["vector", "image"])
def test_the_settings_of_the_trunk_arrive(value):
    inputs = {"observation": value, "time": Input((1,))}
    module = make_timestep_encoder(
        inputs, hidden_size=24, out_size=16, num_layers=3, normalize=False
    )
    linear = [layer for layer in module.mlp if isinstance(layer, torch.nn.Linear)]
    assert [layer.out_features for layer in linear] == [24, 24, 24, 16]
    assert module.normalizer is None


def test_channels_that_the_shape_does_not_tell_can_be_said():
    inputs = {"observation": Input((9, 9, 9), "image")}
    with pytest.raises(
        ValueError, match="make_timestep_encoder: channel_axis must be 'first' or 'last'"
    ):
        make_timestep_encoder(inputs)
    module = make_timestep_encoder(inputs, channel_axis="last")
    td = TensorDict(observation=torch.zeros(2, 9, 9, 9, dtype=torch.uint8), batch_size=2)
    assert module(td)["features"].shape == (2, 64)


def test_an_unknown_image_encoder_is_refused():
    message = (
        r"make_timestep_encoder: image_encoder must be one of \('impala', 'nature'\), got 'resnet'"
    )
    with pytest.raises(ValueError, match=message):
        make_timestep_encoder({"time": Input((1,))}, image_encoder="resnet")


def test_pictures_that_the_chosen_encoder_cannot_read_are_refused():
    with pytest.raises(
        ValueError, match=r"NatureCNN: shape must have at least 36 x 36 pixels, got \(32, 32, 3\)"
    ):
        make_timestep_encoder({"pixels": Input((32, 32, 3), "image")}, image_encoder="nature")


FLOATS = Input((36, 40, 3), "image", max_value=255.0)


def test_floats_are_scaled_by_their_bound_as_bytes_are():
    bytes_, floats = Input((36, 40, 3), "image"), FLOATS
    torch.manual_seed(0)
    of_bytes = make_timestep_encoder({"observation": bytes_})
    torch.manual_seed(0)
    of_floats = make_timestep_encoder({"observation": floats})
    pixels = torch.randint(256, (2, 36, 40, 3), dtype=torch.uint8)
    one = of_bytes(TensorDict(observation=pixels, batch_size=2))["features"]
    other = of_floats(TensorDict(observation=pixels.float(), batch_size=2))["features"]
    torch.testing.assert_close(one, other)
    shares = of_floats(TensorDict(observation=pixels / 255, batch_size=2))["features"]
    assert not torch.allclose(one, shares)


def test_bytes_alone_is_the_encoder_of_earlier_versions():
    inputs = {
        "bytes": Input((36, 36, 3), "image"),
        "floats": FLOATS,
        "frames": Input((4, 36, 36, 3), "image"),
    }
    assert len(make_timestep_encoder(inputs).encoders) == 3
    module = make_timestep_encoder(inputs, images="bytes")
    assert module.encoded_keys == ["bytes"]
    assert module.in_sizes == {"floats": FLOATS.size, "frames": 4 * 36 * 36 * 3}


def test_narrow_tables_of_bytes_are_vectors_and_need_no_word(recwarn):
    module = make_timestep_encoder({"hand": Input((2, 8), "image"), "time": Input((1,))})
    assert module.in_sizes == {"hand": 16, "time": 1}
    assert not recwarn


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (Input((64, 64, 2)), 8192),
        (Input((2, 4, 32, 32, 3)), 24576),
        (Input((9, 9, 9), "image", max_value=1.0), 729),
        (Input((4, 64, 3, 64), "image"), 49152),
        (Input((2, 3000), "image"), 6000),
    ],
)
def test_what_is_flattened_although_it_is_large_is_named_with_its_size(value, size):
    with pytest.warns(FlattenedWarning, match=f"camera .*is read as {size} numbers") as caught:
        module = make_timestep_encoder({"camera": value, "time": Input((1,))})
    assert module.in_sizes["camera"] == size
    assert len(caught) == 1
    assert "timestep_encoder=mlp" in str(caught[0].message)


@pytest.mark.parametrize("value", [Input((64, 64)), Input((8192,)), FLOATS, Input((9, 9), "image")])
def test_ordinary_inputs_need_no_word(value, recwarn):
    make_timestep_encoder({"observation": value})
    assert not recwarn


def test_each_picture_has_its_own_channel_axis():
    inputs = {
        "front": Input((36, 36, 3), "image"),
        "back": Input((3, 36, 36), "image"),
        ("top", "grid"): Input((9, 9, 9), "image"),
    }
    with pytest.raises(ValueError, match=r"ambiguous shape \(9, 9, 9\).*top.grid"):
        make_timestep_encoder(inputs)
    module = make_timestep_encoder(inputs, channel_axis={"top.grid": "first"})
    axes = [encoder.image_shape.channel_axis for encoder in module.encoders]
    assert axes == ["last", "first", "first"]
    with pytest.raises(ValueError, match=r"channel_axis must name inputs.*got \['side'\]"):
        make_timestep_encoder(inputs, channel_axis={"side": "first"})
