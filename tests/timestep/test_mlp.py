"""The MLP encoder reads every input, and encodes every timestep by itself."""

import pytest
import torch
from tensordict import TensorDict
from yamame.goals import GOAL_PAD
from yamame.timestep import Input, MLPGoalEncoder, MLPTimestepEncoder

SIZES = {
    ("camera", "pose"): 6,
    "observation": 4,
    "prev_reward": 1,
    "step_kind": 1,
    "trial_start": 1,
}


def inputs(*batch: int, seed: int = 0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=generator)

    goal = torch.randint(0, 30, (*batch, 3, 2), generator=generator).float()
    goal[..., 2, :] = GOAL_PAD
    return TensorDict(
        {
            "camera": {"pose": normal(2, 3)},
            "observation": normal(4).double(),
            "prev_reward": normal(1),
            "step_kind": torch.randint(0, 5, batch, generator=generator),
            "trial_start": torch.rand(*batch, 1, generator=generator) < 0.5,
            "goal": goal,
        },
        batch_size=batch,
    )


def encoder(**arguments) -> MLPTimestepEncoder:
    torch.manual_seed(0)
    return MLPTimestepEncoder(SIZES, goal_encoder=MLPGoalEncoder(3, 2), out_size=8, **arguments)


def test_acting_on_envs_equals_training_on_sequences():
    module = encoder()
    module(inputs(5, 7))
    module.eval()
    sequences = inputs(5, 7, seed=1)
    parallel = module(sequences.clone())["features"]
    assert parallel.shape == (5, 7, 8)
    assert parallel.dtype == torch.float32
    for t in range(7):
        # matrix products of another batch size may add in another order
        torch.testing.assert_close(
            module(sequences[:, t].clone())["features"], parallel[:, t], rtol=1e-5, atol=1e-5
        )


def test_features_are_normalised_by_layer_norm():
    features = encoder()(inputs(64))["features"]
    torch.testing.assert_close(features.mean(-1), torch.zeros(64), atol=1e-5, rtol=0)
    # the epsilon in LayerNorm takes a little off features of small raw variance
    torch.testing.assert_close(features.var(-1, correction=0), torch.ones(64), atol=5e-2, rtol=0)


@pytest.mark.parametrize("key", [*SIZES, "goal"])
def test_every_input_reaches_the_features(key):
    module = encoder()
    module(inputs(64))
    module.eval()
    td = inputs(3)
    before = module(td.clone())["features"]
    value = td[key]
    td[key] = ~value if value.dtype == torch.bool else value + 1
    assert bool(((module(td)["features"] - before).abs().amax(-1) > 1e-4).all())


def test_keys_that_are_not_declared_do_not_reach_the_features():
    module = encoder().eval()
    td = inputs(3)
    before = module(td.clone())["features"]
    td["success"] = torch.ones(3, 1)
    assert torch.equal(module(td)["features"], before)


def test_statistics_come_from_real_timesteps_only():
    module = encoder()
    td = inputs(4, 6)
    td["mask"] = (torch.arange(6) < 4).repeat(4, 1).unsqueeze(-1)
    td[:, 4:] = td[:, 4:].apply(torch.zeros_like)
    td["mask"][:, 4:] = False
    module(td)
    assert module.normalizer is not None
    expected = td["observation"][:, :4].reshape(-1, 4).mean(0).float()
    torch.testing.assert_close(module.normalizer.mean[6:10].float(), expected)
    goals = td["goal"][:, :4, :2].reshape(-1, 2).mean(0)
    torch.testing.assert_close(module.goal_encoder.normalizer.mean.float(), goals)

    leaky = encoder()
    leaky(td.exclude("mask"))
    assert not torch.allclose(leaky.normalizer.mean[6:10].float(), expected)


def test_statistics_stand_still_in_evaluation_mode():
    module = encoder().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module(inputs(8))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_declared_order_decides_not_the_order_in_the_tensordict():
    module = encoder().eval()
    td = inputs(3)
    shuffled = TensorDict({key: td[key] for key in reversed(list(td.keys()))}, batch_size=3)
    assert torch.equal(module(td)["features"], module(shuffled)["features"])


def test_goals_are_not_read_without_a_goal_encoder():
    module = MLPTimestepEncoder(SIZES, out_size=8)
    assert "goal" not in module.in_keys
    assert module(inputs(3).exclude("goal"))["features"].shape == (3, 8)


def test_a_goal_encoder_must_say_how_wide_it_is():
    broken = MLPGoalEncoder(3, 2)
    broken.out_features = None
    with pytest.raises(ValueError, match=r"goal_encoder\.out_features must be an int, got None"):
        MLPTimestepEncoder(SIZES, goal_encoder=broken)


@pytest.mark.parametrize(("key", "name"), [("observation", "'observation'"), ("goal", "'goal'")])
def test_a_missing_input_is_named(key, name):
    with pytest.raises(
        ValueError, match=f"MLPTimestepEncoder: input {name} must be in the tensordict"
    ):
        encoder()(inputs(3).exclude(key))


def test_an_input_of_another_size_is_named():
    td = inputs(3)
    td["observation"] = torch.zeros(3, 5)
    with pytest.raises(
        ValueError,
        match=r"input 'observation' must hold 4 numbers per timestep .*got \(3, 5\)",
    ):
        encoder()(td)


@pytest.mark.parametrize("name", ["hidden_size", "out_size", "num_layers"])
def test_sizes_must_be_positive(name):
    with pytest.raises(ValueError, match=f"MLPTimestepEncoder: {name} must be .*, got 0"):
        MLPTimestepEncoder(SIZES, **{name: 0})


def test_inputs_must_be_named():
    with pytest.raises(ValueError, match=r"in_sizes must name inputs of positive size, got \{\}"):
        MLPTimestepEncoder({})


def test_inputs_instead_of_sizes_change_no_number():
    torch.manual_seed(0)
    shapes = {key: (2, 3) if key == ("camera", "pose") else (size,) for key, size in SIZES.items()}
    declared = {key: Input(shape) for key, shape in shapes.items()}
    module = MLPTimestepEncoder(declared, goal_encoder=MLPGoalEncoder(3, 2), out_size=8)
    td = inputs(5, 7)
    assert torch.equal(module(td.clone())["features"], encoder()(td.clone())["features"])


def test_images_and_tokens_are_flattened_like_any_numbers():
    declared = {"cells": Input((2, 2), "tokens", 9), "pixels": Input((4, 4, 3), "image")}
    torch.manual_seed(0)
    module = MLPTimestepEncoder(declared, out_size=8)
    torch.manual_seed(0)
    flat = MLPTimestepEncoder({"cells": 4, "pixels": 48}, out_size=8)
    pixels = torch.randint(
        0, 256, (5, 4, 4, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    td = TensorDict(cells=torch.arange(20).reshape(5, 2, 2) % 9, pixels=pixels, batch_size=5)
    features = module(td.clone())["features"]
    assert torch.equal(
        features, flat(td.flatten(0, 0).apply(lambda x: x.flatten(1).float()))["features"]
    )
    assert module.normalizer is not None
    torch.testing.assert_close(
        module.normalizer.mean[4:].float(), pixels.flatten(1).float().mean(0)
    )


def test_the_activation_and_the_largest_number_are_options():
    """By hand: one input, normalised by its initial statistics, is what is clipped."""
    torch.manual_seed(0)
    encoder = MLPTimestepEncoder({"x": 1}, clip=3.0, activation="mish", num_layers=1).eval()
    timesteps = TensorDict({"x": torch.tensor([[-9.0], [1.0], [9.0]])}, [3])
    first, last = (layer for layer in encoder.mlp if isinstance(layer, torch.nn.Linear))
    clipped = timesteps["x"].clamp(-3.0, 3.0)
    by_hand = encoder.norm(last(torch.nn.functional.mish(first(clipped))))
    torch.testing.assert_close(encoder(timesteps)["features"], by_hand)
    for options in ({"clip": 0.0}, {"activation": "tanh"}):
        with pytest.raises(ValueError, match=f"MLPTimestepEncoder: {next(iter(options))}"):
            MLPTimestepEncoder({"x": 1}, **options)
