"""The ring buffer of keys and values, against a list per row that holds what may be seen."""

import pytest
import torch
from torch.nn import functional as F
from yamame.trajectory import TransformerEncoder
from yamame.trajectory.cache import CacheStep, make_room


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
        shortest, longest = int(age.min()), int(age.max())
        entries = make_room(entries, longest + 1, capacity=capacity)
        step = CacheStep(entries, age, span=(shortest, longest), capacity=capacity, sinks=sinks)
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
    def mask(ages: list[int], capacity: int | None) -> torch.Tensor | None:
        age = torch.tensor(ages)
        entries = torch.zeros(1, 2, 2, 1, 16, 4)
        span = (min(ages), max(ages))
        return CacheStep(entries, age, span=span, capacity=capacity, sinks=0).mask

    assert mask([5, 5], None) is None
    assert mask([8, 30], 8) is None
    assert mask([2, 4], None)[:, 0, 0].int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert mask([2, 30], 4)[:, 0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


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
