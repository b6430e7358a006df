"""The checker accepts `Relabel`, and reports each planted defect under the law it breaks."""

import pytest
import torch
from yamame.goals import GOAL_PAD, num_goals
from yamame.replay import GoalFrequencies, Relabel, RelabelKeys
from yamame.testing import check_relabeller, goal_trajectories, random_goal_trajectories

BATCH = random_goal_trajectories(300, seed=0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("strategy", ["some", "all", "all_or_nothing"])
def test_every_strategy_keeps_the_laws(strategy, seed):
    for shape in (
        {"num_goals": 3},
        {"num_goals": 1, "num_achieved": 1, "span": 4},
        {"num_goals": 5, "goal_size": 2, "span": 3},
    ):
        batch = random_goal_trajectories(100, seed=seed, **shape)
        table = GoalFrequencies()
        table.update(batch["achieved"], batch["achieved_mask"], batch["mask"])
        check_relabeller(Relabel(strategy), batch)
        check_relabeller(Relabel(strategy, rarity=table), batch)
        check_relabeller(Relabel(strategy, single_goal=True), batch, shortens=True)


def test_no_relabelling_is_the_identity_and_relabelling_is_not():
    check_relabeller(Relabel("none"), BATCH, identity=True)
    with pytest.raises(AssertionError, match="nothing may change"):
        check_relabeller(Relabel("some"), BATCH, identity=True)


def test_dropping_goals_must_be_announced():
    with pytest.raises(AssertionError, match="keep its number of goals"):
        check_relabeller(Relabel("some", single_goal=True), BATCH)


def test_batches_with_other_names_and_fewer_entries_are_checked():
    keys = RelabelKeys(goal=("task", "goal"), mask="valid")
    batch = BATCH.exclude(
        "prev_reward", ("next", "success"), ("next", "done"), ("next", "truncated")
    )
    batch.rename_key_("goal", ("task", "goal"))
    batch.rename_key_("mask", "valid")
    check_relabeller(Relabel(keys=keys), batch, keys=keys)


def last_row(out):
    return out["mask"].sum((1, 2)) - 1


def late_reward(out, batch):
    out["next", "reward"] = out["next", "reward"].roll(1, dims=1)


def double_reward(out, batch):
    out["next", "reward"] = 2 * out["next", "reward"]


def old_prev_reward(out, batch):
    out["prev_reward"] = batch["prev_reward"][:, : out.shape[1]] * out["mask"]


def old_goals(out, batch):
    new = out["goal"][:, :1].expand_as(out["goal"])
    out["goal"] = torch.where(out["mask"][..., None], new, out["goal"])


def old_mask(out, batch):
    out["mask"] = batch["mask"][:, : out.shape[1]].clone()


def short_mask(out, batch):
    row = last_row(out).argmax()
    out["mask"][row, last_row(out)[row]] = False


def no_terminal(out, batch):
    out["next", "terminated"] = batch["next", "terminated"][:, : out.shape[1]].clone()


def two_terminals(out, batch):
    out["next", "terminated"][:, 0] = True


def no_success(out, batch):
    out["next", "success"] = torch.zeros_like(out["next", "success"])


def old_done(out, batch):
    out["next", "done"] = torch.zeros_like(out["next", "done"])


def other_observation(out, batch):
    out["observation"] = out["observation"] + 1e-6 * out["mask"]


def other_action(out, batch):
    out["action"] = batch["action"][:, : out.shape[1]].clone()


def garbage_after_the_cut(out, batch):
    out["observation"] = batch["observation"][:, : out.shape[1]].clone()


def reward_left_after_the_cut(out, batch):
    out["next", "energy"] = batch["next", "energy"][:, : out.shape[1]].clone()


def lost_entry(out, batch):
    del out["prev_action"]


def other_type(out, batch):
    out["action"] = out["action"].float()


def longer_than_its_mask(out, batch):
    out["mask"] = out["mask"].clone()
    out["mask"][:, 0] = False


DEFECTS = {
    late_reward: "a reward must be 1",
    double_reward: "a reward must be 1",
    old_prev_reward: "the previous reward must be",
    old_goals: "goals must show as completed",
    old_mask: "the mask must end where the last goal is completed",
    short_mask: "the mask must end where the last goal is completed",
    no_terminal: "terminated must be True once",
    two_terminals: "terminated must be True once",
    no_success: "success must be True",
    old_done: "done must be terminated or truncated",
    other_observation: "'observation' must stay as it was",
    other_action: "'action' must be zero where the trajectory was cut off",
    garbage_after_the_cut: "'observation' must be zero where the trajectory was cut off",
    reward_left_after_the_cut: r"\('next', 'energy'\) must be zero where the trajectory was",
    lost_entry: "must hold the keys of the input",
    other_type: "'action' must keep its dtype",
    longer_than_its_mask: "no real timestep may follow padding",
}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_defect_in_the_output_is_found(defect):
    def relabel(batch):
        out = Relabel("all")(batch).clone()
        defect(out, batch)
        return out

    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=DEFECTS[defect]):
        check_relabeller(relabel, BATCH)


def test_a_changed_input_is_found():
    def relabel(batch):
        out = Relabel("some")(batch)
        batch["next", "reward"][:, 0] += 1
        return out

    with pytest.raises(AssertionError, match="must not change its input"):
        check_relabeller(relabel, BATCH.clone())


def rewriting(change):
    """Return a relabeller that rewrites a batch correctly, for instructions that may be wrong.

    Args:
        change: Function that changes instructions ``[B, K, d]`` in place, given the batch.
    """

    def relabel(batch):
        instruction = batch["goal"][:, 0].clone()
        change(instruction, batch)
        mask = batch["mask"].squeeze(-1)
        out = goal_trajectories(instruction, batch["achieved"], batch["achieved_mask"], mask)
        same = (instruction == batch["goal"][:, 0]).flatten(1).all(-1)
        for key, value in out.items(True, True):
            value[same] = batch[key][same]
        return out

    return relabel


def test_an_invented_goal_is_found():
    def invent(instruction, batch):
        instruction[num_goals(instruction) > 0, 0] = 77.0

    with pytest.raises(
        AssertionError, match="a new goal must be an old one, or achieved after the start"
    ):
        check_relabeller(rewriting(invent), BATCH)


def test_a_goal_that_only_held_at_the_start_is_found():
    def start(instruction, batch):
        instruction[:, 0] = 9.0

    batch = BATCH.clone()
    batch["achieved"][:, 0] = 9.0
    batch["achieved_mask"][:, 0] = True
    with pytest.raises(
        AssertionError, match="a new goal must be an old one, or achieved after the start"
    ):
        check_relabeller(rewriting(start), batch)


def line(goals, positions):
    """Return one trajectory along a line, where the position is the goal achieved."""
    achieved = torch.tensor(positions).reshape(1, -1, 1, 1)
    ones = torch.ones(achieved.shape[:3], dtype=torch.bool)
    return goal_trajectories(torch.tensor(goals).reshape(1, -1, 1), achieved, ones, ones[..., 0])


def test_counting_what_holds_at_the_first_step_is_found():
    def relabel(batch):
        out = batch.clone()
        out["goal"][:, 0] = torch.tensor([[7.0], [6.0]])
        out["goal"][:, 1:] = torch.tensor([[-3.0], [6.0]])
        out["next", "reward"][:, 0] = out["prev_reward"][:, 1] = 1.0
        return out

    batch = line([5.0, 6.0], [7.0, 1.0, 7.0, 2.0])
    with pytest.raises(AssertionError, match="goals must show as completed"):
        check_relabeller(relabel, batch)


def test_goals_that_are_not_in_order_of_time_are_found():
    def append(instruction, batch):
        instruction[:, 1] = 1.0

    batch = line([2.0, 9.0], [0.0, 1.0, 2.0, 3.0])
    with pytest.raises(AssertionError, match="completed further than the old one"):
        check_relabeller(rewriting(append), batch)

    def merge(instruction, batch):
        instruction[:] = torch.tensor([[1.0], [2.0]])

    check_relabeller(rewriting(merge), batch)


def test_a_new_instruction_after_success_is_found():
    def earlier(instruction, batch):
        instruction[:, 0] = 1.0

    batch = line([2.0, GOAL_PAD], [0.0, 1.0, 2.0])
    with pytest.raises(
        AssertionError, match="a trajectory that succeeded must keep its instruction"
    ):
        check_relabeller(rewriting(earlier), batch)


def test_a_change_under_an_unchanged_instruction_is_found():
    def relabel(batch):
        out = batch.clone()
        out["observation"][~batch["mask"].squeeze(-1)] = 1.0
        return out

    with pytest.raises(
        AssertionError, match="a trajectory that keeps its instruction must stay as it was"
    ):
        check_relabeller(relabel, BATCH)
