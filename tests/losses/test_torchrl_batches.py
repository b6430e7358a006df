"""Losses read the batches of TorchRL's collectors and samplers, as they are."""

import re

import pytest
import torch
from tensordict import TensorDict, pad
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.collectors.utils import split_trajectories
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    LazyTensorStorage,
    MultiCategorical,
    OneHot,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.modules import MLP
from yamame.actions import ActionSpace
from yamame.heads import (
    ActionInputCritic,
    ActorHead,
    BinnedReturns,
    PopArt,
    StateActionCritic,
    make_critic,
)
from yamame.losses import MultiGammaREDQLoss, SequencePPOLoss
from yamame.replay import pack
from yamame.trajectory import GRUEncoder
from yamame_envs import PassiveTMaze

SPACE = ActionSpace(Categorical(4))
GAMMAS = (0.9, 0.99)


def encoder():
    torch.manual_seed(0)
    features = TensorDictModule(nn.Linear(2, 8), ["observation"], ["features"])
    return TensorDictSequential(features, GRUEncoder(8, hidden_size=8, out_features=8))


def redq(**settings):
    sequence_model = encoder()
    actor = ActorHead(8, action_space=SPACE, num_gammas=2)
    critic = make_critic(8, action_space=SPACE, gammas=GAMMAS, num_critics=4)
    options = {"action_space": SPACE, "gammas": GAMMAS, "num_target_critics": 4, **settings}
    return MultiGammaREDQLoss(sequence_model, actor, critic, PopArt(2), **options).eval()


def ppo():
    sequence_model = encoder()
    actor = ActorHead(8, action_space=SPACE, num_gammas=1)
    value = MLP(8, 1, depth=1, num_cells=8)
    loss = SequencePPOLoss(sequence_model, actor, value, PopArt(1), action_space=SPACE)
    return loss.eval()


def terms_of(batch, make):
    loss = make()
    if make is ppo:
        batch = loss.annotate(batch)
    torch.manual_seed(1)
    return dict(loss(batch).items())


def steps(frames=60):
    collector = Collector(
        PassiveTMaze(num_envs=3, length=5),
        frames_per_batch=frames,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    torch.manual_seed(0)
    for number, batch in enumerate(collector):
        if number == 1:  # the second one begins within episodes
            return batch.clone()
    raise AssertionError


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], msg=name, rtol=1e-5, atol=1e-6)


LAYOUTS = {
    "collector": lambda batch: batch,
    "flat": lambda batch: batch.reshape(-1),
    "interleaved": lambda batch: batch.transpose(0, 1).reshape(-1),
    "without ids": lambda batch: batch.exclude("collector"),
    "without is_init": lambda batch: batch.exclude("is_init", ("next", "is_init")),
    "three dimensions": lambda batch: torch.stack([batch[:2], batch[1:]]),
    "split": split_trajectories,
}


@pytest.mark.parametrize("make", [redq, ppo])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_batches_of_collectors_have_the_terms_of_packed_ones(layout, make):
    batch = LAYOUTS[layout](steps())
    before = batch.clone()
    terms = terms_of(batch, make)
    assert (batch == before).all()
    packed = pack(batch)
    packed["is_init"] = torch.zeros_like(packed["mask"])
    assert_same(terms, terms_of(packed, make))
    # The control: rows that go on over ends have other terms.
    glued = packed.reshape(1, -1)
    glued["mask"] = torch.ones_like(glued["mask"])
    glued["is_init"] = torch.zeros_like(glued["mask"])
    other = terms_of(glued, make)
    assert any(not torch.allclose(terms[name], other[name]) for name in terms)


@pytest.mark.parametrize("make", [redq, ppo])
@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("pad_output", [True, False])
@pytest.mark.parametrize("flat", [True, False])
def test_slices_are_read_one_by_one(make, marks, pad_output, flat):
    length = 4
    options = {} if marks else {"init_key": None, "truncated_key": None}
    sampler = SliceSampler(
        slice_len=length,
        traj_key=("collector", "traj_ids"),
        strict_length=not pad_output,
        pad_output=pad_output,
        **options,
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), sampler=sampler, batch_size=10 * length
    )
    buffer.extend(steps().reshape(-1))
    torch.manual_seed(0)
    sample = buffer.sample()
    rows = sample.reshape(-1, length)
    expected = terms_of(torch.cat(list(padded(rows))), make)
    assert_same(terms_of(sample if flat else rows, make), expected)


def padded(rows):
    """Rows without padding, each packed to the same length."""
    for row in rows:
        kept = row[row.get(("collector", "mask"), torch.ones(len(row), dtype=torch.bool))]
        packed = pack(kept.unsqueeze(0))
        assert len(packed) == 1
        yield pad(packed, [0, 0, 0, len(row) + 1 - packed.shape[1]])


@pytest.mark.parametrize("make", [redq, ppo])
def test_a_batch_without_a_mask_has_no_padding(make):
    batch = pack(steps()[:, 2:6].exclude(("next", "done")))
    whole = batch[batch["mask"].all(1).squeeze(-1)]
    assert len(whole) > 1
    assert_same(terms_of(whole.exclude("mask"), make), terms_of(whole, make))


@pytest.mark.parametrize("make", [redq, ppo])
def test_a_batch_of_wrong_form_is_refused_with_a_remedy(make):
    batch = pack(steps())
    with pytest.raises(ValueError, match=r"hold 'is_init'.*InitTracker.*auto_register_policy_tr"):
        terms_of(batch.exclude("is_init"), make)
    with pytest.raises(ValueError, match=r"the batch must be \[B, L\], got \[\d+\]"):
        terms_of(batch.reshape(-1), make)
    single = steps().reshape(-1)[torch.tensor([5, 3, 1])].exclude("collector", "is_init")
    with pytest.raises(ValueError, match=r"a flat batch must .*SliceSampler"):
        terms_of(single, make)


@pytest.mark.parametrize("make", [redq, ppo])
@pytest.mark.parametrize("has_ids", [True, False])
def test_single_steps_are_refused_although_some_follow_others(make, has_ids):
    flat = steps(frames=240).reshape(-1)
    flat = flat if has_ids else flat.exclude("collector")
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(0))
    drawn = flat[order[: len(flat) // 3]]
    # By chance, one row follows another.
    drawn = torch.cat([drawn, flat[:2]])
    with pytest.raises(ValueError, match=r"a flat batch must .*single steps.*SliceSampler"):
        terms_of(drawn, make)
    # The control: steps in their order.
    terms_of(flat, make)


@pytest.mark.parametrize("make", [redq, ppo])
def test_a_flat_batch_may_hold_episodes_of_one_step(make):
    flat = steps().reshape(-1)[:6].exclude("collector")
    for name in ("done", "terminated"):
        flat["next", name][:5] = True
    flat["is_init"][:] = True
    # The last step is the first one of an episode that is cut.
    terms_of(flat, make)


@pytest.mark.parametrize("key", ["action", ("next", "reward"), ("next", "terminated")])
def test_a_batch_that_lacks_an_entry_is_refused_by_its_name(key):
    with pytest.raises(ValueError, match=re.escape(f"hold {key!r}, got")):
        terms_of(pack(steps()).exclude(key), redq)


@pytest.mark.parametrize("make", [redq, ppo])
def test_ends_whose_observation_is_missing_are_refused(make):
    batch = steps()
    compact = batch.exclude(*[("next", key) for key in batch["next"].keys() if key in batch])
    for name in ("reward", "done", "terminated", "truncated"):
        compact["next", name] = batch["next", name]
    with pytest.raises(ValueError, match=r"ends of episodes must .*pack"):
        terms_of(compact, make)


def test_ppo_needs_its_annotations():
    with pytest.raises(ValueError, match=r"hold 'value_target', got .*annotate\(batch\)"):
        ppo()(steps())


def test_truncations_need_not_be_marked_for_ppo():
    batch = pack(steps())
    batch["next", "truncated"].zero_()
    assert_same(terms_of(batch.exclude(("next", "truncated")), ppo), terms_of(batch, ppo))


def a_critic(**changes):
    sizes = {"num_actions": 4, "num_gammas": 2, "num_outputs": 1, **changes}
    return StateActionCritic(8, **sizes)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"actor": ActorHead(8, action_space=SPACE, num_gammas=3)}, "actor.num_gammas must be 2"),
        ({"critic": a_critic(num_gammas=1)}, "critic.num_gammas must be 2 .*, got 1"),
        ({"critic": a_critic(num_actions=5)}, "critic.num_actions must be 4 .*, got 5"),
        ({"critic": a_critic(num_outputs=7)}, "critic.num_outputs must be 1 .*, got 7"),
        ({"returns": PopArt(1)}, "returns.num_gammas must be 2 .*, got 1"),
        ({"returns": BinnedReturns(2, num_bins=9)}, "critic.num_outputs must be 9 .*, got 1"),
        (
            {"critic": ActionInputCritic(8, action_size=4, gammas=(0.99, 0.9))},
            r"critic.gammas must be those of the loss, \[0.9, 0.99\], got \[0.99, 0.9\]",
        ),
    ],
)
def test_heads_that_do_not_fit_are_refused_at_construction(parts, message):
    given = {
        "actor": ActorHead(8, action_space=SPACE, num_gammas=2),
        "critic": a_critic(),
        "returns": PopArt(2),
    }
    options = {"action_space": SPACE, "gammas": GAMMAS}
    MultiGammaREDQLoss(encoder(), **given, **options)
    with pytest.raises(ValueError, match=f"MultiGammaREDQLoss: {message}"):
        MultiGammaREDQLoss(encoder(), **{**given, **parts}, **options)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("encoder", nn.GRU(8, 8)),
        ("actor", None),
        ("critic", lambda context: context),
        ("returns", None),
        ("action_space", Categorical(4)),
    ],
)
def test_parts_of_another_kind_are_refused_at_construction(name, part):
    given = {
        "encoder": encoder(),
        "actor": ActorHead(8, action_space=SPACE, num_gammas=1),
        "critic": a_critic(num_gammas=1),
        "returns": PopArt(1),
        "action_space": SPACE,
    }
    MultiGammaREDQLoss(**given, gammas=(0.9,))
    with pytest.raises(ValueError, match=f"MultiGammaREDQLoss: {name} must be a "):
        MultiGammaREDQLoss(**{**given, name: part}, gammas=(0.9,))
    given["critic"] = MLP(8, 1)
    SequencePPOLoss(**given)
    with pytest.raises(ValueError, match=f"SequencePPOLoss: {name} must be a "):
        SequencePPOLoss(**{**given, name: part})


@pytest.mark.parametrize("make", [redq, ppo])
def test_an_encoder_without_a_context_is_refused(make):
    loss = make()
    loss.encoder = loss.encoder[0]
    with pytest.raises(ValueError, match="encoder must write 'context', got"):
        loss.annotate(steps()) if make is ppo else loss(steps())


SHAPES = {
    "index": (Categorical(4), (3, 9)),
    "indices": (MultiCategorical([4, 2]), (3, 9, 2)),
    "one_hot": (OneHot(4), (3, 9, 4)),
    "bits": (Binary(4), (3, 9, 4)),
    "box": (Bounded(-1.0, 1.0, (4,)), (3, 9, 4)),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_actions_of_another_shape_than_the_spec_are_refused(kind):
    spec, shape = SHAPES[kind]
    loss = redq()
    loss.action_space = ActionSpace(spec)
    valid = torch.ones(3, 8, dtype=torch.bool)

    def encoded(shape):
        batch = TensorDict({"action": torch.zeros(shape, dtype=spec.dtype)}, [3, 9])
        return loss._taken_actions(batch, valid)

    assert encoded(shape).shape == (3, 8, loss.action_space.encoded_size)
    others = {other for _, other in SHAPES.values() if other != shape} | {(3, 9, 1)}
    for other in others:
        with pytest.raises(ValueError, match=f"'action' of the batch must .*'{kind}'"):
            encoded(other)


@pytest.mark.parametrize(
    ("position", "part", "message"),
    [
        (0, ActorHead(8, action_space=SPACE, num_gammas=2), "actor.num_gammas must be 1"),
        (1, MLP(8, 3), "critic.out_features must be 1"),
        (2, PopArt(2), "returns.num_gammas must be 1"),
    ],
)
def test_heads_of_several_discounts_are_refused_by_ppo(position, part, message):
    given = [ActorHead(8, action_space=SPACE, num_gammas=1), MLP(8, 1), PopArt(1)]
    given[position] = part
    with pytest.raises(ValueError, match=f"SequencePPOLoss: {message}"):
        SequencePPOLoss(encoder(), *given, action_space=SPACE)
