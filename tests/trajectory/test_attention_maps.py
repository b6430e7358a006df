"""Attention maps are what the network used: probabilities that give back what each head found."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.modules import set_recurrent_mode
from yamame.trajectory import GRUEncoder, TransformerEncoder
from yamame.trajectory.attention_maps import attention_maps

KINDS = {
    "plain": {},
    "rotary": {"positions": "rotary"},
    "window": {"window": 3, "sinks": 1, "context_length": None},
    "no stabilisers": {"sigma_reparam": False, "head_scaling": False},
}


def encoder_of(kind: str) -> TransformerEncoder:
    torch.manual_seed(0)
    return TransformerEncoder(5, d_model=16, num_heads=4, num_layers=3, dropout=0.3, **KINDS[kind])


def sequence_of(*shape: int) -> TensorDict:
    generator = torch.Generator().manual_seed(1)
    return TensorDict({"features": torch.randn(*shape, 5, generator=generator)}, shape)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_sum_to_one_and_nothing_later_is_looked_at(kind):
    maps = attention_maps(encoder_of(kind), sequence_of(2, 7))
    assert maps.shape == (3, 2, 4, 7, 7)
    # float32 rounding of sums of 7 terms
    assert torch.allclose(maps.sum(-1), torch.ones(3, 2, 4, 7), atol=1e-6)
    assert bool((maps.triu(1) == 0).all())
    assert bool((maps >= 0).all())
    assert bool((maps[..., -1, :-1] > 0).any())


@pytest.mark.parametrize("kind", KINDS)
def test_maps_applied_to_the_values_give_the_output_of_every_layers_attention(kind):
    encoder, sequence = encoder_of(kind).eval(), sequence_of(2, 7)
    maps, seen = attention_maps(encoder, sequence), []
    for layer in encoder.layers:
        layer.qkv.register_forward_hook(lambda module, args, output: seen.append(output))
        layer.out.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with set_recurrent_mode(True), torch.no_grad():
        encoder(sequence.clone())
    for layer, weights, qkv, joined in zip(
        encoder.layers, maps, seen[::2], seen[1::2], strict=True
    ):
        values = qkv.unflatten(-1, (3, 4, -1))[:, :, 2].transpose(1, 2)
        scale = 1.0 if layer.head_scale is None else layer.head_scale.detach()
        # two orders of the same float32 sums
        assert torch.allclose(
            (scale * (weights @ values)).transpose(1, 2).flatten(-2), joined, atol=1e-5
        )
        wrong = (scale * (weights.flip(1) @ values)).transpose(1, 2).flatten(-2)
        assert not torch.allclose(wrong, joined, atol=1e-3)


def test_a_window_with_sinks_and_a_start_hide_what_they_say():
    maps = attention_maps(encoder_of("window"), sequence_of(7))
    assert bool((maps[..., 6, [0, 4, 5, 6]] > 0).all())
    assert bool((maps[..., 6, 1:4] == 0).all())
    starts = torch.zeros(7, 1, dtype=torch.bool).index_fill(0, torch.tensor([4]), True)
    maps = attention_maps(encoder_of("plain"), sequence_of(7).set("is_init", starts))
    assert bool((maps[..., 4:, :4] == 0).all())
    assert bool((maps[..., 4:, 4] > 0).all())


def test_the_encoder_and_the_sequence_are_left_as_they_were():
    encoder, sequence = encoder_of("plain").train(), sequence_of(7)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    first = attention_maps(encoder, sequence)
    assert torch.equal(first, attention_maps(encoder, sequence))
    assert encoder.training
    assert set(sequence.keys()) == {"features"}
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert not any(module._forward_pre_hooks for module in encoder.modules())


def test_another_encoder_is_refused():
    with pytest.raises(ValueError, match="encoder must be a TransformerEncoder, got GRUEncoder"):
        attention_maps(GRUEncoder(5), sequence_of(7))
