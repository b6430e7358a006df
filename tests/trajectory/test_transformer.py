"""The Transformer encoder: its network, its options, and acting past the end of its memory."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from yamame.checks import UsageError
from yamame.trajectory import SigmaReparamLinear, TransformerEncoder, segment_positions


@torch.no_grad()
def step(encoder, x, is_init, step_index=None):
    """One timestep from the memory that the encoder keeps."""
    context, encoder.memory = encoder.step(x, encoder.ready_memory(is_init), is_init, step_index)
    return context


SMALL = {"d_model": 8, "num_heads": 2, "num_layers": 2, "dropout": 0.0, "sigma_reparam": True}


def run(
    encoder: TransformerEncoder, x: torch.Tensor, starts: torch.Tensor | None = None
) -> torch.Tensor:
    starts = torch.arange(x.shape[1]).eq(0).expand(x.shape[:2]) if starts is None else starts
    with torch.no_grad():
        return encoder.parallel(x, segment_positions(starts), starts)


def act(encoder: TransformerEncoder, x: torch.Tensor) -> torch.Tensor:
    encoder.memory = None
    nothing = torch.zeros(x.shape[0]).bool()
    return torch.stack([step(encoder, x[:, t], nothing) for t in range(x.shape[1])], 1)


def test_the_number_of_parameters_is_that_of_the_reference() -> None:
    encoder = TransformerEncoder(
        256, d_model=256, num_heads=8, num_layers=3, ff_factor=4, sigma_reparam=True
    )
    assert sum(p.numel() for p in encoder.parameters()) == 2_440_996


@pytest.mark.parametrize("rotary", [False, True])
def test_a_layer_reads_a_timestep_as_a_sequence_of_one(rotary: bool) -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=1).eval()
    layer = encoder.layers[0]
    x = torch.randn(5, 8)
    rotation = torch.randn(5, 1, 1, 4) if rotary else None
    weight = torch.rand(5, 1, 1, 1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        assert q.shape == (5, 2, 1, 4)
        return weight * q * k + v

    single = layer(x, attend, rotation)
    assert torch.allclose(single, layer(x.unsqueeze(1), attend, rotation).squeeze(1), atol=1e-6)
    assert not torch.allclose(single, layer(x.flip(0), attend, rotation), atol=1e-3)


def test_the_network_is_the_formula() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, **SMALL).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x = torch.randn(2, 5, 3)

    def map_of(layer: SigmaReparamLinear, y: torch.Tensor) -> torch.Tensor:
        weight = layer.gamma / (layer.u @ layer.weight @ layer.v) * layer.weight
        return F.linear(y, weight, layer.bias)

    def norm_of(layer: nn.LayerNorm, y: torch.Tensor) -> torch.Tensor:
        centred = y - y.mean(-1, keepdim=True)
        return (
            centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight
            + layer.bias
        )

    h = encoder.embed(x)
    for t, i in itertools.product(range(5), range(4)):
        angle = torch.tensor(t / 10_000 ** (2 * i / 8), dtype=torch.float64)
        h[:, t, 2 * i] += angle.sin().float()
        h[:, t, 2 * i + 1] += angle.cos().float()
    for layer in encoder.layers:
        q, k, v = map_of(layer.qkv, norm_of(layer.norm1, h)).chunk(3, -1)
        heads = []
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / 2
            weights = scores.masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf).softmax(-1)
            heads.append(layer.head_scale[head] * (weights @ v[..., part]))
        h = h + norm_of(layer.norm2, map_of(layer.out, torch.cat(heads, -1)))
        inner = norm_of(layer.norm4, F.leaky_relu(map_of(layer.ff1, norm_of(layer.norm3, h))))
        h = h + map_of(layer.ff2, inner)
    assert torch.allclose(run(encoder, x), norm_of(encoder.norm, h), atol=1e-5)


STABILISERS = ["norm_attention", "norm_feedforward", "head_scaling", "sigma_reparam"]


@pytest.mark.parametrize("off", STABILISERS)
def test_each_stabiliser_is_switched_off_on_its_own(off: str) -> None:
    encoder = TransformerEncoder(3, **{**SMALL, off: False})
    modules = list(encoder.modules())
    present = {
        "norm_attention": isinstance(encoder.layers[0].norm2, nn.LayerNorm),
        "norm_feedforward": isinstance(encoder.layers[0].norm4, nn.LayerNorm),
        "head_scaling": encoder.layers[0].head_scale is not None,
        "sigma_reparam": any(isinstance(module, SigmaReparamLinear) for module in modules),
    }
    assert present == {name: name != off for name in STABILISERS}


def test_activations_differ_and_an_unknown_one_is_refused() -> None:
    x, outputs = torch.randn(1, 4, 3), []
    for activation in ("leaky_relu", "gelu", "relu"):
        torch.manual_seed(0)
        outputs.append(run(TransformerEncoder(3, **SMALL, activation=activation).eval(), x))
    assert all(not torch.allclose(a, b, atol=1e-4) for a, b in itertools.combinations(outputs, 2))
    with pytest.raises(ValueError, match=r"activation must be one of .*, got 'swish'"):
        TransformerEncoder(3, **SMALL, activation="swish")


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, **{**SMALL, "dropout": 0.3})
    x = torch.randn(2, 5, 3)
    assert not torch.equal(run(encoder, x), run(encoder, x))
    encoder.eval()
    assert torch.equal(run(encoder, x), run(encoder, x))
    assert torch.allclose(act(encoder, x), run(encoder, x), atol=1e-5)


@pytest.mark.parametrize("sigma_reparam", [True, False])
def test_computing_layers_again_changes_no_number(sigma_reparam: bool) -> None:
    x, starts, twins = torch.randn(2, 5, 3), torch.arange(5).eq(0).expand(2, 5), []
    for again in (False, True):
        torch.manual_seed(0)
        options = {
            **SMALL,
            "dropout": 0.3,
            "sigma_reparam": sigma_reparam,
            "checkpoint_layers": again,
        }
        encoder = TransformerEncoder(3, **options).train()
        torch.manual_seed(1)
        for _ in range(2):
            out = encoder.parallel(x, segment_positions(starts), starts)
            out.pow(3).sum().backward()
        twins.append((encoder, out, torch.rand(())))
    (encoder, out, next_random), (other, other_out, other_random) = twins
    assert torch.equal(out, other_out)
    assert next_random == other_random
    for ours, theirs in zip(encoder.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    for ours, theirs in zip(encoder.buffers(), other.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_layers_that_are_computed_again_keep_little() -> None:
    kept = []
    for again in (False, True):
        encoder = TransformerEncoder(
            3, d_model=8, num_heads=2, num_layers=4, checkpoint_layers=again
        )
        starts = torch.arange(300).eq(0).unsqueeze(0)
        sizes: dict[int, int] = {}

        def note(value: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
            return value

        with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
            encoder.parallel(torch.randn(1, 300, 3), segment_positions(starts), starts)
        kept.append(sum(sizes.values()))
    assert kept[1] < 0.3 * kept[0]


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
def test_a_window_cut_out_of_a_rollout_is_read_by_its_step_index(positions: str) -> None:
    torch.manual_seed(0)
    num_positions = 60 if positions == "learned" else None
    encoder = TransformerEncoder(
        3, **SMALL, positions=positions, num_positions=num_positions
    ).eval()
    x = torch.randn(2, 6, 3)
    starts = torch.arange(6).eq(0).expand(2, 6)
    later = torch.arange(50, 56).expand(2, 6)
    with torch.no_grad():
        found = encoder.parallel(x, later, starts)
        steps = torch.stack(
            [step(encoder, x[:, t], starts[:, t], later[:, t]) for t in range(6)], 1
        )
    assert torch.allclose(found, steps, atol=1e-5)
    # Rotations only tell distances; added positions tell the place.
    assert torch.allclose(found, run(encoder, x), atol=1e-4) is (positions == "rotary")


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
def test_the_order_of_the_past_matters(positions: str) -> None:
    torch.manual_seed(0)
    num_positions = 6 if positions == "learned" else None
    encoder = TransformerEncoder(
        3, **{**SMALL, "num_layers": 1}, positions=positions, num_positions=num_positions
    ).eval()
    x = torch.randn(2, 6, 3)
    swapped = x[:, [1, 0, 2, 3, 4, 5]]
    assert (run(encoder, x)[:, -1] - run(encoder, swapped)[:, -1]).abs().max() > 1e-4


def test_acting_is_exact_up_to_the_context_length_and_forgets_the_oldest_after_it() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, **{**SMALL, "num_layers": 1}, context_length=6).eval()
    x = torch.randn(2, 12, 3)
    steps, whole = act(encoder, x), run(encoder, x)
    assert encoder.context_length == 6
    assert torch.allclose(steps[:, :6], whole[:, :6], atol=1e-5)
    assert (steps[:, 6] - whole[:, 6]).abs().max() > 1e-3
    # With one layer nothing older lives on in the keys: the same as the last six timesteps alone.
    starts = torch.arange(6).eq(0).expand(2, 6)
    for t in range(6, 12):
        with torch.no_grad():
            alone = encoder.parallel(
                x[:, t - 5 : t + 1], torch.arange(t - 5, t + 1).expand(2, 6), starts
            )
        assert torch.allclose(steps[:, t], alone[:, -1], atol=1e-5)


@pytest.mark.parametrize(("window", "sinks"), [(4, 0), (4, 3), (1, 1)])
def test_with_a_window_acting_is_exact_at_any_length(window: int, sinks: int) -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, **SMALL, window=window, sinks=sinks).eval()
    x = torch.randn(2, 40, 3)
    assert encoder.context_length is None
    assert torch.allclose(act(encoder, x), run(encoder, x), atol=1e-5)
    assert encoder.memory["keys"].shape[3] == window + sinks


def test_an_unbounded_context_keeps_everything() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, **SMALL, context_length=None).eval()
    x = torch.randn(2, 150, 3)
    assert torch.allclose(act(encoder, x), run(encoder, x), atol=1e-5)


@pytest.mark.parametrize("sinks", [0, 2])
def test_what_a_window_hides_has_no_influence_and_sinks_do(sinks: int) -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, **{**SMALL, "num_layers": 1}, window=3, sinks=sinks).eval()
    x = torch.randn(1, 10, 3)
    expected = run(encoder, x)[:, -1]
    for t in range(10):
        changed = x.clone()
        changed[:, t] += 1
        differs = not torch.allclose(run(encoder, changed)[:, -1], expected, atol=1e-6)
        assert differs == (t >= 7 or t < sinks)


def test_a_training_pass_moves_every_parameter() -> None:
    encoder = TransformerEncoder(3, **SMALL)
    starts = torch.arange(5).eq(0).expand(2, 5)
    encoder.parallel(torch.randn(2, 5, 3), segment_positions(starts), starts).pow(
        3
    ).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"d_model": 10, "num_heads": 4},
            "d_model must be a multiple of num_heads 4, got 10",
        ),
        (
            {"context_length": 4, "sinks": 4},
            "context_length must hold sinks 4 and window None, got 4",
        ),
        (
            {"context_length": 4, "window": 4, "sinks": 1},
            "context_length must hold sinks 1 and window 4, got 4",
        ),
        ({"positions": "absolute"}, "positions must be one of .*, got 'absolute'"),
        (
            {"positions": "learned"},
            "num_positions must be at least 1 for learned positions, got None",
        ),
        (
            {"positions": "rotary", "num_positions": 4},
            "num_positions must be None for rotary positions, got 4",
        ),
        ({"d_model": 9, "num_heads": 3}, "d_model must be even for sinusoidal positions, got 9"),
        (
            {"d_model": 6, "positions": "rotary"},
            "d_model / num_heads must be even for rotary positions, got 3",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"TransformerEncoder: .*{message}"):
        TransformerEncoder(3, **{**SMALL, **arguments})


def test_a_step_index_beyond_the_learnt_table_is_refused() -> None:
    encoder = TransformerEncoder(3, **SMALL, positions="learned", num_positions=4)
    with pytest.raises(UsageError, match="step_index must be below num_positions 4, got 4"):
        run(encoder, torch.randn(1, 5, 3))
