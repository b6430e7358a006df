"""Instructions that are held out are never given to a trajectory, and nothing else changes."""

from functools import partial

import pytest
import torch
from yamame.goals import num_goals
from yamame.replay import GoalFrequencies, Relabel
from yamame.testing import check_relabeller, random_goal_trajectories
from yamame_envs import MazeRunner
from yamame_envs.streams import fold

VARIANTS = {
    "some": {"strategy": "some"},
    "all": {"strategy": "all"},
    "all_or_nothing": {"strategy": "all_or_nothing"},
    "rarity": {"strategy": "some", "rarity": True},
    "single goal": {"strategy": "some", "single_goal": True},
    "single goal and no other": {"strategy": "none", "single_goal": True},
    "single goal of all": {"strategy": "all", "single_goal": True},
}


class Sum:
    """A predicate from elsewhere: it holds instructions out by the sum of their numbers and an
    entry of its own.
    """

    def __init__(self, modulus=3):
        self.modulus, self.asked = modulus, []

    def __call__(self, instruction, trajectories):
        assert len(instruction) == len(trajectories)
        self.asked.append(len(instruction))
        first = trajectories["salt"][:, 0].flatten()
        return (instruction.flatten(1).sum(-1).round().long() + first) % self.modulus == 0


@pytest.fixture(scope="module")
def batch():
    """Trajectories whose own instructions are not held out."""
    torch.manual_seed(0)
    batch = random_goal_trajectories(400, 30, span=30)
    salt = torch.randint(100, (len(batch), 1, 1)).expand(-1, batch.shape[1], 1)
    batch = batch.set("salt", salt.clone())
    return batch[~Sum()(batch["goal"][:, 0], batch)]


def make(variant, **more):
    settings = {**VARIANTS[variant], **more}
    if settings.pop("rarity", False):
        settings["rarity"] = GoalFrequencies()
    return Relabel(**settings)


def share_held_out(out, batch):
    """Of the new instructions."""
    new, old = out["goal"][:, 0], batch["goal"][:, 0]
    changed = (new != old).flatten(1).any(-1)
    return float(Sum()(new, batch)[changed].double().mean())


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_trajectory_is_given_an_instruction_that_is_held_out(variant, batch):
    torch.manual_seed(1)
    for _ in range(5):
        out = make(variant, held_out=Sum())(batch)
        assert not Sum()(out["goal"][:, 0], batch).any()
        assert not torch.equal(out["goal"][:, 0], batch["goal"][:, 0])
    # The negative control: without the predicate a third of them are.
    assert share_held_out(make(variant)(batch), batch) > 0.2


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_laws_of_relabelling_hold_with_it(variant, batch):
    torch.manual_seed(2)
    check_relabeller(make(variant, held_out=Sum()), batch, shortens="single" in variant)


def test_hidden_goals_are_rejected_as_they_are_drawn(batch):
    """What is shown of an instruction changes nothing about which one is drawn."""
    drawn = []
    for hide in (False, True):
        torch.manual_seed(3)
        drawn.append(make("some", held_out=Sum(), hide_future_goals=hide)(batch))
    shown, hidden = drawn
    assert torch.equal(shown["next", "reward"], hidden["next", "reward"])
    assert num_goals(hidden["goal"][:, 0]).max() == 1
    assert not Sum()(shown["goal"][:, 0], batch).any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_where_nothing_is_held_out_draws_are_those_without_it(variant, batch):
    outs = []
    for held_out in (
        None,
        lambda instruction, trajectories: torch.zeros(len(instruction), dtype=torch.bool),
    ):
        generator = torch.Generator().manual_seed(4)
        outs.append(make(variant, held_out=held_out, generator=generator)(batch))
    for key in outs[0].keys(True, True):
        assert torch.equal(outs[0][key], outs[1][key]), key


def test_the_same_generator_draws_the_same_again(batch):
    def draw(seed):
        return make("some", held_out=Sum(), generator=torch.Generator().manual_seed(seed))(batch)[
            "goal"
        ]

    assert torch.equal(draw(5), draw(5))
    assert not torch.equal(draw(5), draw(6))


@pytest.mark.parametrize("variant", VARIANTS)
def test_where_everything_is_held_out_trajectories_stay_as_they_are(variant, batch):
    everything = Relabel("none")(batch)
    out = make(variant, held_out=lambda new, old: torch.ones(len(new), dtype=torch.bool))(batch)
    for key in batch.keys(True, True):
        assert torch.equal(out[key], everything[key]), key


def test_it_is_asked_for_new_instructions_alone_and_again_for_those_that_it_refused(batch):
    predicate = Sum()
    torch.manual_seed(6)
    make("all", held_out=predicate)(batch)
    assert 0 < predicate.asked[0] < len(batch)
    assert predicate.asked == sorted(predicate.asked, reverse=True)
    assert predicate.asked[-1] < predicate.asked[0] / 3


@pytest.mark.parametrize(
    "answer",
    [torch.ones(3, dtype=torch.bool), torch.ones(3), [True], None],
    ids=["size", "dtype", "list", "None"],
)
def test_another_answer_is_refused(answer, batch):
    with pytest.raises(ValueError, match="Relabel: result of held_out must be bool"):
        Relabel("all", held_out=lambda new, old: answer)(batch)


def test_goals_without_slots_are_rejected_too():
    torch.manual_seed(7)
    batch = random_goal_trajectories(200, 20, num_goals=1, num_achieved=1, span=30)
    bare = batch.clone()
    del bare["achieved_mask"]
    bare["goal"], bare["achieved"] = batch["goal"].squeeze(2), batch["achieved"][:, :, 0]

    def odd(instruction, trajectories):
        return instruction[:, 0, 0].round().long() % 2 == 1

    relabelled = [Relabel("all", held_out=held_out)(bare) for held_out in (odd, None)]
    changed = [
        ((out["goal"] - bare["goal"][:, : out.shape[1]])[:, 0].abs() > 0.5).any(-1)
        for out in relabelled
    ]
    odds = [
        out["goal"][:, 0, 0][new].round().long() % 2
        for out, new in zip(relabelled, changed, strict=True)
    ]
    assert changed[0].any()
    assert odds[0].sum() == 0
    assert odds[1].sum() > 0


ENVS = {
    "maze": partial(
        MazeRunner, size=9, num_goals=2, min_goals=1, split_by="walls_and_goals", time_limit=40
    ),
    "shuffled maze": partial(
        MazeRunner,
        size=9,
        num_goals=2,
        split_by="walls_and_goals",
        time_limit=40,
        randomize_actions=True,
    ),
}


@pytest.mark.parametrize("name", ENVS)
def test_the_predicate_of_an_environment_is_the_hash_of_the_whole_task(name):
    """Parts of a hash, one of the world and one of the instruction, add up to that of the task that
    decides a split.
    """
    env = ENVS[name](num_envs=200, split="train")
    seeds = fold(torch.arange(200), 1)
    for side in ("train", "test"):
        other = ENVS[name](split=side)
        task, mine = other.tasks_of(seeds), env.tasks_of(seeds)
        held_out = other.held_out_instructions(task["instruction"], _first(task["world_hash"]))
        assert not held_out.any()  # a side holds nothing of itself out
        training = env.held_out_instructions(task["instruction"], _first(task["world_hash"]))
        assert (training == (side == "test")).all()
        strange = env.held_out_instructions(task["instruction"], _first(mine["world_hash"].roll(1)))
        assert 0.05 < float(strange.double().mean()) < 0.5
    with pytest.raises(ValueError, match="trajectories must hold 'world_hash'"):
        env.held_out_instructions(
            task["instruction"], _first(task["world_hash"]).exclude("world_hash")
        )


def _first(world_hash):
    batch = random_goal_trajectories(len(world_hash), 4)
    return batch.set("world_hash", world_hash.view(-1, 1, 1).expand(-1, 4, 1).clone())
