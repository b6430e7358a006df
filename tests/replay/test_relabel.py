"""The laws of relabelling: what changes, what stays, and how it is used."""

import pytest
import torch
from tensordict import TensorDict, assert_allclose_td
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import PendulumEnv, TransformedEnv, check_env_specs
from yamame.goals import GOAL_COMPLETED, GOAL_PAD, num_goals, view
from yamame.replay import GoalFrequencies, Relabel, RelabelKeys
from yamame.testing import goal_trajectories, random_goal_trajectories

STRATEGIES = ["some", "all", "all_or_nothing"]


def copies(number, positions, goals, size=1):
    """The same trajectory many times: one position or several per step, and an instruction."""
    held = max(len(p) for p in positions)
    achieved = torch.zeros(number, len(positions), held, size)
    achieved_mask = torch.zeros(number, len(positions), held, dtype=torch.bool)
    for t, here in enumerate(positions):
        for m, value in enumerate(here):
            achieved[:, t, m], achieved_mask[:, t, m] = value, True
    instruction = torch.tensor(goals).reshape(1, -1, size).repeat(number, 1, 1)
    mask = torch.ones(number, len(positions), dtype=torch.bool)
    return goal_trajectories(instruction, achieved, achieved_mask, mask)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_trajectories_of_one_step_and_instructions_longer_than_the_trajectory_are_relabelled(
    batch_size,
):
    batch = copies(batch_size, [[9.0], [1.0]], [5.0, 6.0, 7.0])
    out = Relabel("all")(batch)
    assert out["goal"][0, :, :, 0].tolist() == [[1.0, 6.0, 7.0], [GOAL_COMPLETED, 6.0, 7.0]]
    assert out["next", "reward"][0].flatten().tolist() == [1.0, 0.0]
    for end in ("terminated", "truncated", "done"):
        assert torch.equal(out["next", end], batch["next", end])


def test_all_three_goals_complete_around_the_real_one():
    batch = copies(300, [[float(t)] for t in range(10)], [3.0, 50.0, 60.0])
    torch.manual_seed(0)
    out = Relabel("all")(batch)
    assert torch.equal(out["next", "reward"].sum(1), torch.full((300, 1), 3.0))
    assert torch.equal(out["next", "terminated"].sum(1), torch.ones(300, 1, dtype=torch.int64))
    instruction = out["goal"][:, 0, :, 0]
    assert (instruction == 3.0).any(-1).all()
    assert torch.equal(instruction.sort(-1).values, instruction)
    first = instruction[:, 0]
    assert ((first == 3.0) | (first < 3.0)).all()
    assert {1.0, 2.0, 3.0} == set(first.tolist())
    assert 0.0 not in instruction.unique().tolist()


def test_the_rest_of_the_instruction_stays_behind_what_was_written():
    batch = copies(200, [[0.0], [1.0], [7.0]], [50.0, 60.0, 70.0])
    torch.manual_seed(0)
    instruction = Relabel("some")(batch)["goal"][:, 0, :, 0]
    assert {tuple(row) for row in instruction.tolist()} == {
        (50.0, 60.0, 70.0),
        (1.0, 60.0, 70.0),
        (7.0, 60.0, 70.0),
        (1.0, 7.0, 70.0),
    }


@pytest.mark.parametrize("strategy", [*STRATEGIES, "none"])
def test_without_synthetic_goals_every_bit_stays(strategy):
    batch = random_goal_trajectories(400, seed=3)
    rows = num_goals(batch["goal"][:, 0]) == batch["next", "reward"].sum((1, 2))
    assert rows.sum() > 50
    succeeded = batch[rows]
    out = Relabel(strategy)(succeeded)
    assert out is not succeeded
    assert (out == succeeded).all()
    unlucky = Relabel("all_or_nothing", all_probability=0.0)(batch)
    assert (unlucky == batch).all()
    assert strategy == "none" or not torch.equal(Relabel(strategy)(batch)["goal"], batch["goal"])


def test_garbage_in_the_padding_of_unchanged_rows_is_left_and_of_cut_rows_is_not_read():
    batch = random_goal_trajectories(400, seed=4)
    dirty = batch.clone()
    padding = ~batch["mask"].squeeze(-1)
    for key in ("achieved", "achieved_mask", "observation"):
        dirty[key][padding] = 1
    results = []
    for given in (batch, dirty):
        torch.manual_seed(5)
        results.append(Relabel("some")(given))
    clean, other = results
    real = clean["mask"].squeeze(-1)
    assert torch.equal(real, other["mask"].squeeze(-1))
    for key in clean.keys(True, True):
        assert torch.equal(clean[key][real], other[key][real])


def test_the_input_and_its_nested_entries_stay_as_they_were():
    batch = random_goal_trajectories(400, seed=5)
    before = batch.clone()
    for strategy in [*STRATEGIES, "none"]:
        Relabel(strategy, hide_future_goals=True)(batch)
        Relabel(strategy, single_goal=True)(batch)
    assert set(batch.keys(True)) == set(before.keys(True))
    assert (batch == before).all()


def test_hidden_goals_are_the_view_of_the_same_relabelling():
    batch = random_goal_trajectories(400, seed=6)
    torch.manual_seed(0)
    shown = Relabel("some")(batch)
    torch.manual_seed(0)
    hidden = Relabel("some", hide_future_goals=True)(batch)
    expected = torch.where(
        shown["mask"][..., None], view(shown["goal"], hide_future_goals=True), shown["goal"]
    )
    assert torch.equal(hidden["goal"], expected)
    assert not torch.equal(hidden["goal"], shown["goal"])
    assert (hidden.exclude("goal") == shown.exclude("goal")).all()
    untouched = Relabel("none", hide_future_goals=True)(batch)
    assert (untouched.exclude("goal") == batch.exclude("goal")).all()
    assert not torch.equal(untouched["goal"], batch["goal"])


def test_a_single_goal_is_kept_where_it_was_reached_and_the_trajectory_ends_there():
    batch = copies(2, [[0.0], [1.0], [4.0], [6.0], [8.0]], [4.0, 8.0])
    out = Relabel("some", single_goal=True)(batch)
    assert out["mask"].sum(1).flatten().tolist() == [3, 3]
    assert out["goal"][0, :, :, 0].tolist() == [[4.0, GOAL_PAD]] * 2 + [[GOAL_COMPLETED, GOAL_PAD]]
    assert out["next", "terminated"][0].flatten().tolist() == [False, True, False]


def test_draws_come_from_the_global_generator_or_only_from_the_one_given():
    batch = random_goal_trajectories(400, seed=8)
    outs = []
    for _ in range(2):
        torch.manual_seed(3)
        outs.append(Relabel("some")(batch)["goal"])
    torch.manual_seed(4)
    assert torch.equal(*outs)
    assert not torch.equal(outs[0], Relabel("some")(batch)["goal"])
    state = torch.get_rng_state()
    table = GoalFrequencies()
    own = [
        Relabel("some", rarity=table, generator=torch.Generator().manual_seed(9))(batch)["goal"]
        for _ in range(2)
    ]
    assert torch.equal(*own)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_frequency_table_is_part_of_the_state():
    batch = random_goal_trajectories(400, seed=9)
    table, other = GoalFrequencies(), GoalFrequencies()
    table.update(batch["achieved"], batch["achieved_mask"], batch["mask"])
    Relabel(rarity=other).load_state_dict(Relabel(rarity=table).state_dict())
    assert len(other) == len(table) > 0
    assert Relabel().state_dict() == {}


def test_entries_may_have_other_names():
    names = {
        "goal": ("task", "wanted"),
        "achieved": ("task", "reached"),
        "mask": "valid",
        "action": ("do", "it"),
    }
    batch = random_goal_trajectories(400, seed=10)
    renamed = batch.clone()
    for old, new in names.items():
        renamed.rename_key_(old, new)
    torch.manual_seed(0)
    expected = Relabel("some")(batch)
    torch.manual_seed(0)
    out = Relabel("some", keys=RelabelKeys(**names))(renamed)
    for old, new in names.items():
        out.rename_key_(new, old)
    for key in expected.keys(True, True):
        assert torch.equal(out[key], expected[key])


def test_entries_that_only_some_batches_hold_are_not_needed():
    batch = random_goal_trajectories(400, seed=11)
    optional = [
        "prev_reward",
        "action",
        "is_init",
        ("next", "truncated"),
        ("next", "done"),
        ("next", "success"),
    ]
    torch.manual_seed(0)
    expected = Relabel("some")(batch).exclude(*optional)
    torch.manual_seed(0)
    assert (Relabel("some")(batch.exclude(*optional)) == expected).all()


@pytest.mark.parametrize("key", ["goal", "achieved", ("next", "reward"), ("next", "terminated")])
def test_a_batch_without_goals_is_refused_by_the_name_of_what_is_missing(key):
    batch = random_goal_trajectories(4, seed=12).exclude(key)
    with pytest.raises(
        ValueError, match=r"Relabel: the batch must hold .*cannot be relabelled"
    ) as error:
        Relabel("some")(batch)
    assert repr(key) in str(error.value)
    assert (Relabel("none")(batch) == batch).all()


def test_windows_are_refused():
    batch = random_goal_trajectories(400, seed=13)
    rows = batch["mask"].sum((1, 2)) > 6
    with pytest.raises(
        ValueError, match=r"'is_init' must be True at the first timestep, got False"
    ):
        Relabel("some")(batch[rows][:, 3:])


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match=r"strategy must be one of .* got 'most'"):
        Relabel("most")
    with pytest.raises(ValueError, match=r"Relabel: all_probability must .* got 2"):
        Relabel(all_probability=2)


def test_in_an_environment_it_does_nothing():
    plain, transformed = PendulumEnv(seed=0), TransformedEnv(PendulumEnv(seed=0), Relabel("all"))
    check_env_specs(transformed)
    rollouts = []
    for env in (plain, transformed):
        env.set_seed(0)
        torch.manual_seed(0)
        rollouts.append(env.rollout(5))
    assert_allclose_td(*rollouts)


def test_a_replay_buffer_relabels_what_it_samples():
    batch = random_goal_trajectories(400, seed=14)
    buffer = ReplayBuffer(storage=LazyTensorStorage(400), transform=Relabel("all"), batch_size=400)
    buffer.extend(batch)
    torch.manual_seed(0)
    sample = buffer.sample()
    assert sample["next", "reward"].sum() > batch["next", "reward"].sum() + 100
    assert (buffer._storage[:] == batch).all()


@pytest.mark.gpu
@pytest.mark.parametrize("rarity", [False, True])
def test_on_a_gpu_the_same_draws_relabel_alike(rarity):
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    batch = random_goal_trajectories(400, seed=15)
    outs = []
    for device in ("cpu", "cuda"):
        given, table = batch.to(device), GoalFrequencies().to(device)
        table.update(given["achieved"], given["achieved_mask"], given["mask"])
        generator = torch.Generator().manual_seed(0)
        relabel = Relabel("some", rarity=table if rarity else None, generator=generator)
        outs.append(relabel(given).to("cpu"))
    # Weights are compared with fixed random numbers: another rounding of theirs moves next to no
    # choice.
    same = torch.stack(
        [(outs[0][key] == outs[1][key]).flatten(1).all(1) for key in ("goal", "mask")]
    ).all(0)
    assert same.sum() >= (395 if rarity else 400)


# Goals under other names, without slots, near enough.


def bare_batch(generator=None):
    """Trajectories ``[B, L]`` as GymEnv of a goal environment gives them: one goal, no slots, no
    masks.
    """
    places = torch.randn(6, 9, 2, generator=generator).cumsum(1)
    flag = torch.zeros(6, 9, 1, dtype=torch.bool)
    goal = torch.full((6, 9, 2), 50.0)
    entries = {"desired_goal": goal, "achieved_goal": places, "action": torch.zeros(6, 9, 1)}
    following = {"reward": torch.zeros(6, 9, 1), "terminated": flag, "truncated": flag.clone()}
    return TensorDict({**entries, "next": following}, [6, 9])


NAMES = {"goal": "desired_goal", "achieved": "achieved_goal"}


def test_one_goal_without_slots_is_relabelled_and_stays_without():
    batch = bare_batch(torch.Generator().manual_seed(0))
    out = Relabel("all", keys=NAMES, radius=0.25, generator=torch.Generator().manual_seed(1))(batch)
    assert out["desired_goal"].ndim == 3
    assert (batch["desired_goal"] == 50.0).all()
    assert (out["next", "reward"].sum((1, 2)) == 1.0).all()
    for row in range(6):
        end = int(out["mask"][row].sum()) - 1
        goal = out["desired_goal"][row, 0]
        distance = (batch["achieved_goal"][row] - goal).norm(dim=-1)
        first = int((distance[1:] <= 0.25).nonzero()[0]) + 1
        assert end == first
        assert out["next", "reward"][row, end - 1] == 1.0
        assert out["next", "terminated"][row, end - 1]


def test_without_a_radius_goals_must_be_the_same():
    batch = bare_batch(torch.Generator().manual_seed(0))
    near = batch["achieved_goal"].clone()
    batch["achieved_goal"][:, 4] = near[:, 6] + 0.01
    strict, wide = (Relabel("all", keys=NAMES, radius=radius) for radius in (None, 0.1))
    batch["desired_goal"] = (near[:, 6:7] + 0.05).expand_as(near).clone()
    # Within the radius the goal was completed, so there is nothing to draw.
    assert (wide(batch)["next", "reward"] == 0).all()
    assert (strict(batch)["next", "reward"] == 1).any(1).all()


def test_what_is_missing_is_named_with_its_remedy():
    batch = bare_batch()
    with pytest.raises(ValueError, match=r"hold 'goal', got .*; set other names with keys="):
        Relabel("all")(batch)
    with pytest.raises(ValueError, match=r"keys must name some of .*'goal'.* got \['aim'\]"):
        Relabel("all", keys={"aim": "desired_goal"})
    with pytest.raises(ValueError, match=r"Relabel: radius must .* got -0\.1"):
        Relabel("all", radius=-0.1)


def test_a_batch_that_has_no_trajectories_and_timesteps_is_refused():
    batch = copies(3, [[9.0], [1.0]], [5.0])
    for wrong, shape in ((batch[0], r"\[2\]"), (TensorDict(dict(batch.items())), r"\[\]")):
        with pytest.raises(
            ValueError, match=rf"^Relabel: batch_size must be \[B, L\], .* got {shape}$"
        ):
            Relabel("all")(wrong)
    assert Relabel("all")(batch).shape == (3, 2)
