"""Steps on prepared weights are the same steps, and preparation never outlives the weights it was made from."""

import copy
import pickle

import pytest
import torch
from yamame.trajectory import GRUEncoder, MemorylessEncoder, TrajectoryEncoder, TransformerEncoder

PLAIN = {"norm_attention": False, "norm_feedforward": False, "head_scaling": False, "sigma_reparam": False}
ENCODERS = {
    "default": {},
    "sigma": {"sigma_reparam": True},
    "plain": {**PLAIN, "activation": "gelu"},
    "relu": {"activation": "relu"},
    "rotary": {"sigma_reparam": True, "positions": "rotary", "window": 3, "sinks": 1},
    "learned": {"positions": "learned", "num_positions": 40},
    "gru": None,
    "memoryless": None,
}


def make(name: str) -> TrajectoryEncoder:
    torch.manual_seed(0)
    if name == "gru":
        encoder: TrajectoryEncoder = GRUEncoder(3, hidden_size=8, num_layers=2, out_features=6)
    elif name == "memoryless":
        encoder = MemorylessEncoder(3, d_model=8)
    else:
        encoder = TransformerEncoder(3, d_model=8, num_heads=2, num_layers=2, **ENCODERS[name])
    for parameter in encoder.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return encoder.eval()


def act(encoder: TrajectoryEncoder, num_rows: int = 5, num_steps: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    encoder.reset_memory()
    found = []
    for t in range(num_steps):
        starts = torch.rand(num_rows, generator=generator) < 0.1
        index = torch.full((num_rows,), t)
        found.append(encoder.step(torch.randn(num_rows, 3, generator=generator), index, starts))
    return torch.stack(found, 1)


@pytest.mark.parametrize("name", ENCODERS)
def test_prepared_steps_equal_plain_ones(name):
    encoder = make(name)
    expected = act(encoder)
    encoder.prepare()
    assert (encoder._prepared is None) == (name == "memoryless")
    # The same products in another order: equal up to rounding.
    assert torch.allclose(act(encoder), expected, atol=2e-5)


@pytest.mark.parametrize("name", ["default", "gru"])
def test_preparing_changes_neither_weights_nor_state_nor_dropout_in_training(name):
    encoder = make(name)
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    encoder.prepare()
    act(encoder)
    assert encoder.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    encoder.train().prepare()
    assert encoder._prepared is None


ENDINGS = {
    "loading": lambda encoder: encoder.load_state_dict(make("default").state_dict()),
    "training": lambda encoder: encoder.train().eval(),
    "another dtype": lambda encoder: encoder.double().float(),
    "copy": copy.deepcopy,
    "pickle": lambda encoder: pickle.loads(pickle.dumps(encoder)),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_may_change_weights_ends_preparation(ending):
    encoder = make("default")
    encoder.prepare()
    changed = ENDINGS[ending](encoder)
    other = changed if isinstance(changed, TrajectoryEncoder) else encoder
    assert other._prepared is None
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.3)
    stale = act(encoder) if other is not encoder else None
    plain = make("default")
    plain.load_state_dict(other.state_dict())
    assert torch.equal(act(other), act(plain))
    if stale is not None:
        assert not torch.allclose(stale, act(plain), atol=1e-3)


@pytest.mark.parametrize("name", ["default", "gru"])
def test_changed_weights_are_seen_at_the_next_preparation(name):
    encoder = make(name)
    encoder.prepare()
    old = act(encoder)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.data.mul_(1.3)
    encoder.prepare()
    found = act(encoder)
    plain = make(name)
    plain.load_state_dict(encoder.state_dict())
    assert torch.allclose(found, act(plain), atol=2e-5)
    assert not torch.allclose(found, old, atol=1e-3)


def test_prepared_weights_are_not_used_under_autocast():
    encoder = make("default")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = act(encoder)
        encoder.prepare()
        assert torch.equal(act(encoder), expected)


@pytest.mark.parametrize("name", ["default", "rotary"])
def test_many_rows_step_in_parts_as_they_do_at_once(monkeypatch, name):
    encoder = make(name)
    encoder.prepare()
    expected = act(encoder, num_rows=150)
    monkeypatch.setattr("yamame.trajectory.acting._ROWS", 70)
    # Products with other numbers of rows are rounded differently.
    assert torch.allclose(act(encoder, num_rows=150), expected, atol=2e-5)


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


ROUNDED = [name for name in ENCODERS if name != "memoryless"]
# Numbers keep 8 bits: each is off by up to 2 ** -9, and LayerNorms of eight numbers make more of it where these lie
# close together. Up to 13 times as much was seen.
ROUNDING = 24 * 2**-9


@pytest.mark.parametrize("name", ROUNDED)
def test_steps_in_bfloat16_are_steps_up_to_its_rounding(name):
    encoder = make(name)
    exact = act(encoder)
    encoder.prepare(torch.bfloat16)
    found = act(encoder)
    assert found.dtype == torch.float32
    assert 2**-12 < relative_error(found, exact) < ROUNDING
    encoder.prepare()
    assert torch.allclose(act(encoder), exact, atol=2e-5)


def test_the_cache_is_in_the_dtype_of_the_products_and_a_recurrent_state_is_not():
    transformer, gru = make("default"), make("gru")
    for dtype, expected in ((None, torch.float32), (torch.bfloat16, torch.bfloat16)):
        transformer.prepare(dtype)
        gru.prepare(dtype)
        act(transformer)
        act(gru)
        assert transformer.memory_state_dict()["entries"].dtype == expected
        # Rounding would add up from step to step.
        assert gru.memory_state_dict()["hidden"].dtype == torch.float32


@pytest.mark.parametrize("name", ["default", "rotary"])
@pytest.mark.parametrize("dtypes", [(None, torch.bfloat16), (torch.bfloat16, None)])
def test_a_memory_survives_a_change_of_dtype(name, dtypes):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(12, 5, 3, generator=generator)
    starts = torch.zeros(12, 5).bool()
    starts[4, 2] = True
    found = {}
    for first, second in (dtypes, (None, None)):
        encoder = make(name)
        for t in range(12):
            if t in (0, 6):
                encoder.prepare(first if t == 0 else second)
            found[first, second] = encoder.step(x[t], torch.full((5,), t), starts[t])
        cleared = make(name).step(x[-1], torch.full((5,), 11), starts[-1])
    assert relative_error(found[dtypes], found[None, None]) < ROUNDING
    assert relative_error(cleared, found[None, None]) > 2 * ROUNDING


def test_a_memory_in_bfloat16_goes_on_exactly_where_it_was_saved_and_is_left_behind_by_copies():
    encoder = make("default")
    encoder.prepare(torch.bfloat16)
    act(encoder)
    other = copy.deepcopy(encoder)
    assert other._prepared is None
    assert not other.memory_state_dict()
    state = pickle.loads(pickle.dumps(encoder.memory_state_dict()))
    other.prepare(torch.bfloat16)
    other.load_memory_state_dict(state)
    for _ in range(40):
        x, starts = torch.randn(5, 3), torch.rand(5) < 0.1
        assert torch.equal(other.step(x, None, starts), encoder.step(x, None, starts))


@pytest.mark.parametrize("num_heads", [1, 2, 3, 16])
def test_heads_that_share_a_group_of_the_cache_attend_each_on_their_own(num_heads):
    torch.manual_seed(0)
    encoder = TransformerEncoder(3, d_model=4 * num_heads, num_heads=num_heads, num_layers=1).eval()
    exact = act(encoder, num_rows=40, num_steps=50)
    encoder.prepare(torch.bfloat16)
    found = act(encoder, num_rows=40, num_steps=50)
    assert encoder.memory_state_dict()["entries"].shape[3] == {1: 1, 2: 1, 3: 1, 16: 2}[num_heads]
    assert relative_error(found, exact) < ROUNDING
