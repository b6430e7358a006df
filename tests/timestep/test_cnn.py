"""Image encoders: channels, scaling, independence of the batch, parts, and positions."""

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from torch import nn
from yamame.timestep import GridCNN, ImpalaCNN, NatureCNN

SIZE = 40
BUILD = {
    "nature": lambda shape=(SIZE, SIZE, 3), **kw: NatureCNN(shape, out_features=32, **kw),
    "impala": lambda shape=(SIZE, SIZE, 3), **kw: ImpalaCNN(shape, out_features=32, **kw),
    "plain impala": lambda shape=(SIZE, SIZE, 3), **kw: ImpalaCNN(
        shape, out_features=32, num_groups=0, **kw
    ),
    "grid": lambda shape=(7, 7, 3), **kw: GridCNN(shape, out_features=32, **kw),
}
every_encoder = pytest.mark.parametrize("kind", BUILD)


def build(kind: str, *arguments, **options):
    torch.manual_seed(0)
    return BUILD[kind](*arguments, **options)


def images(shape: tuple[int, ...], *batch: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (*batch, *shape), dtype=torch.uint8, generator=generator)


@every_encoder
def test_each_timestep_is_encoded_on_its_own(kind):
    module = build(kind)
    sequences = images(module.shape, 3, 4)
    parallel = module(sequences)
    assert parallel.shape == (3, 4, 32)
    assert parallel.dtype == torch.float32
    for t in range(4):
        # convolutions of another batch size may add in another order
        torch.testing.assert_close(module(sequences[:, t]), parallel[:, t], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module(sequences[1, 2]), parallel[1, 2], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(parallel[:, 0], parallel[:, 1], atol=1e-2)


@every_encoder
def test_the_embedding_is_normalised_by_layer_norm(kind):
    embedding = build(kind)(images(build(kind).shape, 16))
    torch.testing.assert_close(embedding.mean(-1), torch.zeros(16), atol=1e-5, rtol=0)
    assert bool((embedding.var(-1, correction=0) <= 1.0 + 1e-4).all())


@every_encoder
def test_channels_last_and_channels_first_show_the_same_picture(kind):
    last = build(kind)
    first = build(kind, (3, *last.shape[:2]))
    pixels = images(last.shape, 6)
    # another memory layout may add in another order
    torch.testing.assert_close(
        first(pixels.movedim(-1, -3).contiguous()), last(pixels), rtol=1e-4, atol=1e-4
    )
    said = build(kind, (*last.shape[:2], 3), channel_axis="last")
    assert torch.equal(said(pixels), last(pixels))
    assert not torch.allclose(last(pixels.transpose(-3, -2)), last(pixels), atol=1e-2)


@every_encoder
def test_a_picture_of_two_dimensions_has_one_channel(kind):
    flat = build(kind, (SIZE, SIZE + 4))
    channel = build(kind, (1, SIZE, SIZE + 4))
    pixels = images(flat.shape, 3)
    torch.testing.assert_close(flat(pixels), channel(pixels.unsqueeze(1)))


@every_encoder
def test_bytes_are_divided_by_255_and_floats_are_not(kind):
    module = build(kind)
    pixels = images(module.shape, 4)
    assert torch.equal(module(pixels), module(pixels.float() / 255))
    assert not torch.allclose(module(pixels), module(pixels.float()), atol=1e-2)


@every_encoder
def test_encoding_in_parts_changes_memory_and_no_number(kind):
    whole, parts = build(kind), build(kind, max_images=4)
    pixels = images(whole.shape, 3, 5)
    weights = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(0))
    kept = {}
    for name, module in (("whole", whole), ("parts", parts)):
        sizes = []

        def pack(x, sizes=sizes):
            sizes.append(x.nbytes)
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            embedding = module(pixels)
        kept[name] = sum(sizes)
        (embedding * weights).sum().backward()
        # parts of another batch size may add in another order
        torch.testing.assert_close(embedding, whole(pixels), rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    assert kept["parts"] <= pixels.nbytes < kept["whole"] / 4


@every_encoder
def test_every_parameter_learns(kind):
    module = build(kind)
    weights = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    (module(images(module.shape, 8)) * weights).sum().backward()
    assert [
        name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()
    ] == []


@every_encoder
def test_copies_and_saved_weights_encode_alike(kind):
    module = build(kind)
    pixels = images(module.shape, 2)
    expected = module(pixels)
    assert torch.equal(copy.deepcopy(module)(pixels), expected)
    assert torch.equal(pickle.loads(pickle.dumps(module))(pixels), expected)
    torch.manual_seed(1)
    fresh = BUILD[kind]()
    assert not torch.allclose(fresh(pixels), expected, atol=1e-2)
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh(pixels), expected)


@pytest.mark.parametrize(
    ("network", "smallest"), [(NatureCNN, (36, 36)), (ImpalaCNN, (8, 8)), (GridCNN, (3, 3))]
)
def test_pictures_below_the_smallest_size_are_refused(network, smallest):
    height, width = smallest
    assert network((height, width + 2))(images((height, width + 2), 2)).shape[0] == 2
    for shape in ((height - 1, width), (height, width - 1)):
        message = (
            rf"shape must have at least {height} x {width} pixels, got \({shape[0]}, {shape[1]}\)"
        )
        with pytest.raises(ValueError, match=f"{network.__name__}: {message}"):
            network(shape)


@every_encoder
def test_a_picture_of_another_shape_is_refused(kind):
    module = build(kind)
    for wrong in (images((3, *module.shape[:2]), 2), images(module.shape[1:])):
        with pytest.raises(ValueError, match=r"image must end in shape \(\d+, \d+, 3\), got \("):
            module(wrong)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: NatureCNN((SIZE, SIZE), out_features=0),
            "NatureCNN: out_features must be at least 1, got 0",
        ),
        (
            lambda: NatureCNN((SIZE, SIZE), max_images=0),
            "NatureCNN: max_images must be at least 1, got 0",
        ),
        (
            lambda: ImpalaCNN((SIZE, SIZE), depths=()),
            r"ImpalaCNN: depths must be positive, got \(\)",
        ),
        (
            lambda: ImpalaCNN((SIZE, SIZE), num_blocks=0),
            "ImpalaCNN: num_blocks must be .*, got 0",
        ),
        (
            lambda: ImpalaCNN((SIZE, SIZE), num_groups=3),
            r"ImpalaCNN: num_groups must be 0 or divide depths=\(16, 32, 32\), got 3",
        ),
        (lambda: GridCNN((7, 7), depths=(8, 0)), r"GridCNN: depths must be positive, got \(8, 0\)"),
    ],
)
def test_impossible_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_residual_encoder_has_the_layers_of_the_paper():
    """Check three sections of five convolutions, each of which halves the picture."""
    module = ImpalaCNN((64, 64, 3), num_groups=0)
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [16] * 5 + [32] * 10
    assert module.head[0].in_features == 32 * 8 * 8
    blocks = [layer for layer in module.convolutions if hasattr(layer, "branch")]
    assert len(blocks) == 6
    for block in blocks:
        x = torch.randn(
            2, block.branch[1].in_channels, 4, 4, generator=torch.Generator().manual_seed(0)
        )
        assert not torch.allclose(block(x), x)
        for parameter in block.branch[-1].parameters():
            nn.init.zeros_(parameter)
        assert torch.equal(block(x), x)


def test_each_residual_block_ends_in_group_normalisation_if_there_are_groups():
    def groups(module: nn.Module) -> list[int]:
        return [layer.num_groups for layer in module.modules() if isinstance(layer, nn.GroupNorm)]

    assert groups(ImpalaCNN((64, 64, 3), num_groups=8)) == [8] * 6
    assert groups(ImpalaCNN((64, 64, 3), num_groups=0)) == []


class MeanPixel(nn.Module):
    """Encoder of the mean brightness of a picture, without positions."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.mlp = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 32))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.mlp((pixels / 255).mean((1, 2, 3)).unsqueeze(-1))


def squares(shape: tuple[int, ...], count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noise with one bright square, and the quarter ``[count]`` that contains it."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 120, (count, *shape), dtype=torch.uint8, generator=generator)
    height, width = shape[:2]
    side = max(height // 8, 1)
    quarter = torch.randint(0, 4, (count,), generator=generator)
    rooms = [(0, height // 2 - side), (height - height // 2, height - side)]
    columns = [(0, width // 2 - side), (width - width // 2, width - side)]
    for i, q in enumerate(quarter.tolist()):
        (low, high), (left, right) = rooms[q // 2], columns[q % 2]
        y = int(torch.randint(low, high + 1, (), generator=generator))
        x = int(torch.randint(left, right + 1, (), generator=generator))
        pixels[i, y : y + side, x : x + side] = 255
    return pixels, quarter


def accuracy_after_learning(module: nn.Module, *, shuffled: bool = False, steps: int = 60) -> float:
    torch.manual_seed(0)
    classifier = nn.Sequential(module, nn.Linear(32, 4))
    optimizer = torch.optim.Adam(classifier.parameters(), lr=2e-3)
    for step in range(steps):
        pixels, quarter = squares(module.shape, 32, seed=step)
        if shuffled:
            quarter = quarter[torch.randperm(32)]
        loss = nn.functional.cross_entropy(classifier(pixels), quarter)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        pixels, quarter = squares(module.shape, 256, seed=10_000)
        return float((classifier(pixels).argmax(-1) == quarter).float().mean())


@every_encoder
def test_the_place_of_a_bright_square_is_learned(kind):
    arguments = [(20, 20, 3)] if "impala" in kind else []  # smaller and as hard, for the slowest
    assert accuracy_after_learning(build(kind, *arguments)) > 0.9


@pytest.mark.parametrize("kind", ["nature", "grid"])
def test_shuffled_labels_are_not_learned(kind):
    assert accuracy_after_learning(build(kind), shuffled=True) < 0.4


def test_brightness_alone_does_not_tell_the_place():
    assert accuracy_after_learning(MeanPixel((7, 7, 3)), steps=300) < 0.4


def test_the_squares_fill_each_quarter_evenly():
    """Check the task itself: place or count of labels must not give the answer away."""
    pixels, quarter = squares((7, 7, 3), 400, seed=0)
    brightest = (pixels[..., 0].flatten(1) == 255).nonzero()[:, 1]
    rows, columns = brightest // 7, brightest % 7
    assert torch.equal((rows > 3).long() * 2 + (columns > 3).long(), quarter)
    counts = torch.bincount(quarter, minlength=4).tolist()
    assert all(abs(a - b) < 60 for a, b in pairwise(counts))
