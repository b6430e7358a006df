"""The ring buffer of keys and values, against a list per env that holds what may be seen."""

import copy

import pytest
import torch
from torch.nn import functional as F
from yamame.trajectory import TransformerEncoder, kv_cache
from yamame.trajectory.kv_cache import CacheStep, grow_cache, init_cache


def empty_cache(num_envs: int, slots: int = 0, *, layers: int = 2, heads: int = 2, size: int = 4):
    shape = (num_envs, layers, heads, slots, size)
    return init_cache(shape, like=torch.empty(0))


@torch.no_grad()
def step(encoder, x, is_init):
    """One timestep from the memory that the encoder keeps."""
    context, encoder.memory = encoder.step(x, encoder.ready_memory(is_init), is_init)
    return context


def naive_history(history: list, capacity: int | None, sinks: int) -> list:
    if capacity is None or len(history) <= capacity:
        return history
    return history[:sinks] + history[len(history) - (capacity - sinks) :]


@pytest.mark.parametrize(("capacity", "sinks"), [(None, 0), (7, 0), (7, 2), (1, 0), (3, 2)])
def test_every_env_attends_to_its_own_last_timesteps(capacity: int | None, sinks: int) -> None:
    torch.manual_seed(0)
    layers, num_envs, heads, size = 2, 3, 2, 4
    cache = empty_cache(num_envs)
    histories = [[[] for _ in range(num_envs)] for _ in range(layers)]
    for t in range(50):
        is_init = (torch.rand(num_envs) < 0.07) | (t == 0)
        now = CacheStep(
            grow_cache(cache, capacity=capacity)[0], is_init, capacity=capacity, sinks=sinks
        )
        for layer in range(layers):
            q, k, v = torch.randn(3, num_envs, heads, 1, size)
            output = now.attention(layer)(q, k, v)
            for n in range(num_envs):
                history = [] if is_init[n] else histories[layer][n]
                history.append((k[n], v[n]))
                histories[layer][n] = history
                visible = naive_history(history, capacity, sinks)
                keys, values = (torch.cat(part, 1) for part in zip(*visible, strict=True))
                expected = F.scaled_dot_product_attention(q[n], keys, values)
                assert torch.allclose(output[n], expected, atol=1e-6)
        cache = now.next_cache()


def test_a_cache_grows_up_to_its_capacity_and_keeps_what_it_holds() -> None:
    cache, sizes = empty_cache(3), []
    for t in range(600):
        cache, _ = grow_cache(cache, capacity=550)
        sizes.append(cache["keys"].shape[3])
        assert sizes[-1] > min(t, 549)
        cache["keys"][..., min(t, 549), :] = t
        cache["position"] += 1
    assert sorted(set(sizes)) == [32, 64, 128, 256, 384, 512, 550]
    assert torch.equal(cache["keys"][1, 0, 0, :549, 0], torch.arange(549.0))
    assert grow_cache(cache, capacity=550)[0] is cache
    assert grow_cache(cache, capacity=None)[0]["keys"].shape[3] == 678


@pytest.mark.parametrize("multiple", [16, 1])
def test_slots_that_no_env_has_reached_are_not_read_and_change_no_bit(monkeypatch, multiple):
    torch.manual_seed(0)
    monkeypatch.setattr(kv_cache, "_READ_MULTIPLE", multiple)
    differ, read = [], []
    for t in (0, 5, 14, 15, 16, 33, 50, 70):
        cache = empty_cache(3, 128, layers=1, heads=2, size=8)
        for name in ("keys", "values"):
            cache[name].normal_()
        cache["position"] = torch.tensor([t, t // 2, 0])
        q, k, v = torch.randn(3, 3, 2, 1, 8)
        now = CacheStep(cache, torch.zeros(3).bool(), capacity=128, sinks=0)
        found = now.attention(0)(q, k, v)
        read.append(now.bias.shape[-1])
        keys, values = now.store(0, k, v)
        expected = F.scaled_dot_product_attention(q, keys, values, attn_mask=now.reached)
        assert torch.allclose(found, expected, atol=1e-6)
        differ.append(not torch.equal(found, expected))
    assert read[0] == multiple
    assert read[-1] < 128
    # The order of sums depends on other numbers of slots: the control.
    assert any(differ) == (multiple == 1)


class AlwaysLonger(TransformerEncoder):
    """Grows at every step, for a negative control."""

    def grow_by(self, memory, num_steps):
        larger, _ = grow_cache(memory, memory["keys"].shape[3] + 1, capacity=None)
        return larger, 1


@pytest.mark.parametrize("encoder_class", [TransformerEncoder, AlwaysLonger])
def test_a_memory_grows_no_earlier_than_if_its_length_were_read_at_every_step(encoder_class):
    torch.manual_seed(0)
    encoder = encoder_class(3, d_model=8, num_heads=2, num_layers=1).eval()
    sizes, needed = [], []
    read = encoder.init_memory(2)
    for t in range(80):
        is_init = (torch.rand(2) < 0.02) | (t == 0)
        step(encoder, torch.randn(2, 3), is_init)
        read = grow_cache(read, capacity=1024)[0]
        read["position"] = read["position"].masked_fill(is_init, 0) + 1
        sizes.append(encoder.memory["keys"].shape[3])
        needed.append(read["keys"].shape[3])
    assert len(set(needed)) > 2
    assert (sizes == needed) == (encoder_class is TransformerEncoder)


def test_the_first_cache_may_have_any_room() -> None:
    assert empty_cache(2, 100)["keys"].shape == (2, 2, 2, 100, 4)
    encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=2, context_length=20)
    assert encoder.init_memory(2, capacity=7)["values"].shape[3] == 7
    assert encoder.init_memory(2, capacity=70)["values"].shape[3] == 20


@pytest.mark.parametrize(("window", "context_length"), [(None, None), (None, 20), (6, 20)])
def test_many_envs_remember_what_few_envs_do(window, context_length) -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(
        3,
        d_model=8,
        num_heads=2,
        num_layers=2,
        context_length=context_length,
        window=window,
        sinks=1,
    ).eval()
    few = [copy.deepcopy(encoder) for _ in range(3)]
    for t in range(60):
        x, is_init = torch.randn(12, 3), (torch.rand(12) < 0.04) | (t == 0)
        parts = zip(few, x.split(4), is_init.split(4), strict=True)
        expected = torch.cat([step(part, a, b) for part, a, b in parts])
        # Caches of other lengths are read, so sums are rounded differently.
        assert torch.allclose(step(encoder, x, is_init), expected, atol=1e-5)


@pytest.mark.parametrize("window", [None, 3])
def test_nan_left_behind_by_an_episode_never_reaches_the_next(window: int | None) -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(
        3, d_model=8, num_heads=2, num_layers=2, context_length=8, window=window
    ).eval()
    clean, broken = copy.deepcopy(encoder), encoder
    start, go_on = torch.ones(2).bool(), torch.zeros(2).bool()
    for t in range(6):
        assert step(broken, torch.full((2, 3), torch.nan), go_on if t else start).isnan().all()
    for t in range(12):
        x = torch.randn(2, 3)
        assert torch.equal(
            step(broken, x, go_on if t else start), step(clean, x, go_on if t else start)
        )
