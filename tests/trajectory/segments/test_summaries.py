"""Encoders that read in segments: their networks against a plain loop over one episode, and what a
memory holds.
"""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from yamame.execution.capturing import recording
from yamame.testing import check_trajectory_encoder
from yamame.trajectory import MemoEncoder, RSMEncoder, segment_positions
from yamame.trajectory.attention import dot_product

SMALL = {
    "d_model": 8,
    "num_heads": 2,
    "num_layers": 2,
    "dropout": 0.0,
    "segment_length": 3,
    "num_slots": 2,
}
ENCODERS = {
    "rsm": lambda **kw: RSMEncoder(3, **{**SMALL, **kw}),
    "rsm that adds": lambda **kw: RSMEncoder(3, residual=True, **{**SMALL, **kw}),
    "memo": lambda **kw: MemoEncoder(3, **{**SMALL, **kw}),
}
every = pytest.mark.parametrize("name", ENCODERS)
CLOSE = {
    "rtol": 1e-4,
    "atol": 1e-5,
}  # sums of fewer than a hundred terms of order one, in another order


def sequences(num_rows: int, length: int, chance: float, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, length, 3, generator=generator)
    is_init = torch.rand(num_rows, length, generator=generator) < chance
    is_init[:, 0] = True
    return x, segment_positions(is_init), is_init


def make(name: str, **options):
    torch.manual_seed(0)
    encoder = ENCODERS[name](**options).eval()
    with torch.no_grad():  # new networks hardly tell summaries apart
        for parameter in encoder.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return encoder


def act(encoder, x, is_init):
    memory, contexts = encoder.init_memory(len(x)), []
    for t in range(x.shape[1]):
        context, memory = encoder.step(x[:, t], encoder.grow(memory), is_init[:, t])
        contexts.append(context)
    return torch.stack(contexts, 1), memory


def one_segment(encoder, tokens: torch.Tensor) -> torch.Tensor:
    """One causal attention over slots and timesteps ``[T, D]``, whose places are counted."""
    x = tokens.unsqueeze(0) + encoder.positions(torch.arange(len(tokens))).unsqueeze(0)
    for layer in encoder.layers:
        x = layer(x, lambda q, k, v: dot_product(q, k, v, mask=None), None)
    return encoder.norm(x)[0]


def loop(encoder, episode: torch.Tensor) -> torch.Tensor:
    """Contexts ``[T, D]`` of one episode ``[T, E]``, one segment after the other."""
    accumulates = isinstance(encoder, MemoEncoder)
    slots = encoder.queries[:0] if accumulates else encoder.start
    contexts = []
    for segment in episode.split(encoder.segment_length):
        out = one_segment(encoder, torch.cat((slots, encoder.embed(segment), encoder.queries)))
        contexts.append(out[len(slots) : len(slots) + len(segment)])
        written = out[len(slots) + len(segment) :]
        if accumulates:
            slots = torch.cat((slots, written))
        elif encoder.carry:
            slots = encoder.write(written) + (slots if encoder.residual else 0)
    return torch.cat(contexts)


def episodes(x: torch.Tensor, is_init: torch.Tensor):
    for row, starts in zip(x, is_init, strict=True):
        bounds = [*starts.nonzero().flatten().tolist(), len(row)]
        yield [row[a:b] for a, b in itertools.pairwise(bounds)]


@given(
    name=st.sampled_from(sorted(ENCODERS)),
    segment_length=st.integers(1, 5),
    num_slots=st.integers(1, 3),
    rows=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=14), min_size=1, max_size=3),
)
@settings(deadline=None, max_examples=12, derandomize=True, database=None)
def test_packed_episodes_are_encoded_as_each_would_be_alone(name, segment_length, num_slots, rows):
    encoder = make(name, segment_length=segment_length, num_slots=num_slots)
    x, is_init = torch.randn(len(rows), 14, 3), torch.zeros(len(rows), 14, dtype=torch.bool)
    for row, lengths in enumerate(rows):
        begins = [begin for begin in itertools.accumulate(lengths, initial=0) if begin < 14]
        is_init[row, begins] = True
    position = segment_positions(is_init)
    expected = torch.stack(
        [torch.cat([loop(encoder, e) for e in row]) for row in episodes(x, is_init)]
    )
    for found in (encoder.parallel(x, position, is_init), act(encoder, x, is_init)[0]):
        torch.testing.assert_close(found, expected, **CLOSE)
    with recording():
        torch.testing.assert_close(encoder.parallel(x, position, is_init), expected, **CLOSE)
        torch.testing.assert_close(act_captured(encoder, x, is_init), expected, **CLOSE)


def act_captured(encoder, x, is_init):
    """As `act`, with room for everything from the start."""
    memory, contexts = encoder.init_memory(len(x), capacity=x.shape[1]), []
    for t in range(x.shape[1]):
        context, memory = encoder.step(x[:, t], memory, is_init[:, t])
        contexts.append(context)
    return torch.stack(contexts, 1)


@every
def test_gradients_pass_every_boundary(name: str) -> None:
    encoder, (x, position, is_init) = make(name), sequences(3, 20, 0.1)
    gradients = []
    for parallel in (True, False):
        encoder.zero_grad()
        given = x.clone().requires_grad_()
        if parallel:
            out = encoder.parallel(given, position, is_init)
        else:
            out = torch.stack(
                [torch.cat([loop(encoder, e) for e in row]) for row in episodes(given, is_init)]
            )
        out[:, -1].pow(3).sum().backward()
        gradients.append([given.grad, *(p.grad.clone() for p in encoder.parameters())])
    for found, expected in zip(*gradients, strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * scale)
    # Six boundaries lie between the first timestep of a whole episode and its last one.
    whole = is_init.sum(1) == 1
    assert whole.any()
    assert (gradients[0][0][whole, 0].abs().amax(-1) > 0).all()


@pytest.mark.parametrize(
    ("name", "segment_length", "length"), [("rsm", 1, 6), ("rsm that adds", 5, 13), ("memo", 2, 9)]
)
def test_the_laws_hold_across_boundaries(name: str, segment_length: int, length: int) -> None:
    check_trajectory_encoder(make(name, segment_length=segment_length), length=length)


def test_a_boundary_is_passed_when_the_next_timestep_arrives() -> None:
    encoder, (x, _, is_init) = make("rsm"), sequences(2, 4, 0.0)
    _, full = act(encoder, x[:, :3], is_init[:, :3])
    assert full["filled"].tolist() == [3, 3]
    assert full["boundaries"].tolist() == [0, 0]
    torch.testing.assert_close(full["summary"], encoder.start.expand(2, -1, -1))
    _, over = act(encoder, x, is_init)
    assert over["filled"].tolist() == [1, 1]
    assert over["boundaries"].tolist() == [1, 1]
    assert (over["summary"] - full["summary"]).abs().amax() > 0.1


@torch.no_grad()
def test_a_summary_of_fixed_size_is_all_that_passes_a_boundary() -> None:
    encoder, (x, _, is_init) = make("rsm"), sequences(2, 40, 0.0)
    sizes = {
        sum(v.nbytes for v in act(encoder, x[:, :t], is_init[:, :t])[1].values())
        for t in (1, 4, 40)
    }
    assert len(sizes) == 1
    memory = act(encoder, x[:, :6], is_init[:, :6])[1]
    others = memory.clone()
    others["keys"][:, :, :, :3], others["values"][:, :, :, :3] = (
        torch.nan,
        7.0,
    )  # the timesteps alone
    summary = encoder.write(torch.ones(2, 2, 8))
    later = torch.zeros(2, dtype=torch.bool)

    def following(memory, replaced):
        memory, contexts = memory.clone(), []
        for t in range(6, 12):
            context, memory = encoder.step(x[:, t], memory, later)
            if replaced and t == 6:  # what the boundary wrote, and what it is to the layers
                donor = act(encoder, x.flip(0)[:, : t + 1], is_init[:, : t + 1])[1]
                memory["summary"] = donor["summary"]
                for name in ("keys", "values"):
                    memory[name][:, :, :, 3:] = donor[name][:, :, :, 3:]
            contexts.append(context)
        return torch.stack(contexts, 1)

    plain, transplanted = following(memory, False), following(memory, True)
    assert torch.equal(plain[:, 0], transplanted[:, 0])
    assert (plain[:, 1:] - transplanted[:, 1:]).abs().amax() > 1e-2
    assert summary.shape == memory["summary"].shape


@torch.no_grad()
def test_summaries_accumulate_up_to_the_context_length() -> None:
    x, _, is_init = sequences(2, 140, 0.0)
    encoder = make("memo", context_length=None)
    slots = [
        act(encoder, x[:, :t], is_init[:, :t])[1]["keys"].shape[3] - 3 for t in (1, 25, 26, 140)
    ]
    assert slots == [16, 16, 32, 128]  # two for each of at most 8, 8, 9 and 47 boundaries
    bounded = make("memo", context_length=30)
    found, memory = act(bounded, x, is_init)
    whole = act(encoder, x, is_init)[0]
    assert memory["keys"].shape[3] - 3 == 18
    torch.testing.assert_close(found[:, :30], whole[:, :30], **CLOSE)
    assert (found[:, 30] - whole[:, 30]).abs().amax() > 1e-3


@every
def test_lengths_of_segments_vary_in_training_only(name: str) -> None:
    encoder, (x, position, is_init) = (
        make(name, segment_length=10, jitter=0.3),
        sequences(2, 40, 0.0),
    )
    plain = make(name, segment_length=10, jitter=0.0)
    assert plain.capture_obstacle is None
    assert encoder.capture_obstacle == "jitter"
    drawn = set()
    for _ in range(50):
        bounds = encoder.train()._bounds(40)
        drawn |= {b - a for a, b in itertools.pairwise(bounds)}
    assert drawn == set(range(7, 14))
    outputs = [encoder.parallel(x, position, is_init) for _ in range(2)]
    assert not torch.allclose(*outputs, atol=1e-4)
    torch.testing.assert_close(
        encoder.eval().parallel(x, position, is_init), plain.parallel(x, position, is_init)
    )


@torch.no_grad()
def test_nothing_that_is_not_finite_outlives_its_episode() -> None:
    for name in ENCODERS:
        encoder, (x, _, is_init) = make(name), sequences(2, 12, 0.0)
        expected = act(encoder, x, is_init)[0]
        broken, starts = (
            torch.cat((x.clone().fill_(torch.nan), x), 1),
            torch.cat((is_init, is_init), 1),
        )
        torch.testing.assert_close(act(encoder, broken, starts)[0][:, 12:], expected)


def test_a_training_pass_moves_every_parameter() -> None:
    for name in ENCODERS:
        encoder, inputs = make(name).train(), sequences(2, 12, 0.0)
        encoder.parallel(*inputs).pow(3).sum().backward()
        assert all(p.grad is not None and p.grad.any() for p in encoder.parameters())


@pytest.mark.parametrize("name", ["rsm", "memo"])
@pytest.mark.parametrize("sizes", [{"d_model": 10, "num_heads": 4}, {"d_model": 3, "num_heads": 1}])
def test_a_size_that_heads_and_sinusoids_do_not_divide_is_refused(name: str, sizes: dict) -> None:
    with pytest.raises(
        ValueError, match=rf"d_model must .* {sizes['num_heads']}, got {sizes['d_model']}"
    ):
        ENCODERS[name](**sizes)


@pytest.mark.parametrize("carry", [True, False])
def test_without_carrying_a_segment_is_read_as_if_it_were_the_first(carry: bool) -> None:
    torch.manual_seed(0)
    encoder, (x, position, is_init) = make("rsm", carry=carry), sequences(2, 8, 0.0)
    parallel, acted = encoder.parallel(x, position, is_init), act(encoder, x, is_init)[0]
    torch.testing.assert_close(parallel, acted, **CLOSE)
    torch.testing.assert_close(parallel, torch.stack([loop(encoder, row) for row in x]), **CLOSE)
    begins = [
        encoder.parallel(part, position[:, :3], is_init[:, :3]) for part in (x[:, :3], x[:, 3:6])
    ]
    torch.testing.assert_close(parallel[:, :3], begins[0], **CLOSE)
    assert torch.allclose(parallel[:, 3:6], begins[1], **CLOSE) != carry
