"""Goal encoders: special values are kinds, not numbers, and restricted views hide goals."""

import pytest
import torch
from yamame.goals import GOAL_COMPLETED, GOAL_PAD, show
from yamame.timestep import MLPGoalEncoder, TokenGoalEncoder

ENCODERS = {
    "mlp": lambda **kw: MLPGoalEncoder(4, 2, out_features=8, **kw),
    "token": lambda **kw: TokenGoalEncoder(4, 2, num_tokens=30, out_features=8, **kw),
}


def instructions(batch: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    goal = torch.randint(0, 30, (batch, 4, 2), generator=generator).float()
    goal[:, 3] = GOAL_PAD
    return goal


def build(kind: str, **arguments):
    torch.manual_seed(0)
    module = ENCODERS[kind](**arguments)
    module(instructions(200))  # statistics of typical goals
    return module.eval()


@pytest.mark.parametrize("kind", ENCODERS)
def test_each_coordinate_and_each_progress_shows_in_the_embedding(kind):
    module = build(kind)
    goal = instructions(5)
    base = module(goal)
    assert base.shape == (5, 8)
    for slot in range(3):
        for coordinate in range(2):
            changed = goal.clone()
            changed[:, slot, coordinate] = (changed[:, slot, coordinate] + 7) % 30
            assert bool(((module(changed) - base).abs().amax(-1) > 1e-5).all())
    for active in range(1, 4):
        progressed = show(goal, torch.full((5,), active))
        assert bool(((module(progressed) - base).abs().amax(-1) > 1e-5).all())


@pytest.mark.parametrize("kind", ENCODERS)
def test_order_of_goals_matters(kind):
    module = build(kind)
    goal = instructions(5)
    swapped = goal[:, [1, 0, 2, 3]]
    assert bool(((module(swapped) - module(goal)).abs().amax(-1) > 1e-5).all())


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("option", ["hide_future_goals", "single_goal"])
def test_restricted_views_hide_the_future_and_nothing_of_the_present(kind, option):
    goal = show(instructions(5), torch.full((5,), 1))
    future, present = goal.clone(), goal.clone()
    future[:, 2] += 3
    present[:, 1] += 3
    restricted, full = build(kind, **{option: True}), build(kind)
    assert torch.equal(restricted(future), restricted(goal))
    assert not torch.allclose(restricted(present), restricted(goal))
    assert not torch.allclose(full(future), full(goal))


@pytest.mark.parametrize("kind", ENCODERS)
def test_only_the_single_goal_view_hides_progress(kind):
    goal = instructions(5)
    goal[:, 1] = goal[:, 0]  # the active goal looks the same before and after
    progressed = show(goal, torch.full((5,), 1))
    single, revealed = build(kind, single_goal=True), build(kind, hide_future_goals=True)
    assert torch.equal(single(goal), single(progressed))
    assert not torch.allclose(revealed(goal), revealed(progressed))


@pytest.mark.parametrize("kind", ENCODERS)
def test_leading_dimensions_are_free(kind):
    module = build(kind)
    goal = instructions(6)
    torch.testing.assert_close(module(goal.reshape(2, 3, 4, 2)), module(goal).reshape(2, 3, 8))


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_instruction_of_another_shape_is_refused(kind):
    message = r"goal must end in \(num_slots, goal_size\)=\(4, 2\), got \(5, 4, 3\)"
    with pytest.raises(ValueError, match=message):
        build(kind)(torch.zeros(5, 4, 3))


def test_special_slots_do_not_move_the_statistics():
    module = MLPGoalEncoder(4, 2)
    goal = show(instructions(300), torch.arange(300) % 3)
    real = goal[(goal != GOAL_PAD).any(-1) & (goal != GOAL_COMPLETED).any(-1)]
    module(goal)
    torch.testing.assert_close(module.normalizer.mean.float(), real.mean(0))
    assert not torch.allclose(module.normalizer.mean.float(), goal.reshape(-1, 2).mean(0))


def test_padding_timesteps_do_not_move_the_statistics():
    module = MLPGoalEncoder(4, 2)
    goal = instructions(10)
    goal[5:] = 0.0  # padding holds zeros, which looks like a goal at the origin
    mask = torch.arange(10) < 5
    module(goal, mask)
    torch.testing.assert_close(module.normalizer.mean.float(), goal[:5, :3].reshape(-1, 2).mean(0))


@pytest.mark.parametrize("magic", [GOAL_PAD, GOAL_COMPLETED])
def test_a_goal_with_one_magic_coordinate_is_still_a_goal(magic):
    module = build("mlp")
    goal = instructions(1)
    goal[:, 0] = torch.tensor([magic, 4.0])
    elsewhere, special = goal.clone(), goal.clone()
    elsewhere[:, 0, 1] = 9.0
    special[:, 0] = magic
    assert not torch.allclose(module(goal), module(elsewhere))
    assert not torch.allclose(module(goal), module(special))


def test_tokens_have_their_own_ids_and_anything_else_is_unknown():
    module = TokenGoalEncoder(1, 6, num_tokens=30)
    goal = torch.tensor([[0.0, 29.0, GOAL_PAD, GOAL_COMPLETED, 30.0, 2.5]])
    assert module.token_ids(goal).tolist() == [[3, 32, 0, 1, 2, 2]]
    assert module.token_ids(torch.tensor([-2.0, 1e9, float("nan"), 4.0002])).tolist() == [
        2,
        2,
        2,
        7,
    ]


def test_unknown_tokens_are_told_from_every_known_one():
    module = build("token")
    goal = instructions(1)
    goal[:, 0, 0] = 1000.0
    unknown = module(goal)
    for token in range(30):
        goal[:, 0, 0] = token
        assert not torch.allclose(module(goal), unknown)


@pytest.mark.parametrize(
    ("build_bad", "message"),
    [
        (lambda: MLPGoalEncoder(0, 2), "MLPGoalEncoder: num_slots must be at least 1, got 0"),
        (
            lambda: MLPGoalEncoder(1, 2, hidden_size=0),
            "MLPGoalEncoder: hidden_size must be at least 1, got 0",
        ),
        (
            lambda: TokenGoalEncoder(1, 2, num_tokens=0),
            "TokenGoalEncoder: num_tokens must be at least 1, got 0",
        ),
    ],
)
def test_sizes_must_be_positive(build_bad, message):
    with pytest.raises(ValueError, match=message):
        build_bad()
