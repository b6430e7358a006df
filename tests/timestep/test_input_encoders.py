"""An input with its own encoder reaches the features only through this encoder."""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from yamame.timestep import (
    GridCNN,
    ImpalaCNN,
    MLPGoalEncoder,
    MLPTimestepEncoder,
    TokenEncoder,
)

VECTORS = {"observation": 4, "trial_start": 1}
ENCODED = [("camera", "front"), "textures", "mission"]


def seen(*batch: int, seed: int = 0) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)

    def pixels(*shape):
        return torch.randint(0, 256, (*batch, *shape), dtype=torch.uint8, generator=generator)

    return TensorDict(
        {
            "camera": {"front": pixels(16, 20, 3)},
            "mission": torch.randint(0, 12, (*batch, 4), generator=generator),
            "observation": torch.randn(*batch, 2, 2, generator=generator),
            "textures": pixels(5, 6),
            "trial_start": torch.rand(*batch, 1, generator=generator) < 0.5,
            "goal": torch.randn(*batch, 3, 2, generator=generator),
        },
        batch_size=batch,
    )


def build(seed: int = 0, **arguments) -> MLPTimestepEncoder:
    torch.manual_seed(seed)
    encoders = {
        ("camera", "front"): ImpalaCNN((16, 20, 3), out_features=12),
        "textures": GridCNN((5, 6), out_features=8),
        "mission": TokenEncoder((4,), num_tokens=12, out_features=10),
    }
    goals = MLPGoalEncoder(3, 2)
    return MLPTimestepEncoder(
        VECTORS, encoders=encoders, goal_encoder=goals, out_size=8, **arguments
    )


def test_acting_on_envs_equals_training_on_sequences():
    module = build()
    module(seen(5, 7))
    module.eval()
    sequences = seen(5, 7, seed=1)
    parallel = module(sequences.clone())["features"]
    assert parallel.shape == (5, 7, 8)
    assert parallel.dtype == torch.float32
    for t in range(7):
        acting = module(sequences[:, t].clone())["features"]
        # products of another batch size may add in another order
        torch.testing.assert_close(acting, parallel[:, t], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(parallel[:, 0], parallel[:, 1], atol=1e-2)


@pytest.mark.parametrize("key", [*VECTORS, *ENCODED, "goal"])
def test_every_input_reaches_the_features(key):
    module = build()
    module(seen(64))
    module.eval()
    td = seen(3)
    before = module(td.clone())["features"]
    td[key] = seen(3, seed=1)[key] if key != "trial_start" else ~td[key]
    assert bool(((module(td)["features"] - before).abs().amax(-1) > 1e-4).all())


def test_exactly_the_listed_keys_are_read():
    module = build().eval()
    assert module.in_keys == [*VECTORS, *ENCODED, "goal"]
    td = seen(3)
    before = module(td.clone())["features"]
    td["success"] = torch.ones(3, 1)
    td["camera", "back"] = td["camera", "front"]
    assert torch.equal(module(td)["features"], before)


def test_bytes_stay_bytes_until_their_encoder_reads_them():
    module, arrived = build(), []
    for encoder in module.encoders:
        encoder.register_forward_pre_hook(lambda _, values: arrived.append(values[0].dtype))
    td = seen(3)
    after = module(td)
    assert arrived == [torch.uint8, torch.uint8, torch.int64]
    assert after["camera", "front"].dtype == torch.uint8
    assert after["textures"].dtype == torch.uint8


def test_padding_moves_neither_statistics_nor_the_features_of_real_timesteps():
    def padded(rubbish: int) -> TensorDict:
        td = seen(4, 6)
        td["mask"] = (torch.arange(6) < 4).repeat(4, 1).unsqueeze(-1)
        return TensorDict(
            {
                key: torch.where(
                    td["mask"].reshape(4, 6, *[1] * (value.ndim - 2)),
                    value,
                    torch.full_like(value, rubbish),
                )
                if key != "mask"
                else value
                for key, value in td.items(True, True)
            },
            batch_size=(4, 6),
        )

    first, second = build(), build()
    quiet, loud = first(padded(0))["features"], second(padded(1))["features"]
    torch.testing.assert_close(loud[:, :4], quiet[:, :4], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(loud[:, 4:], quiet[:, 4:], atol=1e-3)
    buffers = dict(second.named_buffers())
    assert {"normalizer.mean", "goal_encoder.normalizer.mean"} <= set(buffers)
    for name, value in first.named_buffers():
        assert torch.equal(buffers[name], value)
    leaky = build()
    leaky(padded(1).exclude("mask"))
    assert not torch.allclose(leaky.normalizer.mean, first.normalizer.mean)


def test_vectors_share_one_normaliser_and_pictures_have_none():
    module = build()
    td = seen(50)
    module(td)
    vectors = torch.cat([td["observation"].flatten(1), td["trial_start"].float()], -1)
    assert module.normalizer is not None
    torch.testing.assert_close(module.normalizer.mean.float(), vectors.mean(0))
    assert build(normalize=False).normalizer is None


def test_every_parameter_learns():
    module = build()
    weights = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    (module(seen(32))["features"] * weights).sum().backward()
    assert [
        name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()
    ] == []


def test_copies_and_saved_weights_encode_alike():
    module = build()
    module(seen(20))
    module.eval()
    expected = module(seen(3))["features"]
    assert torch.equal(copy.deepcopy(module)(seen(3))["features"], expected)
    assert torch.equal(pickle.loads(pickle.dumps(module))(seen(3))["features"], expected)
    fresh = build(seed=1).eval()
    assert not torch.allclose(fresh(seen(3))["features"], expected, atol=1e-2)
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh(seen(3))["features"], expected)


def test_pictures_alone_need_no_vector():
    module = MLPTimestepEncoder({}, encoders={"textures": GridCNN((5, 6))})
    assert module.normalizer is None
    assert module(seen(3).select("textures"))["features"].shape == (3, 64)


def test_a_vector_may_have_an_encoder_of_its_own():
    class Own(nn.Module):
        out_features = 5

        def forward(self, value):
            return value.sum(-1).repeat(*[1] * (value.ndim - 2), 3)[..., :5]

    module = MLPTimestepEncoder({"trial_start": 1}, encoders={"observation": Own()})
    assert module.in_keys == ["trial_start", "observation"]
    assert module(seen(3))["features"].shape == (3, 64)


def test_a_key_is_listed_once():
    message = r"MLPTimestepEncoder: encoders must .* keys than in_sizes, got \[\"\('a', 'b'\)\"\]"
    with pytest.raises(ValueError, match=message):
        MLPTimestepEncoder({("a", "b"): 2, "c": 1}, encoders={("a", "b"): nn.Identity()})


def test_an_encoder_must_say_how_wide_it_is():
    broken = GridCNN((5, 6))
    broken.out_features = 3.0
    with pytest.raises(
        ValueError, match=r"encoders\['textures'\]\.out_features must be an int, got 3\.0"
    ):
        MLPTimestepEncoder({}, encoders={"textures": broken})


def test_missing_inputs_and_other_shapes_are_named():
    with pytest.raises(
        ValueError, match="MLPTimestepEncoder: input 'textures' must be in the tensordict"
    ):
        build()(seen(3).exclude("textures"))
    td = seen(3)
    td["textures"] = td["textures"].unsqueeze(1)
    message = (
        r"input 'textures' must hold one .* per timestep at batch size \(3,\), got \(3, 1, 5, 6\)"
    )
    with pytest.raises(ValueError, match=message):
        build()(td)
    td["textures"] = td["textures"].squeeze(1).transpose(1, 2)
    with pytest.raises(
        ValueError, match=r"GridCNN: image must end in shape \(5, 6\), got \(3, 6, 5\)"
    ):
        build()(td)
