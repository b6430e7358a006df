"""Packing moves whole trajectories into fewer rows and changes no loss."""

from functools import partial

import pytest
import torch
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


def test_every_trajectory_is_there_once_and_in_one_piece(batch):
    packed = SequencePacking()(batch)
    assert packed.shape[0] < 0.8 * batch.shape[0]
    assert packed.shape[1] == int(batch["mask"].sum(1).max())
    assert trajectories(packed) == trajectories(started(batch))
    assert packed["mask"].sum() == batch["mask"].sum()
    padding = ~packed["mask"].squeeze(-1)
    assert padding.any()
    for key in packed.keys(True, True):
        assert not packed[key][padding].any(), key


def test_the_batch_that_was_given_is_left_as_it_is(batch):
    before = batch.clone()
    SequencePacking()(batch)
    assert (batch == before).all()


def test_multiples_leave_few_shapes_and_fill_them_with_padding(batch):
    shapes, packed_shapes = set(), set()
    for seed in range(40):
        chosen = batch[
            torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))[
                : 4 + seed // 4
            ]
        ]
        padded = PADDED(chosen)
        assert trajectories(padded[padded["mask"].flatten(1).any(1)]) == trajectories(
            started(chosen)
        )
        for key in padded.keys(True, True):
            assert not padded[key][~padded["mask"].squeeze(-1)].any(), key
        shapes.add(padded.shape)
        packed_shapes.add(SequencePacking()(chosen).shape)
    assert all(shape[0] % 8 == 0 and shape[1] == 32 for shape in shapes)
    assert len(shapes) <= 2 < 10 < len(packed_shapes)


def test_no_shape_is_longer_than_what_there_can_be(batch):
    lengths = batch["mask"].flatten(1).sum(1)
    for longest, columns in ((None, 32), (50, 32), (27, 27), (int(lengths.max()), 21), (3, 21)):
        packing = SequencePacking(length_multiple=32, longest=longest)
        assert packing(batch).shape[1] == columns
    assert int(lengths.max()) == 21


def test_rows_are_filled_up_with_trajectories_before_they_are_with_padding(batch):
    packed, padded = SequencePacking()(batch), SequencePacking(row_multiple=7)(batch)
    assert len(packed) % 7 > 0
    assert padded["mask"][:, 0].all()
    assert padded["is_init"].sum() == packed["is_init"].sum() == len(batch)
    few = SequencePacking(row_multiple=8)(batch[:3])
    assert (len(few), int(few["mask"][:, 0].sum())) == (8, 3)


@pytest.mark.parametrize("name", ["row_multiple", "length_multiple", "longest"])
def test_a_multiple_below_one_is_refused(name):
    with pytest.raises(ValueError, match=f"SequencePacking: {name} must be at least 1, got 0"):
        SequencePacking(**{name: 0})


def test_equal_lengths_are_left_as_they_are(batch):
    whole = batch[batch["mask"].flatten(1).all(1)]
    assert len(whole) >= 3
    assert (SequencePacking()(whole) == whole).all()


def test_rows_are_plan_longest_first():
    assert first_fit([4, 1, 4, 2, 3, 1], capacity=5) == [[0, 1], [2, 5], [4, 3]]
    assert first_fit([3, 3, 3], capacity=5) == [[0], [1], [2]]
    lengths = torch.randint(1, 40, (200,), generator=torch.Generator().manual_seed(1)).tolist()
    rows = first_fit(lengths, capacity=40)
    assert sorted(item for row in rows for item in row) == list(range(200))
    assert max(sum(lengths[item] for item in row) for row in rows) <= 40
    assert len(rows) <= 11 / 9 * sum(lengths) / 40 + 1  # the bound of first-fit decreasing


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
        critic=partial(make_critic, hidden_size=16),
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
