"""Packing moves whole trajectories into fewer rows and changes no loss."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import Compose
from yamame.agent import InContextAgent
from yamame.heads import ActorHead, PopArt, make_critic
from yamame.losses import MultiGammaREDQLoss
from yamame.replay import Relabel, SequencePacking, Window, pack
from yamame.replay.sequence_packing import first_fit
from yamame.timestep import MLPGoalEncoder, MLPTimestepEncoder
from yamame.trajectory import (
    GRUEncoder,
    LinearRecurrentEncoder,
    LSTMEncoder,
    MemoEncoder,
    RSMEncoder,
    TransformerEncoder,
)
from yamame_envs import MazeRunner

PADDED = SequencePacking(row_multiple=8, length_multiple=32)


@pytest.fixture(scope="module")
def batch():
    """Trajectories of lengths from 2 to 26, with and without their beginning."""
    torch.manual_seed(0)
    env = MazeRunner(num_envs=8, size=5, num_goals=2, min_goals=1, time_limit=25)
    return Window(20)(pack(env.rollout(80, break_when_any_done=False)))


def trajectories(batch):
    """Every trajectory of a batch, as bytes of each entry that is not changed."""
    keys = sorted(set(batch.keys(True, True)) - {"is_init"}, key=str)
    found = []
    for row in batch.unbind(0):
        begin = 0
        length = int(row["mask"].sum())
        starts = row["is_init"][:length].flatten().nonzero().flatten().tolist()
        for begin, end in zip(starts, [*starts[1:], length], strict=True):
            found.append(tuple(row[begin:end][key].numpy().tobytes() for key in keys))
    return sorted(found)


def started(batch):
    """The batch with the beginning of every row marked."""
    batch = batch.clone()
    batch["is_init"][:, 0] = True
    return batch


@st.composite
def lengths_and_longest(draw):
    """Lengths of trajectories, and a bound that they keep to, or none."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=12))
    return lengths, draw(st.one_of(st.none(), st.integers(max(lengths), 40)))


@given(
    given_lengths=lengths_and_longest(),
    row_multiple=st.sampled_from([1, 2, 8]),
    length_multiple=st.sampled_from([1, 5, 32]),
)
@settings(deadline=None, max_examples=80, derandomize=True, database=None)
def test_every_trajectory_is_there_once_in_one_piece_in_few_shapes(
    given_lengths, row_multiple, length_multiple
):
    lengths, longest = given_lengths
    step = torch.arange(max(lengths))
    mask = step < torch.tensor(lengths)[:, None]
    tag = torch.where(mask, 1 + step + 100 * torch.arange(len(lengths))[:, None], 0)[..., None]
    # Of some trajectories, a window has cut the beginning.
    is_init = mask & (step == 0) & (torch.arange(len(lengths)) % 2 == 0)[:, None]
    whole = TensorDict(
        {
            "x": tag,
            "next": {"y": -tag.float()},
            "is_init": is_init[..., None],
            "mask": mask[..., None],
        },
        mask.shape,
    )
    before = whole.clone()
    packing = SequencePacking(
        row_multiple=row_multiple, length_multiple=length_multiple, longest=longest
    )
    packed = packing(whole)
    assert (whole == before).all()

    rounded = -(-max(lengths) // length_multiple) * length_multiple
    assert packed.shape[1] == (rounded if longest is None else min(rounded, longest))
    assert packed.shape[0] % row_multiple == 0
    sequences = first_fit(lengths, capacity=packed.shape[1])
    assert packed.shape[0] - len(sequences) < row_multiple
    if packed.shape != whole.shape or (row_multiple, length_multiple) != (1, 1):
        # Unless there was nothing to do, the beginning of each trajectory is marked.
        filled = packed[packed["mask"][:, 0, 0]]
        assert trajectories(filled) == trajectories(started(whole))
        assert int(packed["is_init"].sum()) == len(lengths)
    else:
        assert (packed == whole).all()
    # Rows are filled up with trajectories before they are with padding.
    assert int(packed["mask"][:, 0].sum()) == min(len(packed), len(lengths))
    padding = ~packed["mask"].squeeze(-1)
    for value in packed.values(True, True):
        assert not value[padding].any()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
@settings(deadline=None, max_examples=60, derandomize=True, database=None)
def test_items_go_to_the_first_sequence_with_room_longest_first(lengths):
    expected: list[list[int]] = []
    for item in sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)):
        with_room = [row for row in expected if sum(lengths[i] for i in row) + lengths[item] <= 40]
        if with_room:
            with_room[0].append(item)
        else:
            expected.append([item])
    assert first_fit(lengths, capacity=40) == expected


def test_few_shapes_are_left(batch):
    shapes, packed_shapes = set(), set()
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        chosen = batch[torch.randperm(len(batch), generator=generator)[: 4 + seed // 4]]
        shapes.add(PADDED(chosen).shape)
        packed_shapes.add(SequencePacking()(chosen).shape)
    assert len(shapes) <= 2 < 10 < len(packed_shapes)


def update(batch, encoder):
    """Loss terms and gradients of a fresh agent."""
    torch.manual_seed(0)
    env = MazeRunner(num_envs=1, size=5, num_goals=2)
    agent = InContextAgent(
        env.observation_spec,
        env.full_action_spec["action"],
        timestep_encoder=partial(MLPTimestepEncoder, hidden_size=16, out_size=8),
        goal_encoder=MLPGoalEncoder,
        trajectory_encoder=encoder,
        actor=partial(ActorHead, hidden_size=16),
        critic=partial(make_critic, num_critics=4, hidden_size=16),
        returns=PopArt,
        gammas=(0.9, 0.99),
    )
    parts = (agent.encoder, agent.actor, agent.critic, agent.returns)
    loss = MultiGammaREDQLoss(
        *parts, action_space=agent.action_space, gammas=agent.gammas, num_target_critics=4
    )
    terms = loss(batch)
    total = sum(value for key, value in terms.items() if key.startswith("loss_"))
    total.backward()
    return terms, {name: p.grad for name, p in agent.named_parameters() if p.grad is not None}


ENCODERS = {
    "transformer": partial(TransformerEncoder, d_model=16, num_heads=2, num_layers=2, dropout=0.0),
    "gru": partial(GRUEncoder, hidden_size=16),
    "lstm": partial(LSTMEncoder, hidden_size=16),
    "linear_recurrent": partial(LinearRecurrentEncoder, d_model=16),
    "rsm": partial(RSMEncoder, d_model=16, num_heads=2, dropout=0.0, segment_length=8),
    "memo": partial(
        MemoEncoder, d_model=16, num_heads=2, dropout=0.0, segment_length=8, jitter=0.0
    ),
}


@pytest.mark.parametrize("packing", [SequencePacking(), PADDED], ids=["packed", "padded"])
@pytest.mark.parametrize("name", ENCODERS)
def test_no_loss_and_no_gradient_changes(batch, name, packing):
    terms, gradients = update(batch, ENCODERS[name])
    packed_terms, packed_gradients = update(packing(batch), ENCODERS[name])
    for key in terms.keys():  # sums in another order
        torch.testing.assert_close(packed_terms[key], terms[key], rtol=1e-4, atol=1e-5)
    assert len(gradients) > 20
    for key, value in gradients.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(
            packed_gradients[key], value, rtol=1e-3, atol=1e-4 * scale + 1e-7
        )


def test_without_the_marks_losses_do_change(batch):
    packed = SequencePacking()(batch)
    merged = packed.clone()
    merged["is_init"][:, 1:] = False
    terms, _ = update(packed, ENCODERS["transformer"])
    wrong, _ = update(merged, ENCODERS["transformer"])
    assert (terms["loss_critic"] - wrong["loss_critic"]).abs() > 1e-3


def test_it_is_the_last_of_a_buffers_transforms():
    env = MazeRunner(num_envs=8, size=5, num_goals=2, time_limit=25)
    data = pack(env.rollout(80, break_when_any_done=False))
    transform = Compose(Relabel("all"), Window(15), SequencePacking())
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), transform=transform, batch_size=24)
    buffer.extend(data)
    sampled = [buffer.sample() for _ in range(5)]
    assert min(len(batch) for batch in sampled) < 24
    assert all(int(batch["is_init"].sum()) == 24 for batch in sampled)


@pytest.mark.parametrize("missing", ["mask", "is_init"])
def test_a_batch_without_a_key_is_refused(missing):
    flag = torch.ones(2, 3, 1, dtype=torch.bool)
    batch = TensorDict({"mask": flag, "is_init": flag}, [2, 3]).exclude(missing)
    with pytest.raises(ValueError, match=f"SequencePacking: the batch must hold '{missing}', got"):
        SequencePacking()(batch)
