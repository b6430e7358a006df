"""The ring buffer of keys and values, against a list per row that holds what may be seen."""

import copy

import pytest
import torch
from torch.nn import functional as F
from yamame.trajectory import TransformerEncoder
from yamame.trajectory.cache import CacheStep, make_room, sort_rows


def naive_history(history: list, capacity: int | None, sinks: int) -> list:
    if capacity is None or len(history) <= capacity:
        return history
    return history[:sinks] + history[len(history) - (capacity - sinks) :]


@pytest.mark.parametrize(("capacity", "sinks"), [(None, 0), (7, 0), (7, 2), (1, 0), (3, 2)])
def test_every_row_attends_to_its_own_last_timesteps(capacity: int | None, sinks: int) -> None:
    torch.manual_seed(0)
    layers, num_rows, heads, head = 2, 3, 2, 4
    entries = torch.zeros(layers, 2, num_rows, heads, 0, head)
    age = torch.full((num_rows,), -1)
    histories = [[[] for _ in range(num_rows)] for _ in range(layers)]
    for _ in range(50):
        starts = (torch.rand(num_rows) < 0.07) | (age < 0)
        age = torch.where(starts, 0, age + 1)
        entries = make_room(entries, int(age.max()) + 1, capacity=capacity)
        step = CacheStep(entries, age, capacity=capacity, sinks=sinks)
        for layer in range(layers):
            q, k, v = torch.randn(3, num_rows, heads, 1, head)
            found = step.layer(layer)(q, k, v)
            for n in range(num_rows):
                history = [] if starts[n] else histories[layer][n]
                history.append((k[n], v[n]))
                histories[layer][n] = history
                seen = naive_history(history, capacity, sinks)
                keys, values = (torch.cat(part, 1) for part in zip(*seen, strict=True))
                expected = F.scaled_dot_product_attention(q[n], keys, values)
                assert torch.allclose(found[n], expected, atol=1e-6)


def test_the_buffer_doubles_up_to_its_capacity_and_keeps_what_it_holds() -> None:
    entries = torch.zeros(1, 2, 3, 2, 0, 4)
    sizes = []
    for slots in range(1, 101):
        entries = make_room(entries, slots, capacity=100)
        entries[..., slots - 1, :] = slots
        sizes.append(entries.shape[-2])
        assert torch.equal(entries[0, 0, 0, 0, :slots, 0], torch.arange(1.0, slots + 1))
    assert sorted(set(sizes)) == [32, 64, 100]
    assert make_room(entries, 101, capacity=100) is entries
    assert make_room(entries, 101, capacity=None).shape[-2] == 200


def test_rows_of_one_age_need_no_mask_and_a_full_ring_neither() -> None:
    def hidden(ages: list[int], capacity: int | None) -> torch.Tensor | None:
        step = CacheStep(torch.zeros(1, 2, 2, 1, 16, 4), torch.tensor(ages), capacity=capacity, sinks=0)
        return step.blocks[0].hidden

    assert hidden([5, 5], None) is None
    assert hidden([8, 30], 8) is None
    assert hidden([2, 4], None)[:, 0, 0].int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]
    assert hidden([2, 30], 4)[:, 0, 0].int().tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]


def play(encoder: TransformerEncoder, num_steps: int, seed: int, num_rows: int = 70):
    """Features and starts of many rows that end at random; the first 40 all at once now and then."""
    generator = torch.Generator().manual_seed(seed)
    for t in range(num_steps):
        starts = torch.rand(num_rows, generator=generator) < 0.04
        starts[:40] |= t % 35 == 0
        yield torch.randn(num_rows, 3, generator=generator), starts


@pytest.mark.parametrize(("window", "context_length"), [(None, None), (None, 20), (6, 20)])
def test_many_rows_remember_what_few_rows_do_wherever_they_are_moved(window, context_length) -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(
        3, d_model=8, num_heads=2, num_layers=2, context_length=context_length, window=window, sinks=1
    ).eval()
    parts = [copy.deepcopy(encoder) for _ in range(7)]
    places = set()
    for x, starts in play(encoder, 120, seed=0):
        found = encoder.step(x, None, starts)
        expected = [
            part.step(a, None, b) for part, a, b in zip(parts, x.split(10), starts.split(10), strict=True)
        ]
        # Blocks are read up to different lengths, so sums are rounded differently.
        assert torch.allclose(found, torch.cat(expected), atol=1e-5)
        places.add(tuple(encoder.memory_state_dict()["place"].tolist()))
    # In a short window there is little to be read in vain.
    assert (len(places) > 2) == (window is None)


def test_a_memory_with_moved_rows_goes_on_exactly_where_it_was_saved() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=2).eval()
    for x, starts in play(encoder, 60, seed=1):
        encoder.step(x, None, starts)
    state = encoder.memory_state_dict()
    assert not torch.equal(state["place"], torch.arange(70))
    other = copy.deepcopy(encoder)
    other.load_memory_state_dict(state)
    for x, starts in play(encoder, 60, seed=2):
        assert torch.equal(encoder.step(x, None, starts), other.step(x, None, starts))


class OnAnotherDevice(torch.Tensor):
    """Says that it is not on the CPU."""

    is_cpu = False


def test_rows_lie_in_the_order_of_their_ages_once_enough_was_read_in_vain() -> None:
    def memory(age: torch.Tensor, waste: int) -> dict[str, torch.Tensor]:
        entries = age.view(1, 1, -1, 1, 1, 1).expand(1, 2, -1, 1, 40, 2).float().contiguous()
        return {"age": age, "entries": entries, "place": torch.arange(64), "waste": torch.tensor(waste)}

    age = torch.arange(64) % 2 * 30 + 1
    kept, moved = memory(age, 0), memory(age, 10_000)
    order, place = sort_rows(kept, capacity=None)
    assert torch.equal(order, torch.arange(64))
    assert torch.equal(place, order)
    assert int(kept["waste"]) == 32 * 30
    order, place = sort_rows(moved, capacity=None)
    assert int(moved["waste"]) == 0
    assert age[order].tolist() == [1] * 32 + [31] * 32
    assert torch.equal(order[place], torch.arange(64))
    assert torch.equal(moved["entries"][0, 0, :, 0, 0, 0].long(), age[order])
    few = {"age": age[:32], "entries": kept["entries"][:, :, :32]}
    assert sort_rows(few, capacity=None) is None
    assert few.keys() == {"age", "entries"}
    moved["entries"] = moved["entries"].as_subclass(OnAnotherDevice)
    assert sort_rows(moved, capacity=None) is None
    assert moved.keys() == {"age", "entries"}
    assert torch.equal(moved["entries"][0, 0, :, 0, 0, 0].long(), age), "rows lie where they act"


def steps(encoder: TransformerEncoder, x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    return torch.stack([encoder.step(x[:, t], None, starts[:, t]) for t in range(x.shape[1])], 1)


@pytest.mark.parametrize("window", [None, 3])
def test_nan_left_behind_by_an_episode_never_reaches_the_next(window: int | None) -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(
        3, d_model=8, num_heads=2, num_layers=2, context_length=8, window=window
    ).eval()
    x = torch.randn(3, 30, 3)
    starts = torch.zeros(3, 30).bool()
    starts[:, 0] = starts[1, 10] = starts[2, 14] = True
    poisoned = x.clone()
    poisoned[1, :10] = torch.nan
    poisoned[2, 9:14] = torch.nan
    expected = steps(encoder, x, starts)
    found = steps(encoder, poisoned, starts)
    assert found[1, :10].isnan().all()
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1, 10:], expected[1, 10:])
    assert torch.equal(found[2, 14:], expected[2, 14:])


def test_a_cache_full_of_nan_is_clean_after_a_start() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=2, context_length=40).eval()
    x = torch.randn(3, 12, 3)
    starts = torch.zeros(3, 12).bool()
    starts[:, 0] = starts[1, 5] = starts[2, 7] = True
    expected = steps(encoder, x, starts)
    state = encoder.memory_state_dict()
    state["entries"].fill_(torch.nan)
    encoder.load_memory_state_dict(state)
    assert torch.equal(steps(encoder, x, starts), expected)
    unclean = encoder.memory_state_dict()
    unclean["entries"].fill_(torch.nan)
    encoder.load_memory_state_dict(unclean)
    assert encoder.step(x[:, 0], None, torch.zeros(3).bool()).isnan().all()


def test_unused_slots_of_a_younger_row_do_not_leak() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=1).eval()
    x = torch.randn(2, 9, 3)
    starts = torch.zeros(2, 9).bool()
    starts[:, 0] = starts[1, 6] = True
    expected = steps(encoder, x, starts)[:, -1]
    steps(encoder, x[:, :8], starts[:, :8])
    state = encoder.memory_state_dict()
    state["entries"][:, :, 1, :, 3:] = 1e6
    encoder.load_memory_state_dict(state)
    assert torch.equal(encoder.step(x[:, 8], None, starts[:, 8]), expected)
    state["entries"][:, :, 1, :, :2] = 1e6
    encoder.load_memory_state_dict(state)
    assert not torch.allclose(encoder.step(x[:, 8], None, starts[:, 8])[1], expected[1], atol=1e-2)
