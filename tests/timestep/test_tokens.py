"""Token encoders: a meaning for each token at each place, and one for unknown tokens."""

import copy
import pickle

import pytest
import torch
from torch import nn
from yamame.timestep import TokenEncoder

SHAPES = [(), (9,), (2, 5), (7, 9), (7, 7, 3), (3, 5, 4)]
every_shape = pytest.mark.parametrize("shape", SHAPES)


def build(shape: tuple[int, ...], **arguments) -> TokenEncoder:
    torch.manual_seed(0)
    axis = "first" if shape == (3, 5, 4) else "auto"
    return TokenEncoder(shape, num_tokens=11, out_features=16, channel_axis=axis, **arguments)


def tokens(shape: tuple[int, ...], *batch: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 11, (*batch, *shape), generator=torch.Generator().manual_seed(seed))


@every_shape
def test_each_timestep_is_encoded_on_its_own(shape):
    module, seen = build(shape), tokens(shape, 3, 4)
    parallel = module(seen)
    assert parallel.shape == (3, 4, 16)
    assert parallel.dtype == torch.float32
    for t in range(4):
        # matrix products of another batch size may add in another order
        torch.testing.assert_close(module(seen[:, t]), parallel[:, t], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module(seen[0, 0]), parallel[0, 0], rtol=1e-4, atol=1e-4)


@every_shape
def test_a_token_at_any_place_shows_in_the_embedding(shape):
    module = build(shape)
    seen = tokens(shape)
    base = module(seen)
    for place in range(seen.numel()):
        changed = seen.clone()
        changed.view(-1)[place] = (changed.view(-1)[place] + 1) % 11
        assert bool((module(changed) - base).abs().amax() > 1e-4)


@every_shape
def test_another_naming_of_the_same_things_is_another_input(shape):
    module, seen = build(shape), tokens(shape, 5)
    renamed = torch.randperm(11, generator=torch.Generator().manual_seed(1))[seen]
    different = (renamed != seen).reshape(5, -1).any(-1)
    assert bool(different.any())
    changed = (module(renamed) - module(seen)).abs().amax(-1) > 1e-4
    assert torch.equal(changed, different)


def test_the_order_of_words_matters():
    module, seen = build((9,)), tokens((9,), 5)
    assert bool(((module(seen.flip(-1)) - module(seen)).abs().amax(-1) > 1e-4).all())


def test_a_number_means_another_thing_in_each_channel():
    module = build((7, 7, 3))
    in_first, in_second = torch.zeros(2, 7, 7, 3, dtype=torch.int64)
    in_first[..., 0], in_second[..., 1] = 5, 5
    assert not torch.allclose(module(in_first), module(in_second), atol=1e-3)
    module(in_second.unsqueeze(0)).square().sum().backward()
    rows = module.grid.cells.weight.grad.any(-1).nonzero().flatten().tolist()
    assert rows == [
        0 * 12 + 1,
        1 * 12 + 1 + 5,
        2 * 12 + 1,
    ]  # each channel has 11 tokens and unknown, which is 0


def test_cells_are_not_mixed_before_the_linear_layer():
    module, seen = build((7, 7, 3)), tokens((7, 7, 3), 1)
    before_norm = []
    module.grid.norm.register_forward_pre_hook(lambda _, inputs: before_norm.append(inputs[0]))
    first, second, both = seen.clone(), seen.clone(), seen.clone()
    for changed in (first, both):
        changed[:, 3, 3] = (changed[:, 3, 3] + 1) % 11
    for changed in (second, both):
        changed[:, 3, 4] = (changed[:, 3, 4] + 1) % 11
    for grid in (seen, first, second, both):
        module(grid)
    base, of_first, of_second, of_both = before_norm
    # The effects of neighbouring cells add up.
    torch.testing.assert_close(of_both - base, of_first + of_second - 2 * base, rtol=0, atol=1e-4)
    assert bool(((of_first - base).abs() > 1e-2).any())


def test_channels_first_and_last_show_the_same_grid():
    torch.manual_seed(0)
    first = TokenEncoder((2, 5, 7), num_tokens=11, out_features=16)
    last = TokenEncoder((5, 7, 2), num_tokens=11, out_features=16)
    last.load_state_dict(first.state_dict())
    seen = tokens((2, 5, 7), 4)
    torch.testing.assert_close(last(seen.movedim(1, -1)), first(seen))


@every_shape
def test_tokens_outside_the_vocabulary_are_unknown_and_like_no_known_one(shape):
    module = build(shape)
    seen = torch.full((14, *shape), 3)
    seen.view(14, -1)[:, 0] = torch.tensor([-1, 11, 1000, *range(11)])
    embedding = module(seen)
    torch.testing.assert_close(embedding[:3], embedding[:1].expand(3, -1), rtol=1e-4, atol=1e-4)
    assert bool(((embedding[3:] - embedding[0]).abs().amax(-1) > 1e-4).all())
    assert module.token_ids(torch.tensor([-1, 0, 10, 11])).tolist() == [0, 1, 11, 0]


@every_shape
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_any_integer_dtype_names_the_same_tokens(shape, dtype):
    module, seen = build(shape), tokens(shape, 4)
    assert torch.equal(module(seen.to(dtype)), module(seen))


@every_shape
def test_every_parameter_learns_and_of_tables_the_rows_that_are_seen(shape):
    module = build(shape)
    weights = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    (module(tokens(shape, 64)) * weights).sum().backward()
    silent = [name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    # queries over a sequence of one have nothing to choose between
    assert silent == (["sequence.queries.weight"] if shape == () else [])


@every_shape
def test_copies_and_saved_weights_encode_alike(shape):
    module, seen = build(shape), tokens(shape, 2)
    expected = module(seen)
    assert torch.equal(copy.deepcopy(module)(seen), expected)
    assert torch.equal(pickle.loads(pickle.dumps(module))(seen), expected)
    fresh = build(shape)
    nn.init.zeros_(next(fresh.parameters()))
    assert not torch.allclose(fresh(seen), expected, atol=1e-3)
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh(seen), expected)


def accuracy_after_learning(shape: tuple[int, ...], *, shuffled: bool = False) -> float:
    """Train to find the half of the places that holds the token 7, and return the accuracy."""
    torch.manual_seed(0)
    classifier = nn.Sequential(build(shape), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(classifier.parameters(), lr=3e-3)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen = torch.randint(0, 7, (count, *shape))
        flat = seen.view(count, -1)
        place = torch.randint(0, flat.shape[1], (count, 1))
        flat.scatter_(1, place, 7)
        return seen, (place.squeeze(1) >= flat.shape[1] // 2).long()

    for _ in range(150):
        seen, half = draw(64)
        if shuffled:
            half = half[torch.randperm(64)]
        loss = nn.functional.cross_entropy(classifier(seen), half)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        seen, half = draw(512)
        return float((classifier(seen).argmax(-1) == half).float().mean())


@pytest.mark.parametrize("shape", [(8,), (6, 7)])
def test_where_a_token_is_can_be_learned(shape):
    assert accuracy_after_learning(shape) > 0.9


def test_shuffled_labels_are_not_learned():
    assert accuracy_after_learning((8,), shuffled=True) < 0.6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (9,), "num_tokens": 0}, "num_tokens must be at least 1, got 0"),
        (
            {"shape": (9,), "num_tokens": 5, "out_features": 0},
            "out_features must be at least 1, got 0",
        ),
        (
            {"shape": (9,), "num_tokens": 5, "embedding_size": -1},
            "embedding_size must be at least 1, got -1",
        ),
        (
            {"shape": (2, 3, 4, 5), "num_tokens": 5},
            r"shape must have at most 3 dimensions, got \(2, 3, 4, 5\)",
        ),
        ({"shape": (5, 5, 5), "num_tokens": 5}, "channel_axis must be 'first' or 'last'"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"TokenEncoder: {message}"):
        TokenEncoder(**arguments)


def test_tokens_of_another_shape_or_that_are_no_integers_are_refused():
    module = build((7, 9))
    with pytest.raises(ValueError, match=r"tokens must end in shape \(7, 9\), got \(5, 9, 7\)"):
        module(torch.zeros(5, 9, 7, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"tokens must be integers, got torch\.float32"):
        module(torch.zeros(5, 7, 9))
